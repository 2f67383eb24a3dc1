"""Pods compare what they have copied with what was published: the real scripts, the real rclone, an S3 service."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from avactl.contracts.delivery import VersionLineage
from avactl.daemons.delivery import publish
from avactl.datasets.stores.opening import open_store
from avactl.program.dataset_listing import copy_list, parse
from avactl.program.lowering.pods import FETCH_MODEL_SCRIPT, FETCH_SCRIPT, listed_script
from tests.datasets.conftest import KEYS, bucket, environment, s3  # noqa: F401 - fixtures

MODEL = {"config.pbtxt": b"name: 'ranker'", "1/weights of a model.bin": os.urandom(100_000), "1/empty": b""}


def fetched(
    target: Path,
    endpoint: str,
    script: str = FETCH_MODEL_SCRIPT,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run the init container's script."""
    target.mkdir(exist_ok=True)
    env = {
        "PATH": os.environ["PATH"],
        "SOURCE": "s3://data/published/7",
        "TARGET": str(target),
        "BACKEND": "s3",
        "RCLONE_S3_PROVIDER": "AWS",
        "RCLONE_S3_ENDPOINT": endpoint,
        "RCLONE_CONFIG": "/notfound",
        "RCLONE_S3_ACCESS_KEY_ID": KEYS["AWS_ACCESS_KEY_ID"],
        "HOME": str(target),
        "RCLONE_S3_SECRET_ACCESS_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
        **more,
    }
    return subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=False)


@pytest.mark.needs("rclone")
def test_a_model_with_another_checksum_is_not_served(tmp_path: Path, s3: str, bucket: str) -> None:  # noqa: F811
    source, version = open_store(f"{bucket}/training/7", s3), open_store(f"{bucket}/published/7", s3)
    for name, content in MODEL.items():
        source.write(f"export/{name}", content)
    publish.stage_version(source, version, "export")
    publish.seal_version(version, VersionLineage())
    done = fetched(tmp_path / "good", s3)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "good" / "1" / "weights of a model.bin").read_bytes() == MODEL["1/weights of a model.bin"]
    # Same size, other content.
    version.write("1/weights of a model.bin", os.urandom(100_000))
    done = fetched(tmp_path / "bad", s3)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "error: s3://data/published/7: a file has another checksum than when it was published"
    assert not list((tmp_path / "bad").iterdir())
    # Once the store has the right one, the next attempt of the container succeeds.
    version.write("1/weights of a model.bin", MODEL["1/weights of a model.bin"])
    assert fetched(tmp_path / "bad", s3).returncode == 0


@pytest.mark.needs("rclone")
def test_a_missing_file_and_models_without_checksums(tmp_path: Path, s3: str, bucket: str) -> None:  # noqa: F811
    version = open_store(f"{bucket}/published/7", s3)
    version.write("model.bin", b"1")
    assert fetched(tmp_path / "plain", s3).returncode == 0
    version.write("manifest.sha256", b"%s  gone.bin\n" % (b"0" * 64))
    assert fetched(tmp_path / "missing", s3).returncode == 1


@pytest.mark.needs("rclone")
def test_pods_copy_exactly_the_objects_of_a_manifest(tmp_path: Path, s3: str, bucket: str) -> None:  # noqa: F811
    """Random versions of one directory: what is copied is what is listed, whatever lies beside it."""
    rng = random.Random(9)
    store = open_store(f"{bucket}/clips", s3)
    names = [
        "a/1.mp4",
        "a/1.mp4.txt",
        "a/b/1.mp4",
        "b/#1;[x]{y}*?.mp4",
        "b/-rf",
        "b/$HOME",
        "b/猫.mp4",
        "c/%20.mp4",
        "1",
    ]
    content = {name: rng.randbytes(rng.choice((0, 10, 5000))) for name in names}
    for name, data in content.items():
        store.write(name, data)
    for turn in range(6):
        chosen = rng.sample(names, rng.randrange(1, len(names)))
        lines = []
        for name in chosen:
            entry: dict[str, object] = {"url": f"s3://data/clips/{name}", "labels": {"n": turn}}
            if rng.random() < 0.5:
                entry["sha256"] = hashlib.sha256(content[name]).hexdigest()
            lines.append(json.dumps(entry))
        listing = parse("v.jsonl", "\n".join(lines).encode())
        assert not listing.problems
        lists = tmp_path / f"list{turn}"
        lists.mkdir()
        for key, text in copy_list(listing).items():
            (lists / key).write_text(text)
        target = tmp_path / f"data{turn}"
        done = fetched(target, s3, listed_script(FETCH_SCRIPT), SOURCE=listing.prefix, LIST=str(lists), HOME=str(lists))
        assert done.returncode == 0, done.stderr
        copied = {
            path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()
        }
        prefix = listing.prefix.removeprefix("s3://data/clips").lstrip("/")
        assert copied == {name[len(prefix) :].lstrip("/"): content[name] for name in chosen}


@pytest.mark.needs("rclone")
@pytest.mark.parametrize("change", ["gone", "other content", "as listed"])
def test_an_object_that_is_not_as_listed(tmp_path: Path, s3: str, bucket: str, change: str) -> None:  # noqa: F811
    store = open_store(f"{bucket}/clips", s3)
    entries = []
    for name in ("1.mp4", "2.mp4"):
        store.write(name, name.encode())
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        entries.append(json.dumps({"url": f"s3://data/clips/{name}", "sha256": sha256}))
    if change == "gone":
        entries.append(json.dumps({"url": "s3://data/clips/3.mp4"}))
    elif change == "other content":
        store.write("2.mp4", b"other")
    lists = tmp_path / "list"
    lists.mkdir()
    for key, text in copy_list(parse("v.jsonl", "\n".join(entries).encode())).items():
        (lists / key).write_text(text)
    script = listed_script(FETCH_SCRIPT)
    done = fetched(tmp_path / "data", s3, script, SOURCE="s3://data/clips", LIST=str(lists), HOME=str(lists))
    assert done.returncode == (0 if change == "as listed" else 1)
    if change == "gone":
        assert done.stderr.strip().endswith("error: s3://data/clips/3.mp4: there is no such object")
