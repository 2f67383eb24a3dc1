"""Pods that should, or must, run where the cache holds a part of their datasets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from avactl.contracts.names import GANG_LABEL
from avactl.contracts.pod_annotations import DATA_LOCALITY, GANG_SIZE
from tests.scheduler.memory import Memory
from tests.scheduler.test_cached_datasets import IMAGENET, status, told

REQUIRE = {DATA_LOCALITY.name: json.dumps({"require": [IMAGENET]})}
PREFER = {DATA_LOCALITY.name: json.dumps({"prefer": [IMAGENET]})}


def memory(machines: int = 4, **more: Any) -> Memory:
    return Memory(machines, daemon=True, **more)


def holding(**shares: float) -> dict[str, Any]:
    return status(100, holders=shares)


def test_a_preferred_node_is_the_one_that_holds_most() -> None:
    plain = memory()
    plain.pod("vision", "train", 8)
    assert told(plain, holding(n2=0.1, n3=0.6)) == ""
    assert plain.where() == {"train": "n0"}
    local = memory()
    local.pod("vision", "train", 8, notes=PREFER)
    assert told(local, holding(n2=0.1, n3=0.6)) == ""
    assert local.where() == {"train": "n3"}


def test_who_prefers_runs_elsewhere_rather_than_not() -> None:
    busy = memory(2)
    busy.pod("vision", "other", 8, notes=PREFER)
    busy.pod("vision", "train", 8, notes=PREFER)
    assert told(busy, holding(n1=1.0)) == ""
    assert busy.where() == {"other": "n1", "train": "n0"}


def test_who_requires_waits_for_a_node_with_a_part_and_says_so() -> None:
    waiting = memory(3)
    waiting.pod("vision", "train", 8, notes=REQUIRE)
    words = "waits for a node with a part of dataset imagenet v3"
    assert told(waiting) == f"{words}: the cache daemon has not reported anything yet"
    assert told(waiting, status(0)) == f"{words}: 0%"
    assert told(waiting, holding(n2=0.01)) == ""
    assert waiting.where() == {"train": "n2"}


def test_a_full_node_is_waited_for_until_another_one_holds_a_part() -> None:
    full = memory(3)
    full.pod("vision", "first", 8, notes=REQUIRE)
    full.pod("vision", "train", 8, notes=REQUIRE)
    assert "2 without a part of its datasets in the cache" in told(full, holding(n1=1.0))
    assert "2 without a part of its datasets in the cache" in told(full, holding(n1=0.9))
    assert told(full, holding(n1=0.9, n2=0.1)) == ""
    assert full.where() == {"first": "n1", "train": "n2"}


@pytest.mark.parametrize(("notes", "nodes"), [(REQUIRE, {"n1", "n3"}), (PREFER, {"n1", "n3"}), ({}, {"n0", "n1"})])
def test_a_gang_is_placed_by_it_as_a_whole(notes: dict[str, str], nodes: set[str]) -> None:
    gang = memory()
    gang.gang("vision", "train", 2, 8, notes=notes)
    gang.datasets.put(holding(n1=0.5, n3=0.5))
    gang.settle()
    assert set(gang.where().values()) == nodes


def test_a_gang_that_prefers_more_than_there_is_starts_all_the_same() -> None:
    gang = memory(3)
    gang.gang("vision", "train", 3, 8, notes=PREFER)
    gang.datasets.put(holding(n1=1.0))
    gang.settle()
    assert len(gang.where()) == 3


def test_a_gang_that_requires_more_than_there_is_waits() -> None:
    gang = memory(3)
    gang.gang("vision", "train", 2, 8, notes=REQUIRE)
    gang.datasets.put(holding(n1=1.0))
    gang.settle()
    assert gang.where() == {}
    assert "without a part of its datasets in the cache" in gang.said["train-0"]


def test_members_of_a_gang_are_not_exchanged_if_only_some_require_data() -> None:
    """Equal members exchange places, so that their ranks are neighbours."""
    for position in range(3):
        gang = memory(3)
        size = {GANG_SIZE.name: "3"}
        for index in range(3):
            notes = size if index == position else {**size, **REQUIRE}
            gang.pod("vision", f"train-{index}", 8, notes, {GANG_LABEL: "train"})
        gang.datasets.put(holding(n1=0.5, n2=0.5))
        gang.settle()
        assert gang.where()[f"train-{position}"] == "n0"


def test_what_others_hold_is_not_told() -> None:
    other = memory()
    other.pod("vision", "train", 8, notes=REQUIRE)
    assert told(other, status(100, claims=["ads"], holders={"n3": 1.0})).endswith("no such dataset for this namespace")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"require": []}',
        '{"require": ["a/b"]}',
        '{"wish": ["a/b/c"]}',
        '{"prefer": [1]}',
        '{"prefer": ["a/b/c"], "require": ["a/b/c"]}',
        json.dumps({"prefer": [f"a/b/{n}" for n in range(17)]}),
    ],
)
def test_an_invalid_annotation_is_the_pods_own_problem(text: str) -> None:
    odd = memory()
    odd.pod("vision", "odd", 1, notes={DATA_LOCALITY.name: text})
    odd.pod("vision", "train", 8)
    assert told(odd) == ""
    assert odd.said["odd"].startswith(f"annotation {DATA_LOCALITY.name}: ")


def test_shares_of_nodes_that_are_gone_change_nothing() -> None:
    gone = memory()
    gone.pod("vision", "train", 8, notes=PREFER)
    assert told(gone, holding(n9=1.0)) == ""
    assert gone.where() == {"train": "n0"}
