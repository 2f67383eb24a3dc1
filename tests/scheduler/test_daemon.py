"""The daemon on a real API server, with exactly the rights that are compiled for it."""

from __future__ import annotations

import time

import pytest

from tests.scheduler.world import LEASE, SYSTEM, World
from tools.controlplane import ApiError
from tools.waiting import patience

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]


def test_pods_are_bound_with_their_gpus_and_told_so(world: World) -> None:
    world.node("a")
    world.ready()
    world.start()
    world.pod("two", 2)
    world.pod("four", 4)
    world.pod("cpu")
    assert set(world.bound().values()) == {"a"}
    two, four = world.devices("two"), world.devices("four")
    assert (len(two), len(four), world.devices("cpu")) == (2, 4, set())
    assert not two & four
    # Two sockets of four: neither reaches over the other's.
    assert {gpu // 4 for gpu in four} != {gpu // 4 for gpu in two}
    assert len({gpu // 4 for gpu in four}) == 1
    world.wait(lambda: len(world.events("Scheduled")) == 3)
    event = world.events("Scheduled")[0]
    assert event["reportingController"] == "avactl-scheduler"
    assert event["note"].startswith(f"Successfully assigned {world.namespace}/")


def test_a_pod_that_fits_nowhere_is_told_why_and_bound_once_it_fits(world: World) -> None:
    world.node("a", gpus=8)
    world.node("b", gpus=8, unschedulable=True)
    world.ready()
    world.start()
    world.pod("first", 6)
    world.bound("first")
    world.pod("second", 4)
    text = world.waiting("second")
    assert text == "fits on none of 2 nodes: 1 is excluded (1 cordoned), 1 has fewer than 4 free GPUs (at most 2)"
    world.wait(lambda: world.events("FailedScheduling"))
    world.kube.delete("v1", "Pod", "first", world.namespace)
    assert world.bound("second")["second"] == "a"


def test_pods_of_others_count(world: World) -> None:
    world.node("a", gpus=8)
    world.ready()
    for number in range(3):
        world.pod(f"other-{number}", 2, scheduler="default-scheduler")
        world.bind(f"other-{number}", "a")
    world.start()
    world.pod("big", 4)
    assert "fewer than 4 free GPUs (at most 2)" in world.waiting("big")
    world.pod("small", 2)
    world.bound("small")


def test_shares_of_one_gpu_stay_together(world: World) -> None:
    world.node("a", gpus=2, pool="")
    world.ready()
    world.start()
    for number in range(3):
        world.pod(f"half-{number}", notes={"avactl.dev/gpu-share": "0.5"})
    world.bound()
    used = [world.devices(f"half-{number}") for number in range(3)]
    assert sorted(len([each for each in used if each == {gpu}]) for gpu in (0, 1)) == [1, 2]
    world.pod("whole", 1)
    assert "fewer than 1 free GPU " in world.waiting("whole")


def test_a_new_process_knows_what_is_held(world: World) -> None:
    world.node("a", gpus=8)
    world.ready()
    process = world.start()
    world.pod("first", 5)
    world.bound("first")
    world.kill(process)
    world.free_lease()
    world.start()
    world.pod("second", 3)
    world.bound("second")
    assert world.devices("first") | world.devices("second") == set(range(8))


def _holder(world: World) -> str:
    lease = world.kube.get("coordination.k8s.io/v1", "Lease", LEASE, SYSTEM)
    return str(lease["spec"].get("holderIdentity", ""))


def test_another_replica_takes_over(world: World) -> None:
    world.node("a", gpus=8)
    world.ready()
    leader = world.start()
    world.pod("first", 1)
    world.bound("first")
    world.start()
    holder = _holder(world)
    leader.terminate()
    assert leader.wait(patience()) == 0
    # It gave its lease back: nobody waits for it to run out.
    assert _holder(world) != holder
    world.pod("second", 1)
    world.bound("second")
    assert not world.devices("first") & world.devices("second")


def test_higher_priority_goes_first(world: World) -> None:
    world.node("a", gpus=8)
    world.ready()
    world.kube.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000}
    )
    world.pod("plain", 8)
    world.pod("urgent", 8, priorityClassName="urgent")
    world.start()
    world.bound("urgent")
    world.waiting("plain")


def test_what_is_not_supported_is_refused_in_words(world: World) -> None:
    world.node("a", gpus=8)
    world.ready()
    world.start()
    world.pod("share", notes={"avactl.dev/gpu-share": "1.5"})
    assert world.waiting("share") == "annotation avactl.dev/gpu-share: `1.5` is not a share of one GPU such as 0.5"
    limits = {"requests": {"example.com/odd": "1"}, "limits": {"example.com/odd": "1"}}
    world.pod("odd", container={"resources": limits})
    assert world.waiting("odd") == "no node has resource example.com/odd"


def test_gpus_that_a_machine_loses_are_not_given(world: World) -> None:
    world.node("a", gpus=8)
    world.ready()
    world.start()
    world.pod("first", 6)
    world.bound("first")
    for kind in ("capacity", "allocatable"):
        status = {"status": {kind: {"nvidia.com/gpu": "4"}}}
        path = "/api/v1/nodes/a/status"
        world.kube.request("PATCH", path, body=status, content_type="application/merge-patch+json")
    world.pod("second", 2)
    assert "too small" in world.waiting("second") or "at most 0" in world.waiting("second")
    world.kube.delete("v1", "Pod", "first", world.namespace)
    world.bound("second")
    assert world.devices("second") <= {0, 1, 2, 3}


def test_a_binding_that_is_refused_is_told_and_not_tried_at_once(world: World) -> None:
    """Whoever is asked again as fast as it answers does nothing else."""
    api, name = "admissionregistration.k8s.io/v1", f"refuse-{world.namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    refusal = {"expression": f"object.metadata.namespace != '{world.namespace}'", "message": "nobody is bound here"}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [refusal]}
    world.kube.create(
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec}
    )
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kind = "ValidatingAdmissionPolicyBinding"
    world.kube.create({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": binding})
    try:
        world.node("a")
        world.ready()
        # Policies are in force a moment after they are there.
        target = {"apiVersion": "v1", "kind": "Node", "name": "a"}
        for number in range(100):
            world.pod(f"probe-{number}", scheduler="nobody")
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": f"probe-{number}"}, "target": target}
            path = f"/api/v1/namespaces/{world.namespace}/pods/probe-{number}/binding"
            try:
                world.kube.request("POST", path, body=body)
            except ApiError:
                break
            time.sleep(0.1)
        world.start()
        world.pod("refused", 1)
        told = world.waiting("refused", "the API server rejected its binding to a: ")
        assert "nobody is bound here" in told
        # It keeps nobody waiting, though it is older and has the highest priority.
        other = world.namespace
        world.namespace = f"{other}-b"
        world.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.namespace}})
        account = {"name": "default", "namespace": world.namespace}
        world.kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        world.pod("other", 1)
        world.bound("other")
        world.kube.delete("v1", "Namespace", world.namespace)
        world.namespace = other
        time.sleep(1)
    finally:
        world.kube.delete(api, kind, name)
        world.kube.delete(api, "ValidatingAdmissionPolicy", name)
    log = max(world.folder.glob("scheduler-*.log"), key=lambda each: each.stat().st_mtime).read_text()
    assert log.count('"binding rejected"') == 1
    world.bound("refused")
