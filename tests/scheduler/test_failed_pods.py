"""Pods that failed because of their node: their job avoids it, and with several jobs all take it last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE
from avactl.kube.client import MERGE
from avactl.kube.timestamps import timestamp
from avactl.scheduler.cache.failed_pods import MAX_FAILED_PODS, SUSPECT_S, FailedPods, read_failed_pod
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.pod_info import read_pod
from avactl.scheduler.writers.cordons import find_cordons
from avactl.scheduler.writers.node_warnings import PODS_FAIL, NodeWarnings, failing_nodes
from tests.hardware.topo_matrices import library_machine
from tests.kinds.compiling import apply, compiled
from tests.scheduler.memory import Memory
from tests.scheduler.world import LEASE, SPECS, SYSTEM, World
from tools.controlplane import ApiError

REFUSED = {
    "reason": "UnexpectedAdmissionError",
    "message": "Allocate failed due to no healthy devices present",
}
JOB = "batch.kubernetes.io/job-name"


def ended(code: int, seconds: float, **more: Any) -> dict[str, Any]:
    """The status of a container that ran for some seconds."""
    times = {"startedAt": timestamp(time.time() - seconds), "finishedAt": timestamp(time.time())}
    return {"name": "main", "state": {"terminated": {"exitCode": code, **times, **more}}}


def fail(world: Memory, name: str, **status: Any) -> str:
    """A pod fails as its kubelet says; its node."""
    item = world.items[f"team/{name}"]
    item["status"] |= {"phase": "Failed", "startTime": timestamp(), **status}
    world.pod_handler.put(item)
    node: str = item["spec"]["nodeName"]
    return node


def start(world: Memory, name: str, job: str, gpus: int = 8) -> str:
    """A pod of a Job starts; its node, or ""."""
    world.pod("team", name, gpus, labels={JOB: job})
    world.settle()
    return world.where().get(name, "")


@pytest.mark.parametrize(
    "status",
    [
        REFUSED,
        {"reason": "OutOfcpu"},
        {"reason": "TopologyAffinityError"},
        {"containerStatuses": [ended(1, 2)]},
        {"containerStatuses": [ended(128, 1.7e9, reason="StartError")]},
        {"initContainerStatuses": [ended(names.REPLACED_EXIT, 300)], "containerStatuses": []},
    ],
    ids=lambda status: str(status.get("reason") or "ran"),
)
def test_the_next_try_is_elsewhere(status: dict[str, Any]) -> None:
    world = Memory()
    first = start(world, "train-0", "train")
    assert first == fail(world, "train-0", **status)
    assert start(world, "train-1", "train") == ({"n0", "n1"} - {first}).pop()


@pytest.mark.parametrize(
    "status",
    [
        {"containerStatuses": [ended(1, 600)]},
        {"containerStatuses": [ended(0, 1)]},
        {"reason": "DeadlineExceeded"},
        {**REFUSED, "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
    ],
)
def test_a_failure_of_the_program_says_nothing_about_the_node(status: dict[str, Any]) -> None:
    world = Memory()
    first = start(world, "train-0", "train")
    fail(world, "train-0", **status)
    assert start(world, "train-1", "train") == first


def test_the_node_is_better_than_none() -> None:
    world = Memory(machines=1)
    assert start(world, "train-0", "train") == "n0"
    fail(world, "train-0", **REFUSED)
    assert start(world, "train-1", "train") == "n0"


def test_a_container_that_cannot_be_created() -> None:
    """The pod is not made again; those of its job go elsewhere."""
    world = Memory()
    first = start(world, "train-0", "train", 1)
    item = world.items["team/train-0"]
    waiting = {"name": "main", "state": {"waiting": {"reason": "CreateContainerError"}}}
    item["status"] |= {"phase": "Pending", "containerStatuses": [waiting]}
    world.pod_handler.put(item)
    assert start(world, "train-1", "train", 1) != first
    item["status"] |= {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    world.pod_handler.put(item)
    assert start(world, "train-2", "train", 1) == first


def test_a_container_that_cannot_be_created_again() -> None:
    """After a reboot of its node, the pod of a Deployment stays Running, and DRA's devices are not prepared."""
    world = Memory()
    first = start(world, "train-0", "train", 1)
    item = world.items["team/train-0"]
    message = "CDI device injection failed: unresolvable CDI devices k8s.gpu.example.com/gpu=gpu-0"
    waiting = {"name": "main", "state": {"waiting": {"reason": "CreateContainerError", "message": message}}}
    item["status"] |= {"phase": "Running", "containerStatuses": [waiting]}
    world.pod_handler.put(item)
    assert start(world, "train-1", "train", 1) != first
    item["status"] |= {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    world.pod_handler.put(item)
    assert start(world, "train-2", "train", 1) == first


def test_a_gang_starts_without_the_node() -> None:
    world = Memory(machines=3, rack=3)
    labels, notes = {names.GANG_LABEL: "big"}, {GANG_SIZE.name: "2"}
    for number in range(2):
        world.pod("team", f"old-{number}", 8, notes, labels=labels)
    world.settle()
    bad = fail(world, "old-0", **REFUSED)
    world.drop("team", "old-1")
    for number in range(2):
        world.pod("team", f"new-{number}", 8, notes, labels=labels)
    world.settle()
    where = world.where()
    assert bad not in (where["new-0"], where["new-1"])


def test_all_take_a_node_last_that_fails_pods_of_several_jobs() -> None:
    world = Memory()
    node = start(world, "a-0", "a")
    fail(world, "a-0", **REFUSED)
    assert start(world, "b-0", "b") == node, "one job says little"
    fail(world, "b-0", **REFUSED)
    suspects = world.cache.tables.failed.suspects()
    assert {name: {pod.reason for pod in pods} for name, pods in suspects.items()} == {
        node: {"UnexpectedAdmissionError"}
    }
    other = start(world, "c-0", "c")
    assert other == ({"n0", "n1"} - {node}).pop()
    assert start(world, "d-0", "d") == node, "nothing else is left"


def test_a_team_cannot_make_others_avoid_a_node() -> None:
    world = Memory()
    node = start(world, "a-0", "a")
    fail(world, "a-0", **REFUSED)
    assert start(world, "b-0", "b") == node
    fail(world, "b-0", **REFUSED)
    other = ({"n0", "n1"} - {node}).pop()
    world.pod("ads", "theirs", 8)
    world.settle()
    assert world.where()["theirs"] == node, "pods of one team have failed, and it can make such pods"
    world.drop("ads", "theirs")
    assert start(world, "c-0", "c") == other, "its own pods take the node last"
    world.drop("team", "c-0")
    # A job of a second team fails there, too.
    world.pod("ads", "bad", 8, labels={JOB: "bad"})
    world.settle()
    assert world.where()["bad"] == node
    item = world.items["ads/bad"]
    item["status"] |= {"phase": "Failed", "startTime": timestamp(), **REFUSED}
    world.pod_handler.put(item)
    world.pod("nlp", "third", 8)
    world.settle()
    assert world.where()["third"] == other


def failing(machines: int = 2, on_failed_pods: str = "cordon") -> tuple[Memory, str]:
    """Return a world in which pods of two teams have failed on one node, and the node."""
    world = Memory(machines=0)
    machine = library_machine("v100-pcie-8")
    world.cache.put_pool(
        ConfiguredPool("p", "devicePlugin", "nvidia.com/gpu", "", "", machine, on_failed_pods=on_failed_pods)
    )
    for number in range(machines):
        world.machine(f"n{number}", 8, {names.POOL_LABEL: "p"})
    node = start(world, "a-0", "a")
    fail(world, "a-0", **REFUSED)
    assert not find_cordons(world.cache.tables)
    fail_of_another_team(world, node)
    return world, node


def fail_of_another_team(world: Memory, node: str, name: str = "bad") -> None:
    pod = item(name, name, time.time())
    pod["metadata"]["namespace"] = "ads"
    pod["spec"] = {"nodeName": node, "schedulerName": names.SCHEDULER_NAME, "containers": []}
    world.pod_handler.put(pod)


def mark(world: Memory, node: str, cordoned: bool, at: float | None = None) -> None:
    """Cordon or uncordon a node; `at`: when the scheduler cordoned it last."""
    labels = {names.POOL_LABEL: "p", names.GPU_LABEL: "V100", "kubernetes.io/hostname": node}
    notes = {} if at is None else {names.CORDONED_AT: timestamp(at)}
    status = {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}}
    metadata = {"name": node, "labels": labels, "annotations": notes}
    world.cache.put_node({"metadata": metadata, "spec": {"unschedulable": cordoned}, "status": status})


