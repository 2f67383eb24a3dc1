"""Elastic jobs on spot machines: the fewest workers stay off them, the others go there first."""

from __future__ import annotations

from typing import Any

from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE, SPOT_FROM
from tests.scheduler.memory import Memory

SPOT = {"key": names.CAPACITY, "value": names.SPOT, "effect": "NoSchedule"}
PREFERRED = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": names.CAPACITY, "operator": "In", "values": [names.SPOT]}]},
}


def machines(*kinds: str) -> Memory:
    """Machines of four CPUs, named after their capacity."""
    world = Memory(machines=0)
    for number, kind in enumerate(kinds):
        labels, spec = ({names.CAPACITY: names.SPOT}, {"taints": [SPOT]}) if kind == "spot" else ({}, {})
        amounts = {"cpu": "4", "memory": "64Gi", "pods": "110"}
        node = {"metadata": {"name": f"{kind}-{number}", "labels": labels}, "spec": spec}
        world.cache.put_node({**node, "status": {"allocatable": amounts}})
    return world


def workers(world: Memory, least: int, most: int, spot_from: str) -> None:
    notes = {GANG_SIZE.name: str(least), SPOT_FROM.name: spot_from}
    for index in range(most):
        indexed = {**notes, "batch.kubernetes.io/job-completion-index": str(index)}
        asked: dict[str, Any] = {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            "tolerations": [{**SPOT, "operator": "Equal"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERRED]}},
        }
        world.pod("team", f"job-worker-{index}", 0, indexed, labels={names.GANG_LABEL: "job"}, **asked)
    world.settle()


def test_surplus_workers_go_to_spot_machines_first() -> None:
    world = machines("firm", "spot")
    workers(world, 2, 7, "2")
    found = world.where()
    assert [found[f"job-worker-{index}"] for index in (0, 1)] == ["firm-0", "firm-0"]
    spots = [found.get(f"job-worker-{index}") for index in range(2, 7)]
    assert sorted(map(str, spots)) == ["firm-0", *["spot-1"] * 4]


def test_the_fewest_wait_rather_than_run_on_spot_machines() -> None:
    world = machines("spot", "spot")
    workers(world, 2, 4, "2")
    assert world.where() == {}


def test_what_a_member_writes_in_the_annotation_never_raises() -> None:
    for text in ("", "-1", "9" * 5000, "two", "٣"):
        world = machines("spot")
        workers(world, 1, 1, text)
        assert set(world.where().values()) <= {"spot-0"}
