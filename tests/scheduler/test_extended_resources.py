"""Extended resources that have a DeviceClass: pods get its devices on nodes without a device plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.clusters import running
from tests.scheduler.test_dra import API, DRIVER, machine
from tests.scheduler.world import World
from tools.controlplane import ApiError

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
GPU = "nvidia.com/gpu"
EXTENDED = "resource.kubernetes.io/extended-resource-claim"
Claim = dict[str, Any]


@pytest.fixture
def cluster(world: World) -> Iterator[World]:
    device_class(world, "test-gpus", f'device.driver == "{DRIVER}"', GPU)
    yield world
    for item in world.kube.list(API, "DeviceClass"):
        if item["metadata"]["name"].startswith("test-"):
            world.kube.delete(API, "DeviceClass", item["metadata"]["name"])
    world.kube.request("DELETE", f"/apis/{API}/resourceslices")


def device_class(world: World, name: str, expression: str, resource: str = "") -> None:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if resource:
        spec["extendedResourceName"] = resource
    world.kube.create({"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec})


def container(name: str, **amounts: int) -> dict[str, Any]:
    """`nvidia_com__gpu=1` stands for `nvidia.com/gpu: 1`."""
    names = {"gpu": GPU, "implicit": "deviceclass.resource.kubernetes.io/test-gpus"}
    limits = {names[each]: str(value) for each, value in amounts.items()}
    return {"name": name, "image": "registry.example.com/x:1", "resources": {"limits": limits}}


def claims(world: World) -> dict[str, Claim]:
    """The claims of extended resources, by pod."""
    found = world.kube.list(API, "ResourceClaim", world.namespace)
    assert all(item["metadata"].get("annotations") == {EXTENDED: "true"} for item in found)
    return {item["metadata"]["ownerReferences"][0]["name"]: item for item in found}


def devices(claim: Claim) -> set[tuple[str, str]]:
    results = claim["status"]["allocation"]["devices"]["results"]
    return {(each["pool"], each["device"]) for each in results}


def test_a_pod_gets_devices_of_the_class_of_its_extended_resource(cluster: World) -> None:
    machine(cluster, "a")
    cluster.ready()
    cluster.start()
    for name, gpus in (("one", 3), ("two", 5), ("three", 5)):
        cluster.pod(name, gpus=gpus)
    cluster.wait(lambda: sum(map(bool, cluster.nodes_of().values())) == 2)
    late = next(name for name, node in cluster.nodes_of().items() if not node)
    assert "1 no devices for its ResourceClaim" in cluster.waiting(late) or "GPU" in cluster.waiting(late)
    made = claims(cluster)
    placed = {"one", "two", "three"} - {late}
    assert made.keys() == placed
    for name in placed:
        pod, claim = cluster.pods()[name], made[name]
        assert claim["metadata"]["name"].startswith(f"{name}-extended-resources-")
        owner = claim["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", pod["metadata"]["uid"], True)
        assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": name, "uid": owner["uid"]}]
        assert pod["status"]["extendedResourceClaimStatus"] == {
            "resourceClaimName": claim["metadata"]["name"],
            "requestMappings": [{"containerName": "main", "resourceName": GPU, "requestName": "container-0-request-2"}],
        }
        assert "avactl.dev/devices" not in pod["metadata"].get("annotations", {})
    first, second = (devices(made[name]) for name in placed)
    assert not first & second
    assert first | second <= {("a", f"gpu-{number}") for number in range(8)}
    # Its claim goes with the pod.
    for name in placed:
        cluster.kube.delete("v1", "Pod", name, cluster.namespace)
    cluster.bound(late)
    wanted = cluster.pods()[late]["spec"]["containers"][0]["resources"]["limits"][GPU]
    assert len(devices(claims(cluster)[late])) == int(wanted)
    assert not cluster.defects()


def test_nodes_with_a_device_plugin_use_it(cluster: World) -> None:
    machine(cluster, "driver")
    cluster.node("plugin")
    cluster.ready()
    cluster.start()
    cluster.gang("train", 2)
    assert sorted(cluster.bound().values()) == ["driver", "plugin"]
    by_node = {node: name for name, node in cluster.nodes_of().items()}
    assert claims(cluster).keys() == {by_node["driver"]}
    pods = cluster.pods()
    assert "extendedResourceClaimStatus" not in pods[by_node["plugin"]]["status"]
    assert cluster.devices(by_node["plugin"]) == set(range(8))
    assert not cluster.devices(by_node["driver"])
    assert not cluster.defects()


def test_a_new_process_counts_the_devices(cluster: World) -> None:
    machine(cluster, "a")
    cluster.ready()
    process = cluster.start()
    cluster.pod("first", gpus=5)
    cluster.bound("first")
    cluster.kill(process)
    cluster.free_lease()
    cluster.start()
    cluster.pod("second", gpus=3)
    cluster.bound("second")
    cluster.pod("third", gpus=1)
    cluster.waiting("third")
    made = claims(cluster)
    assert len(devices(made["first"]) | devices(made["second"])) == 8


def test_what_a_crash_has_allocated_is_used_or_removed(cluster: World) -> None:
    for name in ("a", "b"):
        machine(cluster, name)
    cluster.ready()
    cluster.pod("p", gpus=8)
    uid = cluster.pods()["p"]["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
    metadata: dict[str, Any] = {
        "name": "p-extended-resources-x",
        "namespace": cluster.namespace,
        "annotations": {EXTENDED: "true"},
    }
    metadata |= {"ownerReferences": [owner], "finalizers": ["resource.kubernetes.io/delete-protection"]}
    exactly = {"deviceClassName": "test-gpus", "count": 8}
    spec = {"devices": {"requests": [{"name": "container-0-request-2", "exactly": exactly}]}}
    claim = cluster.kube.create({"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}).body
    results = [
        {"request": "container-0-request-2", "driver": DRIVER, "pool": "a", "device": f"gpu-{n}"} for n in range(8)
    ]
    field = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    claim["status"] = {
        "allocation": {"devices": {"results": results}, "nodeSelector": selector},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}],
    }
    cluster.kube.replace(claim, subresource="/status")
    # Meanwhile somebody took the CPUs of that machine.
    cluster.pod("cpu", cpu="64", nodeSelector={"kubernetes.io/hostname": "a"})
    cluster.bind("cpu", "a")
    cluster.start()
    assert cluster.bound("p")["p"] == "b"
    cluster.wait(lambda: len(cluster.kube.list(API, "ResourceClaim", cluster.namespace)) == 1)
    assert {node for node, _ in devices(claims(cluster)["p"])} == {"b"}


def test_the_claim_is_the_one_that_kube_scheduler_creates(cluster: World) -> None:
    for name in ("ours", "theirs"):
        machine(cluster, name, gpus=16)
    cluster.ready()
    cluster.start()
    with running(cluster.plane, "kube-scheduler"):
        compare_claims(cluster)


def compare_claims(cluster: World) -> None:
    always = {"restartPolicy": "Always"}
    shapes = [
        ([], [container("one", gpu=2), container("two", gpu=1), container("three")]),
        ([container("init", gpu=3)], [container("one", gpu=2), container("two", gpu=2)]),
        ([container("init", gpu=6), container("again", gpu=7)], [container("one", gpu=2), container("two", gpu=2)]),
        ([{**container("side", gpu=1), **always}, container("init", gpu=3)], [container("one", gpu=1)]),
        ([container("init", implicit=2)], [container("one", gpu=1, implicit=1), container("two", gpu=1)]),
    ]
    for number, (init, main) in enumerate(shapes):
        for where, scheduler in (("ours", "avactl"), ("theirs", "default-scheduler")):
            cluster.pod(
                f"{where}-{number}",
                scheduler=scheduler,
                initContainers=init,
                containers=main,
                nodeSelector={"kubernetes.io/hostname": where},
            )
        cluster.bound()
        made, pods = claims(cluster), cluster.pods()
        mine, other = made[f"ours-{number}"], made[f"theirs-{number}"]
        assert mine["spec"] == other["spec"]
        said = [pods[f"{where}-{number}"]["status"]["extendedResourceClaimStatus"] for where in ("ours", "theirs")]
        assert said[0]["requestMappings"] == said[1]["requestMappings"]
        for where in ("ours", "theirs"):
            cluster.kube.delete("v1", "Pod", f"{where}-{number}", cluster.namespace)
        cluster.wait(lambda: not cluster.kube.list(API, "ResourceClaim", cluster.namespace))


def test_a_refused_binding_leaves_no_claim(cluster: World) -> None:
    machine(cluster, "a")
    cluster.ready()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"], "operations": ["CREATE"]}
    admission, metadata = "admissionregistration.k8s.io/v1", {"name": "test-no-bindings"}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}}
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], **here},
        "validations": [{"expression": "false", "message": "not today"}],
    }
    policy = {"apiVersion": admission, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec}
    binding = {"apiVersion": admission, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata}
    cluster.kube.create(policy)
    cluster.kube.create({**binding, "spec": {"policyName": "test-no-bindings", "validationActions": ["Deny"]}})
    try:
        cluster.pod("tried", scheduler="nobody")
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/tried/binding"
        body = {"metadata": {"name": "tried"}, "target": {"kind": "Node", "name": "a"}}

        def refused() -> bool:
            try:
                cluster.kube.request("POST", path, body=body, query={"dryRun": "All"})
            except ApiError as error:
                return "not today" in str(error)
            return False

        cluster.wait(refused)
        cluster.start()
        cluster.pod("p", gpus=8)
        cluster.waiting("p", "not today")
        cluster.wait(lambda: not claims(cluster))
    finally:
        for kind in ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"):
            cluster.kube.delete(admission, kind, "test-no-bindings")
    cluster.bound("p")
    assert len(devices(claims(cluster)["p"])) == 8
    assert (
        claims(cluster)["p"]["metadata"]["name"]
        == (cluster.pods()["p"]["status"]["extendedResourceClaimStatus"]["resourceClaimName"])
    )


def test_a_quota_of_claims_is_named(cluster: World) -> None:
    machine(cluster, "a")
    cluster.ready()
    spec = {"hard": {"test-gpus.deviceclass.resource.k8s.io/devices": "3"}}
    metadata = {"name": "claims", "namespace": cluster.namespace}
    cluster.kube.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})
    cluster.wait(lambda: cluster.kube.get("v1", "ResourceQuota", "claims", cluster.namespace).get("status") or {})
    cluster.start()
    cluster.pod("q", gpus=3)
    cluster.bound("q")
    assert len(devices(claims(cluster)["q"])) == 3


def test_a_class_that_comes_later_is_used(cluster: World) -> None:
    cluster.kube.delete(API, "DeviceClass", "test-gpus")
    machine(cluster, "a")
    cluster.ready()
    cluster.start()
    cluster.pod("p", container=container("main", implicit=2))
    cluster.waiting("p", "no node has resource deviceclass.resource.kubernetes.io/test-gpus")
    device_class(cluster, "test-gpus", f'device.driver == "{DRIVER}"')
    cluster.bound("p")
    assert len(devices(claims(cluster)["p"])) == 2


def test_pods_with_devices_of_a_class_are_preempted(cluster: World) -> None:
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "test-high"}}
    cluster.kube.create({**priority, "value": 1000})
    machine(cluster, "a")
    labels = {"metadata": {"name": "a", "labels": {"avactl.dev/gpu": "V100"}}}
    cluster.kube.patch({"apiVersion": "v1", "kind": "Node", **labels})
    cluster.ready()
    cluster.start()
    try:
        cluster.pod("low", gpus=8)
        cluster.bound("low")
        cluster.pod("high", gpus=8, priorityClassName="test-high")
        assert cluster.bound("high")["high"] == "a"
    finally:
        cluster.kube.delete("scheduling.k8s.io/v1", "PriorityClass", "test-high")
    cluster.wait(lambda: claims(cluster).keys() == {"high"})
    assert not cluster.defects()
