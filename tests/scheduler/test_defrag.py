"""`avactl defrag`: what it proposes, and that it is done as it was proposed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client
from avactl.scheduler.defrag import planner
from avactl.scheduler.defrag.planner import DefragPlan, NoPlanError
from avactl.scheduler.inspection.cluster_view import ClusterView
from tests import forked
from tests.scheduler import offline, test_dra
from tests.scheduler.test_dra import dra
from tests.scheduler.world import SYSTEM, World
from tools.waiting import patience

__all__ = ["dra"]


def saved(name: str, gpus: int, node: str, devices: str, every: str = "900", **more: Any) -> dict[str, Any]:
    """A pod of a Job with checkpoints."""
    pod = offline.pod(name, gpus, node, devices, checkpoint_every=every, **more)
    pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "x", "uid": "x", "controller": True}]
    pod["status"]["startTime"] = "2026-01-01T00:00:00Z"
    return pod


def view(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> ClusterView:
    seen = ClusterView(Client(ClusterAccess("http://nobody", None, lambda: "")), SYSTEM)
    seen.cache.put_pool(offline.pool())
    for item in nodes:
        seen.cache.put_node(item)
    for item in pods:
        seen.put_pod(item)
    seen.fresh()
    return seen


def plan(seen: ClusterView, name: str) -> DefragPlan:
    return planner.for_unit(seen, planner.unit_of(seen, "vision", name))


NODES = [offline.node("a"), offline.node("b"), offline.node("c")]
BUSY = [
    saved("a1", 2, "a", "0,1", job="small"),
    saved("b1", 2, "b", "0,1"),
    saved("b2", 2, "b", "2,3"),
    offline.pod("c1", 4, "c", "0,1,2,3"),
]


def test_the_fewest_moves_make_room() -> None:
    seen = view(NODES, [*BUSY, offline.pod("big", 8)])
    made = plan(seen, "big")
    assert [(move.pod.name, move.source, move.job) for move in made.moves] == [("a1", "a", "vision/small")]
    assert made.moves[0].target in ("b", "c")
    assert made.moves[0].lost == 900
    assert list(made.places.values()) == ["a"]
    # Nothing was changed by asking.
    assert plan(seen, "big") == made
    assert not plan(view(NODES, [*BUSY, offline.pod("fits", 4)]), "fits").moves


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"preemptible": "false"}, "not preemptible"),
        ({"every": ""}, "without checkpoints"),
        ({"within": "topology.kubernetes.io/rack"}, "restricted by other pods"),
    ],
)
def test_who_does_not_allow_it_is_not_moved(change: dict[str, str], why: str) -> None:
    fixed = saved("a1", 2, "a", "0,1", **({"every": "900"} | change))
    fixed["metadata"]["labels"]["avactl.dev/gang"] = "fixed"
    seen = view([offline.node("a"), offline.node("b")], [fixed, *BUSY[1:3], offline.pod("big", 8)])
    assert [move.source for move in plan(seen, "big").moves] == ["b", "b"]
    with pytest.raises(NoPlanError, match=f"1 pod may not: 1 {why}"):
        plan(view([offline.node("a"), offline.node("b", unschedulable=True)], [fixed, offline.pod("big", 8)]), "big")


def test_pods_that_nobody_makes_anew_stay() -> None:
    alone = saved("a1", 2, "a", "0,1")
    del alone["metadata"]["ownerReferences"]
    with pytest.raises(NoPlanError, match="1 of no Job"):
        plan(view(NODES[:1], [alone, offline.pod("big", 8)]), "big")


def test_a_gang_is_given_machines_by_index_and_its_own_pods_stay() -> None:
    gang = []
    for number in range(2):
        pod = offline.pod(f"train-{number}", 8, gang_size="2")
        pod["metadata"]["labels"]["avactl.dev/gang"] = "train"
        gang.append(pod)
    seen = view(NODES, [BUSY[0], *gang, saved("c1", 2, "c", "0,1")])
    made = plan(seen, "train")
    assert len(made.moves) == 1
    assert len(set(made.places.values())) == 2
    assert made.moves[0].target not in made.places.values()
    with pytest.raises(NoPlanError, match="1 pods of its gang do not exist yet"):
        plan(view(NODES, gang[:1]), "train")


def test_no_moves_help_a_pod_that_is_refused() -> None:
    with pytest.raises(NoPlanError, match=r"annotation avactl\.dev/link: `nvlnik` is not one of"):
        plan(view(NODES, [*BUSY, offline.pod("odd", 8, link="nvlnik")]), "odd")


def test_room_for_pods_that_do_not_exist() -> None:
    seen = view([*NODES, offline.node("d", unschedulable=True)], BUSY)
    made = planner.for_request(seen, planner.request(seen, 8, "A100"), 1)
    assert [move.source for move in made.moves] == ["a"]
    with pytest.raises(NoPlanError, match="no moves can free enough capacity: needs 3 machines with 8 free A100"):
        planner.for_request(seen, planner.request(seen, 8, "A100"), 3)
    with pytest.raises(NoPlanError, match="has no job nobody"):
        planner.unit_of(seen, "vision", "nobody")


# -- in a cluster ------------------------------------------------------------------------------------------------------


def job(world: World, name: str, gpus: int, claims: str = "") -> None:
    """One pod with checkpoints that is made anew. A ReplicaSet: of a Job's pod a kubelet says how it ended."""
    amounts = {"cpu": "1"} if claims else {"cpu": "1", "nvidia.com/gpu": str(gpus)}
    asked = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": claims}]} if claims else {}
    main = {"name": "main", "image": "registry.example.com/x:1", "resources": {"requests": amounts, "limits": amounts}}
    labels = {"batch.kubernetes.io/job-name": name}
    template = {
        "metadata": {"labels": labels, "annotations": {"avactl.dev/checkpoint-every": "900"}},
        "spec": {"schedulerName": "avactl", "terminationGracePeriodSeconds": 0, "containers": [main], **asked},
    }
    metadata = {"name": name, "namespace": world.namespace}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    world.kube.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec})