def test_a_pool_may_have_such_a_node_cordoned() -> None:
    world, node = failing()
    assert find_cordons(world.cache.tables) == {
        node: "pods of 2 jobs failed before they ran (UnexpectedAdmissionError): team/a, ads/bad"
    }
    mark(world, node, True, time.time())
    assert not find_cordons(world.cache.tables)


def test_without_its_consent_none_is_cordoned() -> None:
    world, _ = failing(on_failed_pods="avoid")
    assert not find_cordons(world.cache.tables)


def test_pods_that_failed_before_a_cordon_do_not_repeat_it() -> None:
    world, node = failing()
    mark(world, node, False, time.time() + 1)
    assert not find_cordons(world.cache.tables)
    mark(world, node, False, time.time() - 60)
    assert list(find_cordons(world.cache.tables)) == [node]


@pytest.mark.parametrize(("machines", "others", "cordons"), [(9, 1, 0), (19, 1, 0), (20, 1, 1), (3, 0, 1)])
def test_most_machines_of_a_pool_stay(machines: int, others: int, cordons: int) -> None:
    world, node = failing(machines)
    for name in [f"n{number}" for number in range(machines) if f"n{number}" != node][:others]:
        mark(world, name, True)
    assert len(find_cordons(world.cache.tables)) == cordons


