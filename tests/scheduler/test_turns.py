"""Units that wait: each has its turn before others have a second one, equal ones wait as one, and none is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.scheduler.constraints import pod_topology
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.scheduling_queue import MAX_STALE_ENTRIES, QueuedPodGroup, SchedulingQueue
from tests.scheduler.memory import Memory

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"


def add(queue: SchedulingQueue, name: str, created: int, namespace: str = "a") -> QueuedPodGroup:
    """A unit that has not been tried."""
    item = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
        },
        "spec": {"containers": []},
        "status": {},
    }
    unit = queue.units[name] = QueuedPodGroup(name, gang=False)
    unit.add(PodInfo(item, 0.0))
    queue.push(unit)
    return unit


def pop(queue: SchedulingQueue) -> str:
    """The key of the next unit; empty: there is none."""
    unit = queue.pop()
    return "" if unit is None else unit.key


def near(**labels: str) -> dict[str, Any]:
    """Required affinity to pods with labels."""
    return {"podAffinity": {REQUIRED: [{"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME}]}}


def test_a_unit_that_comes_later_has_its_turn_before_older_ones_have_another() -> None:
    queue = SchedulingQueue()
    queue.mark_unschedulable(add(queue, "old", 1), "old")
    add(queue, "new", 2)
    queue.retry(1)
    assert pop(queue) == "old"
    queue.mark_unschedulable(queue.units["old"], "old")
    assert queue.retrying, "the new one has not been tried"
    assert pop(queue) == "new"
    assert not queue.retrying


def test_deferred_units_that_are_removed_leave_nothing_behind() -> None:
    queue = SchedulingQueue()
    queue.defer(add(queue, "deferred", 1))
    queue.drop("deferred")
    other = add(queue, "other", 2, "b")
    for _ in range(MAX_STALE_ENTRIES + 10):  # until stale entries are dropped
        queue.push(other)
    assert pop(queue) == "other"
    assert queue.pop_deferred() is None
    assert not queue.deferred


def test_deferred_units_have_their_turn_before_older_ones_of_their_namespace() -> None:
    queue = SchedulingQueue()
    queue.mark_unschedulable(add(queue, "old", 1), "old")
    queue.mark_unschedulable(add(queue, "other", 1, "b"), "other")
    new = add(queue, "new", 2)
    assert queue.pop() is new
    queue.defer(new)
    queue.retry(1)
    assert [pop(queue), pop(queue)] == ["other", ""], "namespaces without deferred units do not wait"
    queue.readmit("a")
    assert queue.retrying
    assert [pop(queue), pop(queue), pop(queue)] == ["new", "old", ""]


def test_a_group_left_out_is_retried_once_the_deferred_units_were_tried() -> None:
    queue = SchedulingQueue()
    queue.mark_unschedulable(add(queue, "old", 1), "old")
    for name in ("new", "newer"):
        unit = add(queue, name, 2)
        assert queue.pop() is unit
        queue.defer(unit)
    queue.retry(1)
    for name in ("new", "newer"):
        assert pop(queue) == ""
        deferred = queue.pop_deferred()
        assert deferred is queue.units[name]
        queue.mark_unschedulable(queue.units[name], name)
    assert [pop(queue), pop(queue)] == ["old", ""], "and only this one: nothing was freed since"


def test_equal_pods_with_constraints_wait_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(machines=1)
    for number in range(5):
        memory.pod("ads", f"waits-{number}", labels={"app": "web"}, affinity=near(app="cache"))
    memory.pod("ads", "other", labels={"app": "batch"}, affinity=near(app="cache"))
    memory.settle()
    assert memory.where() == {}
    tried: list[str] = []
    decide = memory.cycle.decide

    def record(unit: QueuedPodGroup) -> None:
        tried.append(unit.key)
        decide(unit)

    monkeypatch.setattr(memory.cycle, "decide", record)
    memory.queue.retry(memory.cache.tables.change_epoch)
    memory.decide()
    assert len(tried) == 2
    memory.pod("ads", "cache", labels={"app": "cache"})
    memory.settle()
    assert len(memory.where()) == 7


def test_pods_whose_tally_was_dropped_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_topology, "MAX_TALLIES", 2)
    memory = Memory(machines=1)
    for number in range(4):
        memory.pod("ads", f"waits-{number}", affinity=near(app=str(number)))
    memory.settle()
    for number in range(4):
        memory.pod("ads", f"app-{number}", labels={"app": str(number)})
        memory.decide()
        tables = memory.cache.tables
        assert memory.queue.retried != tables.change_epoch, f"waits-{number} is not tried again"
        memory.queue.retry(tables.change_epoch)
        memory.decide()
        assert f"waits-{number}" in memory.where()


def test_pods_are_counted_by_any_selector() -> None:
    terms: dict[str, dict[str, Any]] = {
        "labels": {"labelSelector": {"matchLabels": {"app": "db", "tier": "one"}}},
        "in": {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db"]}]}},
        "some": {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "y"]}]}},
        "exists": {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
        "not": {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}},
        "namespaces": {"labelSelector": {"matchLabels": {"app": "db"}}, "namespaces": [f"n{i}" for i in range(20)]},
        "every": {"labelSelector": {"matchLabels": {"app": "db"}}, "namespaceSelector": {}},
        "none": {},
        "elsewhere": {"labelSelector": {"matchLabels": {"app": "db"}}, "namespaces": ["n2"]},
        "value": {"labelSelector": {"matchLabels": {"app": "web"}}},
    }
    memory = Memory(machines=1)
    memory.cache.tables.put_namespace("n1", {})
    for name, term in terms.items():
        affinity = {"podAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, **term}]}}
        # A first pod that matches its own affinity may go anywhere.
        memory.pod("n1", name, labels={"app": "x"} if name == "not" else {}, affinity=affinity)
    memory.settle()
    assert memory.where() == {}
    memory.pod("n1", "db", labels={"app": "db", "tier": "one"})
    memory.settle()
    assert sorted(terms.keys() - memory.where().keys()) == ["elsewhere", "none", "value"]