def nodes_of(world: World, *jobs: str) -> dict[str, str]:
    """Where the pods of jobs are that are not ending."""
    found = {}
    for pod in world.pods().values():
        name = (pod["metadata"].get("labels") or {}).get("batch.kubernetes.io/job-name", pod["metadata"]["name"])
        if name in jobs and "deletionTimestamp" not in pod["metadata"]:
            found[name] = pod["spec"].get("nodeName", "")
    return found


def defrag(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["defrag", *arguments, "-n", world.namespace, "--kubeconfig", str(world.plane.kubeconfig)])


@pytest.fixture
def crowded(world: World) -> Iterator[World]:
    """Three machines with a job of 2 GPUs on each of them: enough is free for two whole machines, and none is whole."""
    for name in ("a", "b", "c"):
        world.node(name)
    world.ready()
    world.start()
    jobs = ("one", "two", "three")
    for name in jobs:
        job(world, name, 2)
        world.wait(lambda name=name: nodes_of(world, name).get(name))  # type: ignore[misc]
        # The next one finds this machine full.
        world.pod(f"filler-{name}", 6)
        world.bound(f"filler-{name}")
    for name in jobs:
        world.kube.delete("v1", "Pod", f"filler-{name}", world.namespace)
    world.wait(lambda: not any(name.startswith("filler") for name in world.pods()))
    assert len(set(nodes_of(world, *jobs).values())) == 3
    yield world
    # They would make their pods anew on the machines of the next test.
    path = f"/apis/apps/v1/namespaces/{world.namespace}/replicasets"
    world.kube.request("DELETE", path, body={"propagationPolicy": "Foreground"})
    world.wait(lambda: not nodes_of(world, *jobs))


@pytest.mark.controlplane
@pytest.mark.xdist_group("scheduler")
def test_moves_are_made_only_on_yes_and_make_room_for_all_of_a_gang(crowded: World) -> None:
    jobs = ("one", "two", "three")
    crowded.gang("train", 2)
    crowded.waiting("train-1", "needs 2 machines with 8 free GPUs; only 0 available")
    before = nodes_of(crowded, *jobs)
    proposed = defrag(crowded, "train")
    assert proposed.returncode == 0, proposed.stderr
    assert "2 moves (4 GPUs) free capacity on" in proposed.stdout
    assert "nothing was changed; `--yes` applies the moves" in proposed.stdout
    assert nodes_of(crowded, *jobs) == before
    done = defrag(crowded, "train", "--yes", "--timeout", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    gang = {crowded.nodes_of()[f"train-{number}"] for number in range(2)}
    assert len(gang) == 2
    assert f"the job is placed on {', '.join(sorted(gang))}" in done.stdout
    # What was moved does not come back to where it was.
    crowded.wait(lambda: len(nodes_of(crowded, *jobs)) == 3 and all(nodes_of(crowded, *jobs).values()))
    assert set(nodes_of(crowded, *jobs).values()) == {"a", "b", "c"} - gang


@pytest.mark.controlplane
@pytest.mark.xdist_group("scheduler")
def test_pods_with_claims_are_moved_too(dra: World) -> None:
    for name in ("a", "b"):
        test_dra.machine(dra, name)
    dra.ready()
    dra.start()
    two, six, eight = (test_dra.template(dra, gpus) for gpus in (2, 6, 8))
    job(dra, "one", 2, two)
    dra.wait(lambda: nodes_of(dra, "one").get("one"))
    test_dra.pod(dra, "filler", six)
    dra.bound("filler")
    job(dra, "two", 2, two)
    dra.wait(lambda: nodes_of(dra, "two").get("two"))
    dra.kube.delete("v1", "Pod", "filler", dra.namespace)
    test_dra.pod(dra, "big", eight)
    dra.waiting("big")
    done = defrag(dra, "big", "--yes", "--timeout", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 move (2 GPUs) free capacity on" in done.stdout
    dra.wait(lambda: all(nodes_of(dra, "one", "two").values()))
    assert len({*nodes_of(dra, "one", "two").values(), dra.nodes_of()["big"]}) == 2
    assert dra.nodes_of()["big"] not in nodes_of(dra, "one", "two").values()
    path = f"/apis/apps/v1/namespaces/{dra.namespace}/replicasets"
    dra.kube.request("DELETE", path, body={"propagationPolicy": "Foreground"})
    dra.wait(lambda: not nodes_of(dra, "one", "two"))


@pytest.mark.controlplane
@pytest.mark.xdist_group("scheduler")
def test_without_a_scheduler_nothing_is_moved(crowded: World) -> None:
    crowded.pod("big", 8)
    crowded.waiting("big")
    for process in list(crowded.running):
        crowded.kill(process)
    before = nodes_of(crowded, "one", "two", "three")
    command = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "avactl.cli.main",
            "defrag",
            f"{crowded.namespace}/big",
            "--yes",
            "--kubeconfig",
            str(crowded.plane.kubeconfig),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background, these tests for one, ignores Ctrl-C, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    crowded.wait(lambda: crowded.pods()["big"]["status"].get("nominatedNodeName"))
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=patience())
    # What was written is taken back.
    assert "nominatedNodeName" not in crowded.pods()["big"]["status"]
    conditions = [
        (condition["type"], condition["status"])
        for pod in crowded.pods().values()
        for condition in pod["status"].get("conditions") or ()
    ]
    assert ("DisruptionTarget", "True") not in conditions
    assert nodes_of(crowded, "one", "two", "three") == before