@pytest.fixture
def consenting(world: World) -> Iterator[World]:
    """Machines of a pool that permits cordons."""
    apply(world.kube, compiled(SPECS.replace("devicePlugin", "devicePlugin, onFailedPods: cordon")).manifests)
    yield world
    apply(world.kube, compiled(SPECS).manifests)


@pytest.mark.controlplane
@pytest.mark.xdist_group("scheduler")
def test_a_cordon_on_the_api_server(consenting: World) -> None:
    """With the rights that the pool's consent gives; an administrator uncordons the node, and it stays so."""
    world = consenting
    world.node("a")
    world.ready()
    world.start()
    for team in ("ads", "vision"):
        name = f"{world.namespace}-{team}"
        world.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        refuse(world, name, "a")
    world.wait(lambda: world.kube.get("v1", "Node", "a")["spec"].get("unschedulable"))
    assert world.kube.get("v1", "Node", "a")["metadata"]["annotations"][names.CORDONED_AT]
    world.kube.request("PATCH", "/api/v1/nodes/a", body={"spec": {"unschedulable": None}}, content_type=MERGE)
    world.pod("next", 1)
    assert world.bound("next") == {"next": "a"}
    with world.plane.client(world.plane.service_account_token(SYSTEM, LEASE)) as scheduler:
        for body in (
            {"spec": {"unschedulable": False}},
            {"spec": {"unschedulable": True, "taints": [{"key": "x", "effect": "NoExecute"}]}},
            {"spec": {"unschedulable": True}, "metadata": {"labels": {names.POOL_LABEL: "other"}}},
        ):
            with pytest.raises(ApiError, match="cordon: the scheduler only cordons nodes"):
                scheduler.request("PATCH", "/api/v1/nodes/a", body=body, content_type=MERGE)


def refuse(world: World, namespace: str, node: str) -> None:
    """Have a kubelet refuse a pod of a Job."""
    metadata = {"name": "j-0", "namespace": namespace, "labels": {JOB: "j"}}
    container = {"name": "main", "image": "registry.example.com/x:1"}
    spec = {"nodeName": node, "schedulerName": names.SCHEDULER_NAME, "containers": [container]}
    world.kube.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}}
    )
    world.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    # kwok plays the node, and must not write over it.
    world.wait(lambda: world.kube.get("v1", "Pod", "j-0", namespace)["status"]["phase"] == "Running")
    path = f"/api/v1/namespaces/{namespace}/pods/j-0/status"
    status = {"phase": "Failed", "startTime": timestamp(), **REFUSED}
    world.kube.request("PATCH", path, body={"status": status}, content_type=MERGE)


