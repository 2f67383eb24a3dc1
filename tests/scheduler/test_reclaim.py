"""Who gives way to whom on a real API server: with the daemon's own rights, crashes and all."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.scheduler.world import SYSTEM, World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"


@pytest.fixture
def teams(world: World) -> Iterator[World]:
    """Two machines: the test's own namespace is guaranteed both, the namespace `NAME-guest` may borrow them."""
    guest = f"{world.namespace}-guest"
    world.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": guest}})
    world.kube.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": guest}}
    )
    for team, namespace, guaranteed, borrow in (("owner", world.namespace, 16, 0), ("guest", guest, 0, 16)):
        gpus = [{"gpu": "V100", "guaranteed": guaranteed, "borrow": borrow, "weight": 1}]
        data = {"version": 1, "team": team, "namespaces": [namespace], "gpus": gpus, "shapes": []}
        world.config(f"avactl-quota-{team}", "quota", data)
    for node in ("a", "b"):
        world.node(node)
    world.ready()
    yield world
    for team in ("owner", "guest"):
        world.kube.delete("v1", "ConfigMap", f"avactl-quota-{team}", SYSTEM)
    world.kube.request("DELETE", f"/api/v1/namespaces/{guest}/pods", body={"gracePeriodSeconds": 0})
    world.kube.delete("v1", "Namespace", guest)


@contextmanager
def guest(world: World) -> Iterator[World]:
    """The other team's namespace."""
    own = world.namespace
    world.namespace = f"{own}-guest"
    try:
        yield world
    finally:
        world.namespace = own


def finalizers(world: World, name: str, wanted: list[str] | None) -> None:
    """kwok's kubelet ends pods at once; a finalizer keeps them as a long grace period would."""
    metadata = {"name": name, "namespace": world.namespace, "finalizers": wanted}
    world.kube.patch({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})


def note(world: World, name: str, key: str, value: str) -> None:
    metadata = {"name": name, "namespace": world.namespace, "annotations": {key: value}}
    world.kube.patch({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})


def old_and_young(world: World) -> None:
    """Two pods of 8 GPUs, of different age as the API server tells it, in seconds."""
    for name in ("old", "young"):
        world.pod(name, 8)
        world.bound(name)
        time.sleep(1.1)


def lend(world: World) -> None:
    """The guest runs an elastic gang of two, one of them surplus, and later a pod."""
    with guest(world):
        world.gang("elastic", 2, gpus=4, size=1)
        world.bound()
        world.pod("young", 8)
        world.bound()


def test_a_guarantee_comes_back_elastic_surplus_first(teams: World) -> None:
    teams.start()
    lend(teams)
    teams.pod("first", 4)
    teams.bound("first")
    with guest(teams):
        assert set(teams.pods()) == {"elastic-0", "young"}
        (event,) = teams.wait_events("Preempted", 1)
        assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Pod", "elastic-1")
        assert event["note"] == (
            f"Preempted for {teams.namespace.removesuffix('-guest')}/first: "
            "team guest borrowed GPUs guaranteed to team owner"
        )
    teams.pod("second", 8)
    teams.bound("second")
    with guest(teams):
        assert set(teams.pods()) == {"elastic-0"}
    held_once(teams)


def test_victims_end_in_peace_and_nobody_takes_their_place(teams: World) -> None:
    teams.start()
    with guest(teams):
        old_and_young(teams)
        finalizers(teams, "young", ["example.com/slow"])
        note(teams, "young", IGNORED_FAILURES, "5")
    teams.pod("mine", 8)
    assert "8 more GPUs when pod" in teams.waiting("mine", "quota reclaim")
    teams.wait(lambda: teams.pods()["mine"]["status"].get("nominatedNodeName"))
    with guest(teams):
        teams.pod("thief", 8)
        teams.waiting("thief")
        teams.wait(lambda: "deletionTimestamp" in teams.pods()["young"]["metadata"])
        young = teams.pods()["young"]
        (condition,) = [each for each in young["status"]["conditions"] if each["type"] == "DisruptionTarget"]
        assert condition["reason"] == "PreemptionByScheduler"
        # Its Job is not to wait the longer the more often it was preempted.
        assert IGNORED_FAILURES not in young["metadata"]["annotations"]
        assert "deletionTimestamp" not in teams.pods()["old"]["metadata"]
        finalizers(teams, "young", None)
    teams.bound("mine")
    with guest(teams):
        assert not teams.nodes_of()["thief"]
        assert len(teams.wait_events("Preempted", 1)) == 1


def interrupted(teams: World) -> None:
    """A unit waits for a victim that takes its time."""
    with guest(teams):
        old_and_young(teams)
        finalizers(teams, "young", ["example.com/slow"])
    teams.pod("mine", 8)
    with guest(teams):
        teams.wait(lambda: "deletionTimestamp" in teams.pods()["young"]["metadata"])


def finished(teams: World) -> None:
    """The unit got its place, and it was made once."""
    teams.bound("mine")
    with guest(teams):
        assert "old" in teams.pods()
        assert not teams.nodes_of()["thief"]
        assert len(teams.events("Preempted")) <= 1


