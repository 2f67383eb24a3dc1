"""What is wanted against what is there, and what a run makes of it. Pure."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from avactl.apply.reconcile.actions import holds_data
from avactl.apply.reconcile.diffing.field_policy import Hands, controller_paths, without_fields
from avactl.apply.reconcile.diffing.managed_fields import format_path
from avactl.apply.reconcile.diffing.object_diff import ObjectComparison, compare
from avactl.apply.reconcile.health import (
    HealthState,
    combine_health,
    crashing_container,
    is_starting,
    object_health,
    of_pods,
)
from avactl.compiler import compile_tree
from avactl.program import registry
from avactl.spec.repository.tree import DirTree
from tests.reconcile.world import AVA

HANDS = Hands()


def live(fields: dict[str, Any], body: dict[str, Any], *others: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """An object of which `fields` are ours, and others those of other managers."""
    entries = [
        {"manager": "avactl", "operation": "Apply", "apiVersion": body["apiVersion"], "fieldsV1": fields},
        *({"manager": name, "operation": "Update", "apiVersion": "v1", "fieldsV1": set_} for name, set_ in others),
    ]
    return {**body, "metadata": {**body["metadata"], "managedFields": entries}}


def deployment(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": "n"}, "spec": spec}


def compared(want: dict[str, Any], there: dict[str, Any], owned: tuple[str, ...] = ()) -> ObjectComparison:
    return compare(want, there, controller_paths(want["kind"], owned), HANDS)


def fields_of(result: ObjectComparison) -> list[str]:
    return [difference.field for difference in result.all()]


POD: dict[str, Any] = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}}}
POD_FIELDS: dict[str, Any] = {
    ".": {},
    "f:name": {},
    "f:image": {},
    "f:resources": {"f:requests": {"f:cpu": {}, "f:memory": {}}},
}
OURS = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"c"}': POD_FIELDS}}}}}


def with_pod(**container: Any) -> dict[str, Any]:
    return deployment(template={"spec": {"containers": [{**copy.deepcopy(POD), **container}]}})


def test_defaults_and_ways_to_write_an_amount_are_no_difference() -> None:
    there = with_pod(terminationMessagePath="/dev/x", resources={"requests": {"cpu": "1", "memory": "1Gi"}})
    there["spec"]["replicas"] = 1
    assert compared(with_pod(), live(OURS, there)).same


@pytest.mark.parametrize("group", ["data", "labels"])
@pytest.mark.parametrize("key", ["max", "limits", "storage"])
def test_an_amount_elsewhere_is_a_text(group: str, key: str) -> None:
    def config(value: str) -> dict[str, Any]:
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}}
        (body if group == "data" else body["metadata"])[group] = {key: value}
        return body

    fields: dict[str, Any] = {f"f:{group}": {f"f:{key}": {}}}
    there = live(fields if group == "data" else {"f:metadata": fields}, config("1000m"))
    assert [difference.new for difference in compared(config("1"), there).all()] == ["1"]
    assert compared(config("1000m"), there).same


def test_an_amount_in_a_text_is_a_text() -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"size": "1"}}
    result = compared({**body, "data": {"size": "1000m"}}, live({"f:data": {"f:size": {}}}, body))
    assert fields_of(result) == ["data.size"]


def test_a_value_that_is_ours_no_more_differs_even_if_it_is_equal() -> None:
    ours = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"c"}': {**POD_FIELDS}}}}}}
    del ours["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"c"}']["f:image"]
    result = compared(with_pod(), live(ours, with_pod(), ("kubectl-edit", OURS)))
    assert [(d.field, d.by) for d in result.apply] == [("spec.template.spec.containers[c].image", "kubectl-edit")]


def test_what_git_has_no_more_is_removed() -> None:
    want = with_pod()
    del want["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["memory"]
    assert fields_of(compared(want, live(OURS, with_pod()))) == [
        "spec.template.spec.containers[c].resources.requests.memory"
    ]


def test_a_field_that_becomes_a_controllers_keeps_its_value() -> None:
    ours = {"f:spec": {**OURS["f:spec"], "f:replicas": {}}}
    there = with_pod()
    there["spec"]["replicas"] = 5
    result = compared(with_pod(), live(ours, there), ("spec.replicas",))
    assert not result.apply
    assert [format_path(path) for path in result.hand_over] == ["spec.replicas"]


@pytest.mark.parametrize(
    ("manager", "found"),
    [("kubectl-edit", True), ("someone", True), ("kube-controller-manager", False), ("vpa-updater", False)],
)
def test_additions_by_hand_are_taken_out_and_those_of_controllers_stay(manager: str, found: bool) -> None:
    there = with_pod(env=[{"name": "X", "value": "1"}])
    added: dict[str, Any] = {"f:env": {".": {}, 'k:{"name":"X"}': {".": {}, "f:name": {}, "f:value": {}}}}
    theirs = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"c"}': added}}}}}
    result = compared(with_pod(), live(OURS, there, (manager, theirs)))
    assert fields_of(result) == (["spec.template.spec.containers[c].env"] if found else [])


def test_order_of_a_list_counts() -> None:
    two = [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]
    entry: dict[str, Any] = {".": {}, "f:name": {}, "f:image": {}}
    ours = {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"a"}': entry, 'k:{"name":"b"}': entry}}}}}
    there = deployment(template={"spec": {"containers": two}})
    assert compared(there, live(ours, there)).same
    turned = compared(deployment(template={"spec": {"containers": two[::-1]}}), live(ours, there))
    assert turned.unsure


def test_without_shares_what_it_does_not_touch() -> None:
    body = deployment(replicas=3, template={"spec": {}})
    bare = without_fields(body, ["spec.replicas", "status.nothing"])
    assert "replicas" not in bare["spec"]
    assert body["spec"]["replicas"] == 3
    assert bare["spec"]["template"] is body["spec"]["template"]


def test_manifests_own_only_what_their_kind_declares() -> None:
    owned = set()
    for manifest in compile_tree(DirTree(AVA)).manifests:
        declared = {(o.kind, o.field) for o in registry.get_kind(manifest.item.kind).owned}
        here = {(manifest.kind, path) for path in manifest.owned}
        assert here <= declared, manifest
        owned |= here
    assert owned == {("Deployment", "spec.replicas"), ("ConfigMap", "data"), ("ConfigMap", "binaryData")}


def test_data_is_held_unless_the_mark_says_otherwise() -> None:
    claim: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "a"},
        "spec": {},
    }
    assert holds_data(claim)
    assert holds_data({**claim, "metadata": {"annotations": {"avactl.dev/holds-data": "true"}}})
    assert not holds_data({**claim, "metadata": {"annotations": {"avactl.dev/deletion-policy": "delete"}}})
    assert not holds_data({**claim, "spec": {"volumeName": "a store"}})
    assert not holds_data({**claim, "kind": "ConfigMap"})


def test_health_of_what_waits_and_what_is_ill() -> None:
    job = {"kind": "Job", "metadata": {}, "spec": {}, "status": {}}
    assert object_health(job).state is HealthState.ready
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": "no"}]}
    assert object_health({**job, "status": failed}).state is HealthState.failed
    body = {**deployment(replicas=2), "status": {"observedGeneration": 1, "updatedReplicas": 2, "replicas": 2}}
    assert object_health(body).state is HealthState.progressing
    pending = {"metadata": {"name": "p"}, "spec": {}, "status": {}}
    waiting = of_pods([pending])
    assert waiting is not None
    assert waiting.state is HealthState.waiting
    assert of_pods([{**pending, "spec": {"nodeName": "n"}}]) is None


def test_init_containers_and_sidecars_that_crash_are_seen() -> None:
    pod = {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n"},
        "status": {
            "initContainerStatuses": [
                {"name": "code", "state": {"terminated": {"exitCode": 0}}},
                {"name": "server", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}},
            ],
            "containerStatuses": [{"name": "follower", "state": {"running": {}}}],
        },
    }
    said = "pod p: server: CrashLoopBackOff back-off 5m0s"
    for found in (of_pods([pod]), crashing_container([pod])):
        assert found is not None
        assert (found.state, found.reason) == (HealthState.progressing, said)
    assert crashing_container([{**pod, "status": {}}]) is None
    assert is_starting({"status": {"active": 2, "ready": 1}})
    assert not is_starting({"status": {"active": 2, "ready": 2}})


def test_a_workload_that_is_late_has_the_reason_of_its_pods() -> None:
    """The controller says `ReplicaSet "web-1" has timed out progressing.` only."""
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out."}
    body = {**deployment(replicas=1), "status": {"observedGeneration": 1, "conditions": [late]}}
    init = {"name": "model", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": {"initContainerStatuses": [init]}}
    copies, waits = of_pods([pod]), of_pods([{**pod, "spec": {}}])
    assert copies is not None
    assert waits is not None
    found = combine_health(object_health(body), copies)
    since = "init container model runs since 2026-01-01T00:00:00Z"
    assert (found.state, found.reason) == (HealthState.failed, f"timed out: {since}")
    assert combine_health(object_health(body), waits) == waits


def test_groups_of_pods_are_ready_once_all_are_updated_and_ready() -> None:
    body = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "a", "namespace": "n", "generation": 2},
        "spec": {"replicas": 2},
    }
    available = [{"type": "Available", "status": "True"}]
    for status, reason in (
        ({}, "the controller has not observed it yet"),
        ({"observedGeneration": 1}, "the controller has not observed the change yet"),
        ({"observedGeneration": 2, "updatedReplicas": 1, "readyReplicas": 2}, "1 of 2 groups are updated"),
        ({"observedGeneration": 2, "updatedReplicas": 2, "readyReplicas": 1}, "1 of 2 groups are ready"),
        ({"observedGeneration": 2, "updatedReplicas": 2, "readyReplicas": 2}, "not all groups are updated and ready"),
    ):
        assert object_health({**body, "status": status}) == (HealthState.progressing, reason)
    ready = {"observedGeneration": 2, "updatedReplicas": 2, "readyReplicas": 2, "conditions": available}
    assert object_health({**body, "status": ready}).state is HealthState.ready


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ('pods "a-1" is forbidden: exceeded quota: team', HealthState.waiting),
        ('pods "a-1" is forbidden: violates PodSecurity', HealthState.progressing),
    ],
)
def test_pods_that_a_quota_refuses_are_not_waited_for(message: str, state: HealthState) -> None:
    """There are no pods then that could say that they wait for room."""
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    there = {**deployment(replicas=2), "status": {"observedGeneration": 1, "conditions": [refused]}}
    assert object_health(there).state is state
    assert message in object_health(there).reason
