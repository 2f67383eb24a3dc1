"""Elastic jobs with a job master, without GPUs: surplus workers come and go, the first of each role stays."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE
from tests.scheduler.memory import Memory

INDEX = "batch.kubernetes.io/job-completion-index"
SERVING: dict[str, Any] = {"priority": 30_000, "priorityClassName": names.SERVING_PRIORITY}


@pytest.fixture
def world() -> Memory:
    """One machine of eight CPUs, full of an elastic job: a small master, and seven workers of at least two."""
    world = Memory(machines=0)
    amounts = {"cpu": "7500m", "memory": "64Gi", "pods": "110"}
    world.cache.put_node({"metadata": {"name": "n0", "labels": {}}, "status": {"allocatable": amounts}})
    elastic(world)
    world.settle()
    assert set(world.where()) == {"job-master-0", *(f"job-worker-{index}" for index in range(7))}
    return world


def elastic(world: Memory, *roles: str, first: int = 0) -> None:
    """The pods of the job, or those of some roles."""
    notes = {GANG_SIZE.name: "3"}
    labels = {names.GANG_LABEL: "job"}
    for role, count, cpu in (("master", 1, "100m"), ("worker", 7, "1")):
        for index in range(first, count) if role in (roles or ("master", "worker")) else ():
            indexed = {**notes, "batch.kubernetes.io/job-completion-index": str(index)}
            world.pod("team", f"job-{role}-{index}", 0, indexed, labels=labels, containers=[container(cpu)])


def container(cpu: str) -> dict[str, Any]:
    return {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}


def service(world: Memory, name: str, cpu: str = "1") -> None:
    world.pod("team", name, containers=[container(cpu)], **SERVING)
    world.settle()


def test_surplus_workers_go_one_by_one(world: Memory) -> None:
    for number in range(5):
        service(world, f"service-{number}")
        assert [each.pod.name for each in world.evictions[-1].victims] == [f"job-worker-{6 - number}"]
        assert world.evictions[-1].victims[0].why == "elastic"
        world.go()
        world.settle()
    assert set(world.where()) == {*(f"service-{n}" for n in range(5)), "job-master-0", "job-worker-0", "job-worker-1"}


def test_several_at_once_do_not_wait_for_each_other(world: Memory) -> None:
    for number in range(3):
        service(world, f"service-{number}")
    victims = [each.pod.name for eviction in world.evictions for each in eviction.victims]
    assert sorted(victims) == ["job-worker-4", "job-worker-5", "job-worker-6"]


def test_what_needs_more_than_the_surplus_stops_the_whole_job(world: Memory) -> None:
    service(world, "large", "6500m")
    assert len(world.evictions) == 1
    assert {each.pod.name for each in world.evictions[0].victims} == {
        "job-master-0",
        *(f"job-worker-{index}" for index in range(7)),
    }


def test_workers_come_back_when_the_service_ends(world: Memory) -> None:
    service(world, "service")
    world.go()
    elastic(world, "worker", first=6)
    world.settle()
    assert "job-worker-6" not in world.where()
    world.drop("team", "service")
    world.settle()
    assert "job-worker-6" in world.where()


@pytest.mark.parametrize("role", ["master", "worker"])
def test_the_first_of_a_role_comes_back_before_anything_else(world: Memory, role: str) -> None:
    """Although more than `min` run, and even where others have taken its place meanwhile."""
    world.drop("team", f"job-{role}-0")
    world.pod("team", "thief", containers=[container("1400m" if role == "worker" else "450m")])
    world.settle()
    assert "thief" in world.where()
    notes = {GANG_SIZE.name: "3", "batch.kubernetes.io/job-completion-index": "0"}
    cpu = "1" if role == "worker" else "100m"
    world.pod("team", f"job-{role}-0", 0, notes, labels={names.GANG_LABEL: "job"}, containers=[container(cpu)])
    world.settle()
    assert [each.pod.name for eviction in world.evictions for each in eviction.victims] == ["job-worker-6"]
    world.go()
    world.settle()
    assert f"job-{role}-0" in world.where()


SLOW = {"state": {"terminated": {"exitCode": names.REPLACED_EXIT, "reason": "Error"}}}


def replaced(world: Memory, name: str, job: str = "job", **status: Any) -> None:
    """A pod ends because it was slow, and the Job controller makes another one of the same index."""
    item = world.items[f"team/{name}"]
    item["status"] |= {"phase": "Failed", "containerStatuses": [{"name": "main", **(status or SLOW)}]}
    world.pod_handler.put(item)
    notes = {key: item["metadata"]["annotations"][key] for key in (GANG_SIZE.name, INDEX)}
    world.pod("team", f"{name}-again", 0, notes, labels={names.GANG_LABEL: job}, containers=[container("1")])


def machines(count: int, job: str = "job", workers: int = 3) -> Memory:
    """An elastic job on machines of eight CPUs in one rack, all of its workers on the first one that was filled."""
    world = Memory(machines=0)
    for number in range(count):
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        metadata = {"name": f"n{number}", "labels": {"example.com/block": "b", "example.com/rack": f"r{number}"}}
        world.cache.put_node({"metadata": metadata, "status": {"allocatable": amounts}})
    gang(world, job, workers)
    world.settle()
    return world


def gang(world: Memory, job: str, workers: int, size: int = 1) -> None:
    for index in range(workers):
        notes = {GANG_SIZE.name: str(size), INDEX: str(index)}
        world.pod("team", f"{job}-{index}", 0, notes, labels={names.GANG_LABEL: job}, containers=[container("1")])


@pytest.mark.parametrize("restarted", [False, True])
def test_the_node_of_a_replaced_worker_is_avoided(restarted: bool) -> None:
    world = machines(2)
    (node,) = set(world.where().values())
    replaced(world, "job-2")
    if restarted:
        world = world.restart()
    world.settle()
    assert world.where()["job-2-again"] not in (node, "")


def test_the_node_of_a_failed_health_check_is_avoided() -> None:
    """By the whole gang of an all-reduce job, of which the other pods run."""
    world = machines(2)
    (node,) = set(world.where().values())
    item = world.items["team/job-2"]
    item["status"] |= {"initContainerStatuses": [{"name": "health-check", **SLOW}]}
    replaced(world, "job-2", state={"waiting": {"reason": "PodInitializing"}})
    world.settle()
    assert world.where()["job-2-again"] not in (node, "")


def test_a_worker_that_ended_otherwise_comes_back_to_its_node() -> None:
    world = machines(2)
    (node,) = set(world.where().values())
    replaced(world, "job-2", state={"terminated": {"exitCode": 1}})
    world.settle()
    assert world.where()["job-2-again"] == node


def test_the_node_is_used_where_no_other_fits() -> None:
    world = machines(1)
    replaced(world, "job-2")
    world.settle()
    assert world.where()["job-2-again"] == "n0"


def test_a_whole_gang_avoids_the_node_too() -> None:
    """The first pod of a gang whose pods must run together, all of which are made again."""
    world = machines(2)
    (node,) = set(world.where().values())
    replaced(world, "job-2")
    world.drop("team", "job-0", "job-1", "job-2-again")
    for index in range(2):
        notes = {GANG_SIZE.name: "2", INDEX: str(index)}
        world.pod("team", f"new-{index}", 0, notes, labels={names.GANG_LABEL: "job"}, containers=[container("1")])
    world.settle()
    where = world.where()
    assert {where["new-0"], where["new-1"]} == {"n0", "n1"} - {node}


def test_other_jobs_do_not_avoid_the_node() -> None:
    world = machines(2)
    (node,) = set(world.where().values())
    replaced(world, "job-2")
    world.settle()
    gang(world, "other", 1)
    world.settle()
    assert world.where()["other-0"] == node


def test_the_node_is_avoided_no_longer_than_the_job_exists() -> None:
    world = machines(2)
    (node,) = set(world.where().values())
    replaced(world, "job-2")
    world.drop("team", "job-2", "job-2-again")
    assert not len(world.cache.tables.failed)
    notes = {GANG_SIZE.name: "1", INDEX: "2"}
    world.pod("team", "job-2", 0, notes, labels={names.GANG_LABEL: "job"}, containers=[container("1")])
    world.settle()
    assert world.where()["job-2"] == node
