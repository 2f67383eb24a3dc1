"""Comparisons of manifests, and lists."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from avactl.datasets.ordering import sort_lines
from avactl.datasets.stores.remote import RemoteStore
from tests.cli.running import Run
from tests.datasets.conftest import fill, lines, manifest

Put = Callable[[Mapping[str, bytes]], RemoteStore]


def versions(tmp_path: Path, shuffled: bool = False) -> None:
    """Two versions in different directories."""
    old = [
        {"url": "s3://b/v1/same", "size": 10, "sha256": "0" * 64},
        {"url": "s3://b/v1/by-size", "size": 11},
        {"url": "s3://b/v1/gone", "size": 2000},
        {"url": "s3://b/v1/grew", "size": 10, "etag": "x"},
        {"url": "s3://b/v1/other", "size": 10, "sha256": "1" * 64, "etag": "x"},
        {"url": "s3://b/v1/label", "size": 10, "etag": "y", "labels": {"class": "cat"}},
    ]
    new = [
        {"url": "s3://b/v2/same", "size": 10, "sha256": "0" * 64, "etag": "z"},
        {"url": "s3://b/v2/by-size", "size": 11},
        {"url": "s3://b/v2/new", "size": 30},
        {"url": "s3://b/v2/grew", "size": 12_000, "etag": "x"},
        {"url": "s3://b/v2/other", "size": 10, "sha256": "2" * 64, "etag": "x"},
        {"url": "s3://b/v2/label", "size": 10, "etag": "y", "labels": {"class": "dog"}},
    ]
    for side in (old, new):
        side.sort(key=lambda entry: str(entry["url"]))
        if shuffled:
            random.Random(1).shuffle(side)
    manifest(tmp_path / "v1.jsonl", *old)
    manifest(tmp_path / "v2.jsonl", *new)


TEXT = """\
s3://b/v1 → s3://b/v2
- gone                                                          2.0 kB
~ grew                                                          10 B → 12.0 kB
~ label                                                         class: cat → dog
+ new                                                           30 B
~ other                                                         10 B, other content
added                  1  30 B
removed                1  2.0 kB
changed                2  20 B → 12.0 kB
relabeled              1  10 B
unchanged              2  21 B
1 object without checksums: only sizes were compared
"""


def test_two_versions(tmp_path: Path, avactl: Run) -> None:
    for shuffled in (False, True):
        versions(tmp_path, shuffled)
        done = avactl("dataset", "diff", "v1.jsonl", "v2.jsonl")
        assert (done.returncode, done.stdout) == (0, TEXT), done.stderr
    assert avactl("dataset", "diff", "v1.jsonl", "v2.jsonl", "--exit-code").returncode == 4
    done = avactl("dataset", "diff", "v1.jsonl", "v1.jsonl", "--exit-code")
    assert (done.returncode, done.stdout.splitlines()[1:2]) == (0, ["unchanged              6  2.1 kB"])


def test_json(tmp_path: Path, avactl: Run) -> None:
    versions(tmp_path)
    found = json.loads(avactl("dataset", "diff", "v1.jsonl", "v2.jsonl", "--format", "json").stdout)
    assert [(change["kind"], change["path"]) for change in found["changes"]] == [
        ("removed", "gone"),
        ("changed", "grew"),
        ("relabeled", "label"),
        ("added", "new"),
        ("changed", "other"),
    ]
    assert found["changes"][2]["new"]["labels"] == {"class": "dog"}
    assert found["totals"]["changed"] == {"objects": 2, "old": 20, "new": 12_010}
    assert (found["old"], found["new"], found["comparedBySize"]) == ("s3://b/v1/", "s3://b/v2/", 1)
    found = json.loads(avactl("dataset", "diff", "v1.jsonl", "v1.jsonl", "--format", "json").stdout)
    assert found["changes"] == []


def test_a_part_is_compared_with_the_whole(tmp_path: Path, avactl: Run) -> None:
    whole = [{"url": f"s3://b/v1/{name}", "size": 1} for name in ("a/x", "b/x", "b/y")]
    manifest(tmp_path / "whole.jsonl", *whole)
    manifest(tmp_path / "part.jsonl", *whole[1:])
    done = avactl("dataset", "diff", "whole.jsonl", "part.jsonl")
    assert done.stdout.splitlines()[0] == "s3://b/v1"
    assert done.stdout.splitlines()[1].split() == ["-", "a/x", "1", "B"]


def test_only_the_first_changes_are_shown(tmp_path: Path, avactl: Run) -> None:
    for name, begin in (("v1", 0), ("v2", 500)):
        manifest(tmp_path / f"{name}.jsonl", *({"url": f"s3://b/v/{n:04}"} for n in range(begin, begin + 1000)))
    done = avactl("dataset", "diff", "v1.jsonl", "v2.jsonl", "--limit", "3").stdout.splitlines()
    assert [line.split()[0] for line in done[1:5]] == ["-", "-", "-", "…"]
    assert done[4] == "… and 997 more (`--limit 0` shows all)"
    assert [line.split()[:2] for line in done[5:8]] == [["added", "500"], ["removed", "500"], ["unchanged", "500"]]
    assert len(avactl("dataset", "diff", "v1.jsonl", "v2.jsonl", "--limit", "0").stdout.splitlines()) == 1005


def test_a_bad_line_stops_a_comparison(tmp_path: Path, avactl: Run) -> None:
    versions(tmp_path)
    for line, told in (("[]", "line 7 is not a JSON object"), ('{"url": "s3://b/v1/gone"}', "line 7 lists the same")):
        (tmp_path / "bad.jsonl").write_text((tmp_path / "v1.jsonl").read_text() + line)
        done = avactl("dataset", "diff", "bad.jsonl", "v2.jsonl")
        assert done.returncode == 1
        assert told in done.stderr
        assert "`avactl dataset verify bad.jsonl`" in done.stderr


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.integers(0, 9)), max_size=60), st.integers(1, 5))
def test_sorting_in_runs_is_sorting(items: list[tuple[bytes, int]], size: int) -> None:
    keyed = [(key.hex().encode(), number, b"{}") for key, number in items]
    import avactl.datasets.ordering as ordering

    limits = ordering._BATCH_LINES, ordering._MAX_RUNS
    ordering._BATCH_LINES, ordering._MAX_RUNS = size, 2
    try:
        assert list(sort_lines(iter(keyed))) == sorted(keyed)
    finally:
        ordering._BATCH_LINES, ordering._MAX_RUNS = limits


# -- lists ---------------------------------------------------------------------------------------------------------


def test_lists_of_a_manifest(tmp_path: Path, avactl: Run) -> None:
    names = ["train/cat/1.jpg", "train/cat/1.txt", "train/dog/2.jpg", "val/cat/3.jpg"]
    fill(tmp_path / "data", dict.fromkeys(names, b"x" * 1500))
    avactl("dataset", "snapshot", "data", "--url", "s3://b/v1", "--labels", "split/class", "-o", "m.jsonl")
    done = avactl("dataset", "ls", "m.jsonl", "--label", "class=cat", "--match", "*.jpg")
    assert done.stdout == (
        "    1.5 kB  train/cat/1.jpg  split=train  class=cat\n"
        "    1.5 kB  val/cat/3.jpg  split=val  class=cat\n"
        "2 objects, 3.0 kB in s3://b/v1\nclass: cat 2\nsplit: train 1, val 1\n"
    )
    done = avactl("dataset", "ls", "m.jsonl", "--summary", "--label", "class=cat", "--label", "class=dog")
    assert done.stdout == "4 objects, 6.0 kB in s3://b/v1\nclass: cat 3, dog 1\nsplit: train 3, val 1\n"
    done = avactl("dataset", "ls", "m.jsonl", "--match", "train/*", "--exclude", "*.txt", "--format", "jsonl")
    (tmp_path / "part.jsonl").write_text(done.stdout)
    assert [entry["url"] for entry in lines(tmp_path / "part.jsonl")] == [
        "s3://b/v1/train/cat/1.jpg",
        "s3://b/v1/train/dog/2.jpg",
    ]
    assert avactl("dataset", "verify", "part.jsonl").returncode == 0
    done = avactl("dataset", "ls", "m.jsonl", "--label", "cat")
    assert (done.returncode, "write `--label class=cat`" in done.stderr) == (2, True)


def test_lists_of_a_prefix_and_of_a_directory(tmp_path: Path, s3: str, put: Put, avactl: Run) -> None:
    put({"v1/a": b"x", "v1/b": b"yy"})
    done = avactl("dataset", "ls", "s3://data/v1", "--endpoint", s3)
    assert done.stdout == "       1 B  a\n       2 B  b\n2 objects, 3 B in s3://data/v1\n"
    fill(tmp_path / "data", {"a\u202e##[error]b": b"x"})
    done = avactl("dataset", "ls", "data")
    assert done.stdout == f"       1 B  a\ufffd# [error]b\n1 object, 1 B in file://{tmp_path}/data\n"


def test_labels_with_many_values(tmp_path: Path, avactl: Run) -> None:
    entries = ({"url": f"s3://b/v/{n}", "labels": {"id": n, "ok": True}} for n in range(30))
    manifest(tmp_path / "m.jsonl", *entries)
    done = avactl("dataset", "ls", "m.jsonl", "--summary")
    first, ids, ok = done.stdout.splitlines()
    assert first == "30 objects, 0 B (30 without a size) in s3://b/v"
    assert ids.endswith(", 19 1, 10 with other values")
    assert ok == "ok: true 30"


def test_other_labels_on_each_line(tmp_path: Path, avactl: Run) -> None:
    manifest(tmp_path / "m.jsonl", *({"url": f"s3://b/v/{n}", "labels": {f"id-{n:03}": 1}} for n in range(101)))
    done = avactl("dataset", "ls", "m.jsonl", "--summary")
    _, *labels, last = done.stdout.splitlines()
    assert (labels[0], labels[-1], len(labels)) == ("id-000: 1 1", "id-099: 1 1", 100)
    assert last == "more than 100 labels: only the first 100 are counted"
