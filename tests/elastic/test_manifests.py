"""Datasets from manifests of `avactl dataset`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import avactl_worker
import pytest
from avactl_worker import ManifestError
from avactl_worker.manifest import Manifest

from tools.elastic import ElasticJob


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Any]:
    with (
        ElasticJob(tmp_path, workers=0, records=1, records_per_task=1) as job,
        avactl_worker.connect(job.address) as master,
    ):
        yield master


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines))
    return path


def test_each_line_of_a_snapshot_is_a_record(tmp_path: Path, master: Any) -> None:
    objects = [{"url": f"s3://b/{index:03}.jpg", "labels": {"class": "ö" * (index % 7)}} for index in range(100)]
    manifest = write(tmp_path / "v3.jsonl", *objects[:40], "", *objects[40:])
    data = master.dataset("train", manifest=manifest, records_per_task=7, seed=1)
    found = [entry for task in data for entry in task.file[task.start : task.end]]
    assert sorted(found, key=lambda each: each["url"]) == objects
    assert found != objects
    again = master.dataset("valid", manifest=manifest, records_per_task=30)
    assert [len(batch) for batch in again.batches(32)] == [32, 32, 32, 4]


def test_the_shards_of_a_pack_are_files(tmp_path: Path, master: Any) -> None:
    manifest = write(
        tmp_path / "manifest.jsonl",
        {"url": "s3://b/shards/0.tfrecord", "size": 99, "records": 12},
        {"url": "s3://b/shards/0.tfrecord.idx", "size": 9},
        {"url": "s3://b/shards/1.tfrecord", "size": 50, "records": 5},
    )
    data = master.dataset("train", manifest=manifest, records_per_task=10)
    assert [(task.file[-10:], task.start, task.end) for task in data] == [
        ("0.tfrecord", 0, 10),
        ("0.tfrecord", 10, 12),
        ("1.tfrecord", 0, 5),
    ]


def test_workers_need_the_same_manifest(tmp_path: Path, master: Any) -> None:
    first = write(tmp_path / "a.jsonl", {"url": "s3://b/1"}, {"url": "s3://b/2"})
    same = write(tmp_path / "b.jsonl", {"url": "s3://b/1"}, {"url": "s3://b/2"})
    other = write(tmp_path / "c.jsonl", {"url": "s3://b/1"}, {"url": "s3://b/3"})
    master.dataset("train", manifest=first)
    master.dataset("train", manifest=same)
    with pytest.raises(avactl_worker.MasterError, match="all workers must register the same"):
        master.dataset("train", manifest=other)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"url": s3}', r"line 2 is not JSON: Expecting value: line 1 column 9 \(char 8\)"),
        ('{"url": "s3://b/1"', "line 2 is not JSON: Expecting ',' delimiter"),
        ("[]", "line 2 is not an object with a `url`: "),
        ('{"size": 1}', "line 2 is not an object with a `url`: "),
        ('{"url": "s3://b/1", "records": 0}', "the `records` of line 2 are not a positive number: 0"),
        ('{"url": "s3://b/1", "records": true}', "the `records` of line 2 are not a positive number: True"),
        ("x" * 70_000, "line 2 is longer than 64 KiB"),
        ("[" * 60_000, "line 2 is nested too deeply"),
    ],
    ids=["word", "cut", "list", "no url", "no records", "bool", "long", "deep"],
)
def test_bad_lines(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ManifestError, match=f"bad.jsonl: {message}"):
        Manifest(write(tmp_path / "bad.jsonl", {"url": "s3://b/0"}, line))


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"none.jsonl: no such file or directory"):
        Manifest(tmp_path / "none.jsonl")
    with pytest.raises(ManifestError, match=r"empty.jsonl lists no objects"):
        Manifest(write(tmp_path / "empty.jsonl", ""))