def test_killed_between_eviction_and_binding(teams: World) -> None:
    first = teams.start()
    interrupted(teams)
    teams.kill(first)
    teams.free_lease()
    with guest(teams):
        # Gone while nobody looked; and somebody wants the place.
        finalizers(teams, "young", None)
        teams.pod("thief", 8)
    teams.start()
    finished(teams)


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["stopped", "killed"])
def test_a_second_replica_takes_over_in_the_middle(teams: World, killed: bool) -> None:
    first = teams.start()
    interrupted(teams)
    teams.start()
    if killed:
        teams.kill(first)
    else:
        first.terminate()
    with guest(teams):
        teams.pod("thief", 8)
        teams.waiting("thief")
        finalizers(teams, "young", None)
    finished(teams)


def test_a_service_that_a_budget_protects_is_spared(teams: World) -> None:
    teams.start()
    with guest(teams):
        budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
        metadata = {"name": "kept", "namespace": teams.namespace}
        teams.kube.create(
            {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": budget}
        )
        for name in ("free", "kept"):
            teams.pod(name, 8, labels={"app": name}, priorityClassName="avactl-serving")
            teams.bound(name)
            time.sleep(1.1)
    teams.pod("mine", 8)
    teams.bound("mine")
    with guest(teams):
        assert set(teams.pods()) == {"kept"}


def test_inside_of_a_team_services_and_priorities_take_gangs_whole(world: World) -> None:
    for node in ("a", "b"):
        world.node(node)
    world.ready()
    world.start()
    world.gang("train", 2, gpus=4)
    world.bound()
    world.pod("sure", 8, notes={"avactl.dev/preemptible": "false"}, priorityClassName="avactl-low")
    world.bound("sure")
    # Nobody goes where it would not help.
    world.gang("large", 2, gpus=8)
    assert "needs 2 machines" in world.waiting("large-0")
    world.pod("service", 4, priorityClassName="avactl-serving")
    world.bound("service")
    assert {name for name, node in world.nodes_of().items() if node} == {"sure", "service"}
    preempted = world.wait_events("Preempted", 2)
    assert sorted(event["regarding"]["name"] for event in preempted) == ["train-0", "train-1"]


def job(world: World, name: str, pods: int, gpus: int, gang: int = 0) -> None:
    """A Job: whoever is evicted comes back."""
    resources = {"cpu": "1", "nvidia.com/gpu": str(gpus)}
    metadata = {"labels": {"avactl.dev/gang": name}, "annotations": {"avactl.dev/gang-size": str(gang)}} if gang else {}
    container: dict[str, Any] = {"name": "main", "image": "registry.example.com/x:1"}
    container |= {"resources": {"requests": resources, "limits": {"nvidia.com/gpu": str(gpus)}}}
    pod = {"schedulerName": "avactl", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    spec = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "podReplacementPolicy": "Failed"}
    template = {"metadata": metadata, "spec": {**pod, "containers": [container]}}
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    world.kube.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": world.namespace},
            "spec": {**spec, "podFailurePolicy": {"rules": [ignore]}, "template": template},
        }
    )


def held_once(teams: World) -> None:
    """Every GPU has at most one holder, of whatever team."""
    held: dict[tuple[str, int], str] = {}
    pods = list(teams.pods().values())
    with guest(teams):
        pods += teams.pods().values()
    for pod in pods:
        for gpu in teams.devices_of(pod):
            place = (pod["spec"]["nodeName"], gpu)
            assert place not in held, f"{pod['metadata']['name']} and {held[place]} hold GPU {gpu} of {place[0]}"
            held[place] = pod["metadata"]["name"]


def crashes(teams: World, kills: int) -> None:
    """Borrowers come back again and again, and the daemon dies again and again: guarantees are met in the end."""
    for node in ("c", "d"):
        teams.node(node)
    teams.ready()
    chance = random.Random(11)
    with guest(teams):
        job(teams, "loose", 4, 4)
        job(teams, "whole", 2, 8, gang=2)
    starts = [("one", 4), ("two", 8), ("three", 4)]
    for number in range(kills):
        daemon = teams.start("--gang-grace", "3")
        if number < len(starts):
            teams.pod(*starts[number])
        time.sleep(chance.uniform(0.7, 2.0))
        teams.kill(daemon)
        teams.free_lease()
        held_once(teams)
    teams.start("--gang-grace", "3")
    teams.bound()

    def settled() -> bool:
        with guest(teams):
            nodes = teams.nodes_of()
            running = [name for name, node in nodes.items() if node and name.startswith("whole")]
            return len(nodes) == 6 and len(running) in (0, 2)

    teams.wait(settled)
    held_once(teams)
    with guest(teams):
        # 16 of 32 GPUs are the owner's: the rest is borrowed again, but never by a part of the gang.
        assert len(teams.events("Preempted")) <= 12


def test_killed_again_and_again_while_it_makes_room(teams: World) -> None:
    crashes(teams, kills=3)


@pytest.mark.slow
def test_killed_thirty_times_while_it_makes_room(teams: World) -> None:
    crashes(teams, kills=30)
