"""Verification of manifests: lines, duplicates, and what the store holds now."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from avactl.datasets.manifest import MAX_LINE
from avactl.datasets.stores.remote import RemoteStore
from tests.cli.running import Run
from tests.datasets.conftest import fill, lines, manifest

Put = Callable[[Mapping[str, bytes]], RemoteStore]
URL = "s3://data/v1/%s"
OBJECTS = {f"v1/{name}.jpg": name.encode() * 3 for name in ("a", "b", "c", "d", "e")}


def snapshot(avactl: Run, s3: str, path: Path, *options: str) -> Path:
    done = avactl("dataset", "snapshot", "s3://data/v1", "--endpoint", s3, "-o", str(path), *options)
    assert done.returncode == 0, done.stderr
    return path


# -- lines ---------------------------------------------------------------------------------------------------------

BAD = {
    '{"url": "s3://data/v1/x.jpg"': (29, "is not JSON"),
    "[]": (1, "is not a JSON object"),
    '{"uri": "s3://data/v1/x.jpg"}': (1, "has no `url`"),
    '{"url": "http://data/v1/x.jpg"}': (10, "is not an object-store URL"),
    '{"url": "s3://data/v1/../x.jpg"}': (10, "contains `..`"),
    '{"url": "s3://data/v1//x.jpg"}': (10, "contains an empty directory name"),
    '{"url": "s3://data/v1/x\\n.jpg"}': (2, "contains a control character"),
    '{"url": "s3://data/v1/' + "x" * 1100 + '"}': (10, "bytes; object stores allow 1,024"),
    '{"url": "s3://data/' + "x/" * 2500 + '"}': (10, "has 5,010 characters; the limit is 4,096"),
    '{"url": "s3://other/v1/x.jpg"}': (10, "is in a different bucket"),
    '{"url": "s3://data/v1/x.jpg", "size": -1}': (39, "is not a number of bytes"),
    '{"url": "s3://data/v1/x.jpg", "size": true}': (39, "is not a number of bytes"),
    '{"url": "s3://data/v1/x.jpg", "size": 1.5}': (39, "is not a number of bytes"),
    '{"url": "s3://data/v1/x.jpg", "sha256": "12"}': (42, "is not 64 lowercase hex digits"),
    '{"url": "s3://data/v1/x.jpg", "md5": null}': (38, "is not 32 lowercase hex digits"),
    '{"url": "s3://data/v1/x.jpg", "etag": 5}': (39, "is not a text"),
    '{"url": "s3://data/v1/x.jpg", "labels": ["cat"]}': (41, "are not a JSON object"),
    '{"url": "s3://data/v1/x.jpg", "x": "' + "y" * MAX_LINE + '"}': (1, "is longer than 64 KiB"),
    '{"url": "s3://data/v1/a.jpg"}': (1, "lists the same object as line 1"),
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: line[:60])
def test_a_bad_line_is_named_by_line_and_column(tmp_path: Path, avactl: Run, line: str) -> None:
    column, message = BAD[line]
    good = ['{"url": "s3://data/v1/a.jpg"}', "", '{"url": "s3://data/v1/b.jpg", "labels": {"class": 1}, "more": []}']
    (tmp_path / "m.jsonl").write_text("\n".join([*good, line, '{"url": "s3://data/v1/c.jpg"}']))
    done = avactl("dataset", "verify", "m.jsonl", "--format", "json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["counts"] == {"manifest-line": 1}
    (problem,) = found["problems"]
    assert (problem["code"], problem["line"], problem["column"]) == ("manifest-line", 4, column)
    assert message in problem["message"]
    assert len(problem["message"]) < 500
    assert problem["hint"]


def test_the_text_shows_the_place_and_the_remedy(tmp_path: Path, avactl: Run) -> None:
    manifest(tmp_path / "m.jsonl", {"url": URL % "a", "size": 10}, {"url": URL % "b", "size": "10"})
    done = avactl("dataset", "verify", "m.jsonl")
    assert done.returncode == 1
    assert done.stdout == (
        "error[manifest-line]: the `size` of line 2 is not a number of bytes: `10`\n"
        "  --> m.jsonl:2:33\n"
        '2 | {"url":"s3://data/v1/b","size":"10"}\n'
        "  |                                 ^^\n"
        '  = help: write each line as `{"url": "s3://bucket/path", "size": 1024, "labels": {"class": "cat"}}`\n'
        "\nm.jsonl: 1 object, 10 B\n1 bad line\n"
    )


def test_a_good_manifest(tmp_path: Path, avactl: Run) -> None:
    manifest(tmp_path / "m.jsonl", {"url": URL % "b", "size": 1500}, {"url": URL % "a"}, {"url": "s3://data/w"})
    done = avactl("dataset", "verify", "m.jsonl")
    assert (done.returncode, done.stdout) == (0, "m.jsonl: 3 objects, 1.5 kB, 2 without a size\nok\n"), done.stderr


def test_objects_outside_of_the_prefix(tmp_path: Path, avactl: Run) -> None:
    manifest(tmp_path / "m.jsonl", {"url": "s3://data/v10/a"}, {"url": URL % "a"})
    done = avactl("dataset", "verify", "m.jsonl", "--prefix", "s3://data/v1/", "--format", "github")
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=m.jsonl,line=1,col=9")
    assert "is not below s3://data/v1" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_files_that_are_not_manifests(tmp_path: Path, avactl: Run) -> None:
    (tmp_path / "empty").write_text("\n\n")
    done = avactl("dataset", "verify", "empty")
    assert (done.returncode, "the manifest lists no objects" in done.stdout) == (1, True)
    for name in ("nowhere", "."):
        done = avactl("dataset", "verify", name)
        assert done.returncode == 2
        assert done.stderr.startswith(f"avactl: {name}: ")


@pytest.mark.parametrize("shuffled", [False, True])
def test_duplicates_are_found_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, avactl: Run, shuffled: bool
) -> None:
    urls = [URL % f"{number:06}" for number in range(3000)]
    urls[2500:2500] = [urls[7], urls[7]]
    if shuffled:
        random.Random(3).shuffle(urls)
    manifest(tmp_path / "m.jsonl", *({"url": url} for url in urls))
    places = [number for number, url in enumerate(urls, 1) if url == URL % "000007"]
    done = avactl("dataset", "verify", "m.jsonl", "--format", "json")
    assert done.returncode == 1
    problems = json.loads(done.stdout)["problems"]
    assert [problem["line"] for problem in problems] == places[1:]
    assert all(f"line {places[0]}: {URL % '000007'}" in problem["message"] for problem in problems)


def test_many_problems_are_counted(tmp_path: Path, avactl: Run) -> None:
    (tmp_path / "m.jsonl").write_text("x\n" * 1234)
    done = avactl("dataset", "verify", "m.jsonl")
    assert len(re.findall("^error", done.stdout, re.MULTILINE)) == 100
    assert done.stdout.endswith("… and 1,134 more\n\nm.jsonl: 0 objects, 0 B\n1,234 bad lines\n")


# -- the store -----------------------------------------------------------------------------------------------------


def test_a_version_that_did_not_change(tmp_path: Path, s3: str, put: Put, avactl: Run) -> None:
    put({**OBJECTS, "v2/x": b"other"})
    path = snapshot(avactl, s3, tmp_path / "m.jsonl", "--checksum")
    manifest(path, *reversed(lines(path)))
    for option, told in (("--store", "agree\n"), ("--content", "agree, content of 5 too\n")):
        done = avactl("dataset", "verify", "m.jsonl", option, "--endpoint", s3)
        assert (done.returncode, done.stdout) == (0, f"m.jsonl: 5 objects, 15 B\ns3://data/v1: 5 objects {told}ok\n")


def test_a_version_that_changed(tmp_path: Path, s3: str, put: Put, avactl: Run) -> None:
    store = put(OBJECTS)
    path = snapshot(avactl, s3, tmp_path / "m.jsonl")
    manifest(path, *(entry for entry in lines(path) if not str(entry["url"]).endswith("/b.jpg")))
    store.write("v1/a.jpg", b"a")
    store.write("v1/c.jpg", b"CCC")
    store.write("v1/d.jpg", OBJECTS["v1/d.jpg"])
    with path.open("ab") as file:
        file.write(b'{"url": "s3://data/v1/z.jpg"}\n')
    done = avactl("dataset", "verify", "m.jsonl", "--store", "--endpoint", s3, "--format", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    problems = {(each["code"], each["line"]): each["message"] for each in found["problems"]}
    assert problems == {
        ("object-changed", 1): "a.jpg has 3 bytes in the manifest, and 1 in s3://data/v1",
        ("object-unlisted", 1): "b.jpg is in s3://data/v1, and not in the manifest",
        ("object-changed", 2): "c.jpg was written again: its ETag was "
        f"{hashlib.md5(b'ccc').hexdigest()}, and is {hashlib.md5(b'CCC').hexdigest()}",
        ("object-missing", 5): "z.jpg is not in s3://data/v1",
    }
    assert found["counts"] == {"object-changed": 2, "object-missing": 1, "object-unlisted": 1}
    assert all("version" in each["hint"] for each in found["problems"])


def test_content_that_was_damaged(tmp_path: Path, avactl: Run) -> None:
    data = fill(tmp_path / "data", {"a": b"aaa", "b": b"bbb", "c": b"ccc"})
    avactl("dataset", "snapshot", "data", "--checksum", "-o", "m.jsonl")
    (data / "b").write_bytes(b"bbB")
    assert avactl("dataset", "verify", "m.jsonl", "--store").returncode == 0
    done = avactl("dataset", "verify", "m.jsonl", "--content")
    assert done.returncode == 1
    assert "b has other content: its SHA256 was 3e744b9d" in done.stdout
    assert done.stdout.endswith(f"{data}: 2 objects agree, content of 2 too\n1 changed\n")


def test_content_without_a_checksum(tmp_path: Path, s3: str, put: Put, avactl: Run) -> None:
    put(OBJECTS)
    path = snapshot(avactl, s3, tmp_path / "m.jsonl")
    done = avactl("dataset", "verify", "m.jsonl", "--content", "--endpoint", s3)
    assert "content of 5 too\nok\n" in done.stdout, "the ETag of a simple upload is its MD5"
    manifest(path, *({**entry, "etag": f"{entry['etag']}-2"} for entry in lines(path)))
    done = avactl("dataset", "verify", "m.jsonl", "--content", "--endpoint", s3)
    assert done.returncode == 1
    assert "5 changed" in done.stdout
    manifest(path, *({"url": entry["url"], "size": entry["size"]} for entry in lines(path)))
    done = avactl("dataset", "verify", "m.jsonl", "--content", "--endpoint", s3)
    assert done.returncode == 0
    assert "5 objects without a checksum: only sizes were compared" in done.stdout


def test_a_copy(tmp_path: Path, s3: str, put: Put, avactl: Run) -> None:
    put(OBJECTS)
    snapshot(avactl, s3, tmp_path / "m.jsonl", "--checksum")
    copy = fill(tmp_path / "copy", {key.removeprefix("v1/"): content for key, content in OBJECTS.items()})
    done = avactl("dataset", "verify", "m.jsonl", "--content", "--at", str(copy))
    assert (done.returncode, "content of 5 too" in done.stdout) == (0, True), done.stderr
    (copy / "e.jpg").write_bytes(b"ee")
    done = avactl("dataset", "verify", "m.jsonl", "--at", str(copy))
    assert (done.returncode, f"e.jpg has 3 bytes in the manifest, and 2 in {copy}" in done.stdout) == (1, True)


# -- size ----------------------------------------------------------------------------------------------------------

_WATCHED = """
import pathlib, runpy, sys
sys.argv = ["avactl", *sys.argv[1:]]
try:
    runpy.run_module("avactl.cli.main", run_name="__main__")
finally:
    status = pathlib.Path("/proc/self/status").read_text()
    print(status.partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("count", [300_000, pytest.param(5_000_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow(tmp_path: Path, count: int, shuffled: bool) -> None:
    path = tmp_path / "m.jsonl"
    with path.open("w") as file:
        for number in range(count):
            key = number * 7_368_787 % count if shuffled else number
            file.write(f'{{"url":"s3://data/v1/train/n{key:08}/{key:08}.jpg","size":{key},"etag":"{key:032x}"}}\n')
        file.write('{"url":"s3://data/v1/train/n00000000/00000000.jpg"}\n')
    command = [sys.executable, "-c", _WATCHED, "dataset", "verify", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert f"{count + 1:,} objects" in done.stdout
    assert f"line {count + 1} lists the same object as line 1:" in done.stdout
    assert int(done.stderr.split()[-1]) * 1024 < 200e6