def test_nodes_that_have_failed_take_turns() -> None:
    """One of them may have been repaired, and the other fails every try."""
    world = Memory()
    nodes = []
    for attempt in range(4):
        nodes.append(start(world, f"train-{attempt}", "train"))
        fail(world, f"train-{attempt}", **REFUSED)
    assert set(nodes[:2]) == set(nodes[2:]) == {"n0", "n1"}


def test_a_failing_attempt_is_made_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Memory(machines=3)
    for job in ("a", "b"):
        start(world, f"{job}-0", job)
        fail(world, f"{job}-0", **REFUSED)
    start(world, "mine-0", "mine")
    fail(world, "mine-0", **REFUSED)
    attempts: list[object] = []
    choose = world.cache.choose

    def count(*arguments: Any) -> Any:
        attempts.append(arguments)
        return choose(*arguments)

    monkeypatch.setattr(world.cache, "choose", count)
    world.pod("team", "mine-1", 16, labels={JOB: "mine"})
    world.settle()
    assert "mine-1" not in world.where()
    assert len(attempts) == 2


def waits(reason: str, message: str = "") -> dict[str, Any]:
    """The status of a pod whose container the kubelet will try to start again."""
    container = {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}
    return {"phase": "Pending", "initContainerStatuses": [container]}


@pytest.mark.parametrize(
    "status",
    [
        {"containerStatuses": [ended(1, 1)]},
        {"reason": "PodOSNotSupported"},
        {"reason": "SysctlForbidden"},
        {"reason": "TopologyAffinityError"},
        waits("RunContainerError", 'exec: "trian": executable file not found in $PATH'),
        waits("CreateContainerError", "failed to generate container spec: no command specified"),
        waits("CreateContainerError", "unable to find user trainer: no matching entries in passwd file"),
        waits("CreateContainerError", 'cannot load seccomp profile "/var/lib/kubelet/seccomp/x.json": no such file'),
        waits("CreateContainerError", "apparmor profile not found x"),
    ],
    ids=["exit code", "OS", "sysctl", "topology", "no program", "no command", "no user", "seccomp", "AppArmor"],
)
def test_mistakes_of_a_pod_blame_no_node(status: dict[str, Any]) -> None:
    """Otherwise a team's mistake would drive all others off a machine; its own next try may be elsewhere."""
    world = Memory(machines=1)
    for job in ("a", "b"):
        start(world, f"{job}-0", job, 4)
        fail(world, f"{job}-0", **status)
    assert world.cache.tables.failed.nodes_of("team/a") == {"n0"}
    assert not world.cache.tables.failed.suspects()


def test_an_owner_reference_is_not_trusted() -> None:
    """The API server checks neither length nor characters of a UID that a pod's author writes."""
    pod = item("a", "a", 0)
    del pod["metadata"]["labels"]
    pod["spec"]["containers"] = []
    owner = {"kind": "ReplicaSet", "name": "a", "controller": True}
    for uid, kept in (("6f1e", True), ("x" * 100_000, False), ("\x1b[2J", False)):
        pod["metadata"]["ownerReferences"] = [{**owner, "uid": uid}]
        assert (read_failed_pod(pod) is not None) == kept
        assert read_pod(pod, 0.0).owner == (f"team/uid/{uid}" if kept else "")


def test_a_pod_of_a_snapshot_has_an_owner_without_uid() -> None:
    pod = item("a", "a", 0)
    del pod["metadata"]["labels"]
    pod["spec"]["containers"] = []
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "a", "controller": True}]
    assert read_pod(pod, 0.0).owner == ""
    assert read_failed_pod(pod) is None


