"""Snapshots of directories and of an S3 service."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from avactl.datasets.stores.remote import RemoteStore
from tests.cli.running import Run
from tests.datasets.conftest import KEYS, fill, lines

Put = Callable[[Mapping[str, bytes]], RemoteStore]
ODD = ("a b.jpg", "a%20b.jpg", "a+b=c&d.jpg", "猫/1.jpg", "q?x#y.jpg", "{x}[y]~'\"$.jpg", "ü.jpg", "x" * 900 + ".jpg")
"""Keys that stores allow and that URLs would encode."""


def test_a_directory_with_labels_and_checksums(tmp_path: Path, avactl: Run) -> None:
    data = fill(tmp_path / "data", {"train/cat/1.jpg": b"one", "train/dog/2.jpg": b"two!", "val/cat/3.jpg": b""})
    done = avactl("dataset", "snapshot", "data", "-o", "v1.jsonl", "--labels", "split/class", "--checksum")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    found = lines(tmp_path / "v1.jsonl")
    assert [entry["url"] for entry in found] == [
        f"file://{data}/{name}" for name in ("train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg")
    ]
    assert found[1] == {
        "url": f"file://{data}/train/dog/2.jpg",
        "size": 4,
        "sha256": hashlib.sha256(b"two!").hexdigest(),
        "labels": {"split": "train", "class": "dog"},
    }
    digest = hashlib.sha256((tmp_path / "v1.jsonl").read_bytes()).hexdigest()
    assert done.stderr == f"v1.jsonl: 3 objects, 7 B\nsha256: {digest}\n"
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_names_are_in_the_order_of_stores(tmp_path: Path, avactl: Run) -> None:
    names = ("a/x", "a-b", "a.txt", "a0", "a/y/z", "B", "ä", "z", "猫")
    fill(tmp_path / "data", dict.fromkeys(names, b"x"))
    done = avactl("dataset", "snapshot", "data", "--url", "s3://bucket/v1")
    urls = [line.split('"')[3] for line in done.stdout.splitlines()]
    assert urls == [f"s3://bucket/v1/{name}" for name in sorted(names, key=str.encode)]


def test_a_prefix_of_more_than_one_page(tmp_path: Path, s3: str, put: Put, avactl: Run) -> None:
    objects = {f"v1/{number % 7}/{number:05}.jpg": b"x" * (number % 50) for number in range(1200)}
    put({**objects, "v10/other.jpg": b"x", "w": b"x"})
    urllib.request.urlopen(urllib.request.Request(f"{s3}/data/v1/marker/", method="PUT"), timeout=10).close()
    done = avactl("dataset", "snapshot", "s3://data/v1", "--endpoint", s3, "-o", "v1.jsonl", "--labels", "shelf")
    assert done.returncode == 0, done.stderr
    found = lines(tmp_path / "v1.jsonl")
    assert [(entry["url"], entry["size"]) for entry in found] == [
        (f"s3://data/{key}", len(objects[key])) for key in sorted(objects)
    ]
    first = found[0]
    assert first["etag"] == hashlib.md5(objects[sorted(objects)[0]]).hexdigest()
    assert first["labels"] == {"shelf": "0"}


def test_odd_names_are_listed_and_read(tmp_path: Path, s3: str, put: Put, avactl: Run) -> None:
    put({f"odd/{name}": name.encode() for name in ODD})
    done = avactl("dataset", "snapshot", "s3://data/odd", "--endpoint", s3, "--checksum", "-o", "odd.jsonl")
    assert done.returncode == 0, done.stderr
    found = {entry["url"]: entry["sha256"] for entry in lines(tmp_path / "odd.jsonl")}
    assert found == {f"s3://data/odd/{name}": hashlib.sha256(name.encode()).hexdigest() for name in ODD}
    assert "note: 1 name with blanks" in done.stderr


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("bad//x.jpg", "empty path segment"),
        ("bad/a%7Fb.jpg", "illegal character"),
        ("bad/" + "y" * 1021, ""),
    ],
)
def test_names_that_no_file_system_shows(s3: str, bucket: str, avactl: Run, key: str, why: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{s3}/data/{key}", b"x", method="PUT"), timeout=10).close()
    done = avactl("dataset", "snapshot", "s3://data/bad", "--endpoint", s3)
    assert done.returncode == (1 if why else 0)
    assert why in done.stderr


def test_hostile_files_are_errors(tmp_path: Path, avactl: Run) -> None:
    data = tmp_path / "data"
    fill(data, {"a.jpg": b"x"})

    def refused(*options: str) -> str:
        done = avactl("dataset", "snapshot", "data", *options)
        assert done.returncode == 1, done.stderr
        assert "\x1b" not in done.stderr
        return done.stderr

    (data / "link").symlink_to("/etc/passwd")
    assert "data/link is a symbolic link" in refused()
    (data / "link").unlink()
    (data / "loop").symlink_to(".")
    assert "links to a directory that contains it" in refused("--follow-symlinks")
    (data / "loop").unlink()
    os.mkfifo(data / "pipe")
    assert "neither a file nor a directory" in refused()
    (data / "pipe").unlink()
    (data / "a\x1b[31m.jpg").touch()
    assert "contains a control character" in refused()
    (data / "a\x1b[31m.jpg").unlink()
    Path(os.fsdecode(os.fsencode(data) + b"/\xff.jpg")).touch()
    assert "is not UTF-8" in refused()
    Path(os.fsdecode(os.fsencode(data) + b"/\xff.jpg")).unlink()
    deep = data / "/".join(["d" * 200] * 6)
    deep.mkdir(parents=True)
    (deep / "1.jpg").touch()
    assert "object stores allow 1,024" in refused()


def test_links_are_followed_on_request(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "store", {"1.jpg": b"x"})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").symlink_to("../store")
    done = avactl("dataset", "snapshot", "data", "--follow-symlinks", "--url", "s3://b/v")
    assert done.stdout.startswith('{"url":"s3://b/v/a/1.jpg"')


def test_locations_that_do_not_work(s3: str, bucket: str, monkeypatch: pytest.MonkeyPatch, avactl: Run) -> None:
    def refused(code: int, *args: str, **env: str) -> str:
        done = avactl("dataset", "snapshot", *args, **env)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        for value in (KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]):
            assert value not in done.stderr
        return done.stderr

    assert "s3://nothing: no such bucket" in refused(3, "s3://nothing/v1", "--endpoint", s3)
    assert "there are no objects" in refused(1, "s3://data/v1", "--endpoint", s3)
    assert "no such file or directory" in refused(3, "nowhere")
    assert "contains credentials" in refused(2, "s3://AKIAPLANTEDPLANTED00:planted@data/v1")
    assert "`hdfs://` is not an object store" in refused(2, "hdfs://name/v1")
    assert "is not the name of a bucket" in refused(2, "s3:///v1")
    assert "contains `..`" in refused(2, "s3://data/../x")
    assert "oss://data/v1 needs an endpoint" in refused(2, "oss://data/v1")
    assert "has no effect on" in refused(2, ".", "--endpoint", s3)
    assert "check `--endpoint`" in refused(3, "s3://data/v1", "--endpoint", "http://127.0.0.1:1")
    for name in KEYS:
        monkeypatch.delenv(name)
    assert "s3://data: no credentials" in refused(3, "s3://data/v1", "--endpoint", s3)
    lab = {"AWS_PROFILE": "lab"}
    assert "profile `lab` has no aws_access_key_id" in refused(2, "s3://data/v1", "--endpoint", s3, **lab)


def test_a_profile_has_credentials(
    tmp_path: Path, s3: str, put: Put, monkeypatch: pytest.MonkeyPatch, avactl: Run
) -> None:
    put({"v1/a": b"x"})
    fill(tmp_path / "home", {".aws/credentials": b"[lab]\naws_access_key_id = AKIAX\naws_secret_access_key = y\n"})
    for name in KEYS:
        monkeypatch.delenv(name)
    done = avactl("dataset", "snapshot", "s3://data/v1", "--endpoint", s3, AWS_PROFILE="lab")
    assert done.returncode == 0, done.stderr
    assert '"s3://data/v1/a"' in done.stdout


def test_the_manifest_is_not_part_of_its_source(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "data", {"a": b"x"})
    done = avactl("dataset", "snapshot", "data", "-o", "data/v1.jsonl")
    assert done.returncode == 2
    assert "is inside" in done.stderr
