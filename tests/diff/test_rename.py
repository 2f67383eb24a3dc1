"""Which vanished spec is which new one."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

import pytest

from avactl.compiler.rename import Candidate, content_leaves, match_renames
from tests.work import calls

SPEC = {
    "image": "x:1",
    "command": ["python", "train.py", "--lr", "0.1"],
    "cluster": "train",
    "strategy": "allReduce",
    "workers": {"replicas": 4, "gpus": 8, "cpu": "64", "memory": "512Gi"},
    "retries": 3,
}


def spec(key: str, data: Any = SPEC, group: str = "TrainingJob") -> Candidate:
    return Candidate(key, group, content_leaves(data, key))


def test_equal_content() -> None:
    assert match_renames([spec("old")], [spec("new")]) == {"new": "old"}


def test_nearly_equal_content() -> None:
    assert match_renames([spec("old")], [spec("new", {**SPEC, "retries": 5})]) == {"new": "old"}


def test_what_is_different_is_no_rename() -> None:
    other = {**SPEC, "image": "y:1", "command": ["a", "b"], "workers": {"replicas": 1, "gpus": 1}}
    assert match_renames([spec("old")], [spec("new", other)]) == {}


def test_another_group_is_no_rename() -> None:
    assert match_renames([spec("old")], [spec("new", group="Workspace")]) == {}


def test_values_that_follow_the_name() -> None:
    one = {"path": "s3://b/old", "image": "x", "a": 1}
    assert match_renames([spec("old", one)], [spec("new", {**one, "path": "s3://b/new"})]) == {"new": "old"}


def test_small_specs_must_be_equal() -> None:
    small = {"gpu": "V100", "guaranteed": 8, "borrow": 2}
    assert match_renames([spec("old", small)], [spec("new", {**small, "borrow": 3})]) == {}
    assert match_renames([spec("old", small)], [spec("new", small)]) == {"new": "old"}


def test_nothing_says_nothing() -> None:
    assert match_renames([spec("old", {})], [spec("new", {})]) == {}
    assert match_renames([spec("old", {"a": 1})], [spec("new", {"a": 1})]) == {}


def test_of_equals_the_nearest_names_decide() -> None:
    old, new = [spec(f"train-{n}") for n in "abc"], [spec(f"exp-train-{n}") for n in "abc"]
    assert match_renames(old, new) == {f"exp-train-{n}": f"train-{n}" for n in "abc"}


def test_where_names_do_not_decide_nothing_is_paired() -> None:
    assert match_renames([spec("xa"), spec("xb")], [spec("xc")]) == {}


def test_the_better_match_wins() -> None:
    near, nearer = {**SPEC, "retries": 5, "image": "x:2"}, {**SPEC, "retries": 5}
    assert match_renames([spec("old")], [spec("far", near), spec("close", nearer)]) == {"close": "old"}


def test_the_order_of_the_input_does_not_matter() -> None:
    old = [spec(f"o{n}", {**SPEC, "retries": n}) for n in range(20)]
    new = [spec(f"n{n}", {**SPEC, "retries": n}) for n in range(20)]
    expected = match_renames(old, new)
    assert expected == {f"n{n}": f"o{n}" for n in range(20)}
    for seed in range(5):
        random.Random(seed).shuffle(old)
        random.Random(seed + 100).shuffle(new)
        assert match_renames(old, new) == expected


@pytest.mark.parametrize("same", [True, False])
def test_many_renames_are_little_work(same: bool) -> None:
    def specs(prefix: str) -> list[Candidate]:
        return [spec(f"{prefix}{n}", {**SPEC, "image": "x:1" if same else f"x:{n}"}) for n in range(300)]

    old, new = specs("old"), specs("new")
    found: dict[Hashable, Hashable] = {}
    assert calls(lambda: found.update(match_renames(old, new))) < 60 * 300 * 300  # a pair
    assert len(found) == (64 if same else 300)  # a value that more specs share tells nothing apart