def test_the_job_prefers_a_node_that_failed_others() -> None:
    world = Memory()
    first = start(world, "a-0", "a")
    fail(world, "a-0", **REFUSED)
    other = ({"n0", "n1"} - {first}).pop()
    for number, job in enumerate(("b", "c")):
        start(world, f"fill-{number}", f"fill-{number}")  # the first machine is taken first
        assert start(world, f"{job}-0", job) == other
        fail(world, f"{job}-0", **REFUSED)
        world.drop("team", f"fill-{number}")
    assert other in world.cache.tables.failed.suspects()
    assert start(world, "a-1", "a") == other


def item(name: str, job: str, at: float) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": name, "labels": {JOB: job}}
    metadata |= {"creationTimestamp": timestamp(at)}
    return {"metadata": metadata, "spec": {"nodeName": "n0"}, "status": {"phase": "Failed", **REFUSED}}


def test_a_suspicion_ends() -> None:
    now = 1_000_000.0
    failed = FailedPods(lambda: now)
    failed.put("team/a", item("a", "a", now))
    failed.put("team/b", item("b", "b", now))
    assert set(failed.suspects()) == {"n0"}
    now += SUSPECT_S + 60
    assert not failed.suspects()
    assert failed.nodes_of("team/a") == {"n0"}
    failed.drop("team/a")
    assert not failed.nodes_of("team/a")
    assert list(failed) == ["team/b"]


def test_a_clock_that_is_ahead() -> None:
    now = 1_000_000.0
    failed = FailedPods(lambda: now)
    for job in "ab":
        failed.put(f"team/{job}", item(job, job, now + 10 * SUSPECT_S))
    assert failed.suspects()
    now += SUSPECT_S + 60
    for job in "ab":
        failed.put(f"team/{job}", item(job, job, now + 10 * SUSPECT_S))
    assert not failed.suspects()


def test_each_suspicion_is_told_once() -> None:
    now, told = 1_000_000.0, []

    class Reporter:
        def warn_of_node(self, node: str, reason: str, note: str) -> None:
            told.append((node, reason, note))

    failed = FailedPods(lambda: now)
    tables = ClusterTables((), "pack")
    tables.failed = failed
    suspects = NodeWarnings(PODS_FAIL, lambda: failing_nodes(tables), Reporter())
    failed.put("team/a", item("a", "a", now))
    suspects.tick()
    assert not told
    for job in ("b", "c", "d"):
        failed.put(f"team/{job}", item(job, job, now))
    suspects.tick()
    suspects.tick()
    jobs = "team/a, team/b, team/c and 1 more"
    note = (
        f"pods of 4 jobs failed before they ran (UnexpectedAdmissionError): {jobs}; "
        "pods of the same team take the node last"
    )
    assert told == [("n0", "PodsFail", note)]
    now += SUSPECT_S + 60
    suspects.tick()
    for job in ("x", "y"):
        failed.put(f"team/{job}", item(job, job, now))
    suspects.tick()
    assert len(told) == 2


def test_a_restarted_scheduler_knows_the_same() -> None:
    world, again = Memory(), Memory()
    node = start(world, "train-0", "train")
    fail(world, "train-0", **REFUSED)
    again.pod_handler.put(world.items["team/train-0"])
    assert again.cache.tables.failed.nodes_of("team/train") == {node}
    again.pod_handler.drop("team/train-0")
    assert not again.cache.pod_keys()


def test_their_number_is_bounded() -> None:
    failed = FailedPods()
    for number in range(MAX_FAILED_PODS + 10):
        failed.put(f"team/{number}", item(str(number), f"job-{number}", time.time()))
    assert len(failed) == MAX_FAILED_PODS
    assert "team/0" not in set(failed)


def test_odd_statuses() -> None:
    """What a kubelet of another version leaves out is no defect of the scheduler."""
    odd = item("a", "a", 0)
    for status in ({"phase": "Failed"}, {"phase": "Failed", "containerStatuses": None, "reason": None}):
        found = read_failed_pod({**odd, "status": status})
        assert found is not None
        assert found.reason == "refused by the kubelet"
    odd["metadata"]["creationTimestamp"] = "never"
    assert read_failed_pod(odd) is not None
    assert read_failed_pod({**odd, "metadata": {**odd["metadata"], "labels": None}}) is None
