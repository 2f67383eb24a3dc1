"""How files are cut into tasks, and the order of an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avactl.daemons.elastic.definition import MAX_TASKS, Definition, DefinitionError, check_definition


def definition(counts: list[int], records_per_task: int = 10, **changes: Any) -> Definition:
    values: dict[str, Any] = {"epochs": 1, "seed": None, "after": "", "timeout": 0.0, "name": "train"}
    values |= changes
    return check_definition(digest=b"d" * 32, counts=counts, records_per_task=records_per_task, **values)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20).filter(any), st.integers(1, 60))
def test_tasks_cover_each_record_once(counts: list[int], size: int) -> None:
    cut = definition(counts, size)
    found = [cut.task(index) for index in range(cut.tasks)]
    records = [(task.file, record) for task in found for record in range(task.start, task.end)]
    assert records == [(file, record) for file, count in enumerate(counts) for record in range(count)]
    assert all(task.end - task.start <= size for task in found)
    assert cut.records == sum(counts)


@given(st.integers(1, 500), st.integers(0, 2**63 - 1), st.integers(0, 5))
def test_the_order_is_a_permutation_that_follows_from_seed_and_epoch(tasks: int, seed: int, epoch: int) -> None:
    cut = definition([tasks], 1, seed=seed)
    order = cut.order(epoch)
    assert order is not None
    assert sorted(order.tolist()) == list(range(tasks))
    again = definition([tasks], 1, seed=seed).order(epoch)
    assert again is not None
    assert order == again


def test_the_order_never_changes_between_versions() -> None:
    order = definition([8], 1, seed=7).order(2)
    assert order is not None
    assert order.tolist() == [6, 7, 1, 3, 4, 5, 0, 2]


def test_epochs_have_different_orders() -> None:
    cut = definition([1000], 1, seed=1)
    first, second = cut.order(0), cut.order(1)
    assert first is not None
    assert second is not None
    assert not np.array_equal(first, second)
    assert definition([1000], 1).order(0) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "no spaces"}, "dataset 'no spaces': a name has 1 to 63 letters"),
        ({"name": "x" * 64}, "a name has 1 to 63 letters"),
        ({"counts": []}, "0 files"),
        ({"counts": [0, 0]}, "has no records"),
        ({"counts": [5, -1]}, "negative"),
        ({"counts": [2**50, 1]}, "the sum is over"),
        ({"counts": [MAX_TASKS + 1], "records_per_task": 1}, "raise records_per_task"),
        ({"records_per_task": 0}, "records_per_task is 0; it must be at least 1"),
        ({"epochs": 0}, "0 epochs; 1 to"),
        ({"epochs": 1, "after": "other"}, "1 epochs; an evaluation has none"),
        ({"epochs": 0, "after": "train"}, "cannot be evaluated after itself"),
        ({"seed": -1}, "seed is -1"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": -1.0}, "timeout is -1.0"),
    ],
)
def test_values_out_of_bounds(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError) as error:
        definition(**{"counts": [10], **changes})
    assert message in str(error.value)
