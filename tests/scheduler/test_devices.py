"""What claims can ask for beyond so many GPUs, on a real API server, which checks what is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.scheduler.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
GPU, NIC = "gpu.example.com", "nic.example.com"
API = "resource.k8s.io/v1"
ROOT = "resource.kubernetes.io/pcieRoot"


@pytest.fixture
def drivers(world: World) -> Iterator[World]:
    for name, driver in (("gpu", GPU), ("nic", NIC)):
        selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
        body = {"metadata": {"name": name}, "spec": {"selectors": selectors}}
        world.kube.create({"apiVersion": API, "kind": "DeviceClass", **body})
    yield world
    for name in ("gpu", "nic"):
        world.kube.delete(API, "DeviceClass", name)
    world.kube.request("DELETE", "/apis/resource.k8s.io/v1/resourceslices")


def publish(world: World, driver: str, pool: str, devices: list[dict[str, Any]], count: int = 1, **spec: Any) -> None:
    where = spec or {"nodeName": pool}
    body = {"driver": driver, "pool": {"name": pool, "generation": 1, "resourceSliceCount": count}, **where}
    if devices:
        body["devices"] = devices
    name = f"{driver}-{pool}-{'devices' if devices else 'counters'}"
    world.kube.create({"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": body})


def device(name: str, index: int = 0, **more: Any) -> dict[str, Any]:
    attributes = {ROOT: {"string": f"pci{index // 2}"}, "index": {"int": index}, **more.pop("attributes", {})}
    return {"name": name, "attributes": attributes, **more}


def claim(world: World, name: str, *requests: dict[str, Any], **spec: Any) -> None:
    metadata = {"name": name, "namespace": world.namespace}
    body = {"devices": {"requests": list(requests), **spec}}
    world.kube.create({"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": body})


def exactly(name: str, device_class: str = "gpu", **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def pod(world: World, name: str, *claims: str, **more: Any) -> None:
    world.pod(name, resourceClaims=[{"name": each, "resourceClaimName": each} for each in claims], **more)


def status(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.kube.get(API, "ResourceClaim", name, world.namespace).get("status") or {}
    return found


def results(world: World, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = status(world, name)["allocation"]["devices"]["results"]
    return found


def devices(world: World, name: str) -> list[str]:
    return [each["device"] for each in results(world, name)]


def start(world: World, *nodes: str) -> None:
    for node in nodes:
        world.node(node, gpus=0, pool="")
    world.ready()
    world.start()


def test_gpus_with_their_nics_alternatives_and_shared_claims(drivers: World) -> None:
    publish(drivers, GPU, "n0", [device(f"gpu-{number}", number) for number in range(4)])
    publish(drivers, NIC, "fabric", [device(f"nic-{number}", 2 * number) for number in range(2)], allNodes=True)
    start(drivers, "n0")
    near = [{"matchAttribute": ROOT}]
    claim(drivers, "one", exactly("gpus", count=2), exactly("nic", "nic"), constraints=near)
    pod(drivers, "one", "one")
    drivers.bound("one")
    claim(drivers, "two", exactly("gpu"), exactly("nic", "nic"), constraints=near)
    pod(drivers, "two", "two")
    drivers.bound("two")
    first, second = devices(drivers, "one"), devices(drivers, "two")
    assert {tuple(sorted(first)), (*second,)} <= {
        ("gpu-0", "gpu-1", "nic-0"),
        ("gpu-2", "gpu-3", "nic-1"),
        ("gpu-0", "nic-0"),
        ("gpu-1", "nic-0"),
        ("gpu-2", "nic-1"),
        ("gpu-3", "nic-1"),
    }
    # The NICs are gone; of the alternatives the second can be had. Two pods share it.
    options = [
        {"name": "both", "deviceClassName": "nic", "count": 1},
        {"name": "gpu", "deviceClassName": "gpu", "allocationMode": "All"},
        {"name": "one", "deviceClassName": "gpu", "count": 1},
    ]
    claim(drivers, "three", {"name": "any", "firstAvailable": options})
    for number in range(2):
        pod(drivers, f"three-{number}", "three")
    drivers.bound("three-0", "three-1")
    assert [each["request"] for each in results(drivers, "three")] == ["any/one"]
    assert len(status(drivers, "three")["reservedFor"]) == 2
    assert len({*first, *second, *devices(drivers, "three")}) == 6
    claim(drivers, "none", exactly("nic", "nic"))
    pod(drivers, "none", "none")
    assert "1 without free devices for its ResourceClaim" in drivers.waiting("none")


def test_parts_of_devices(drivers: World) -> None:
    def takes(amount: str) -> dict[str, Any]:
        return {"consumesCounters": [{"counterSet": "gpu", "counters": {"memory": {"value": amount}}}]}

    parts = [device("whole", attributes={"type": {"string": "gpu"}}, **takes("40Gi"))]
    parts += [device(f"part-{n}", attributes={"type": {"string": "mig"}}, **takes("20Gi")) for n in range(3)]
    publish(drivers, GPU, "n0", parts, 2)
    counters = [{"name": "gpu", "counters": {"memory": {"value": "40Gi"}}}]
    publish(drivers, GPU, "n0", [], 2, nodeName="n0", sharedCounters=counters)
    memory = {"memory": {"value": "10Gi", "requestPolicy": {"default": "4Gi", "validValues": ["4Gi", "6Gi"]}}}
    publish(drivers, GPU, "n1", [device("shared", capacity=memory, allowMultipleAllocations=True)])
    start(drivers, "n0", "n1")
    select: dict[str, Any] = {
        "selectors": [{"cel": {"expression": f'device.attributes["{GPU}"].?type.orValue("") == "mig"'}}]
    }
    for name in ("a", "b", "c"):
        claim(drivers, name, exactly("part", **select))
        pod(drivers, name, name)
    drivers.wait(lambda: sum(map(bool, drivers.nodes_of().values())) == 2)
    last = next(name for name, node in drivers.nodes_of().items() if not node)
    drivers.waiting(last, "without free devices")
    drivers.kube.delete("v1", "Pod", next(name for name, node in drivers.nodes_of().items() if node), drivers.namespace)
    assert set(drivers.bound().values()) == {"n0"}
    for name, amount in (("x", "5Gi"), ("y", "4Gi"), ("z", "1Gi")):
        capacity = {"requests": {"memory": amount}}
        shared: dict[str, Any] = {
            "selectors": [{"cel": {"expression": "device.allowMultipleAllocations"}}],
            "capacity": capacity,
        }
        claim(drivers, name, exactly("share", **shared))
        pod(drivers, name, name)
    assert drivers.bound("x", "y")["y"] == "n1"
    assert [each["consumedCapacity"]["memory"] for name in "xy" for each in results(drivers, name)] == ["6Gi", "4Gi"]
    drivers.waiting("z", "without free devices")


def test_devices_that_are_sick_in_use_or_not_ready(drivers: World) -> None:
    taint = {"key": "example.com/sick", "value": "yes", "effect": "NoSchedule"}
    unready = {"bindingConditions": ["example.com/ready"], "bindingFailureConditions": ["example.com/broken"]}
    publish(drivers, GPU, "n0", [device("sick", 0, taints=[taint]), device("cold", 1, **unready)])
    start(drivers, "n0")
    claim(drivers, "cold", exactly("gpu"))
    pod(drivers, "cold", "cold")
    drivers.wait(lambda: status(drivers, "cold").get("allocation"))
    found = drivers.kube.get(API, "ResourceClaim", "cold", drivers.namespace)
    assert not drivers.nodes_of()["cold"]
    condition = {
        "type": "example.com/ready",
        "status": "True",
        "reason": "Warm",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    said = {"driver": GPU, "pool": "n0", "device": "cold", "conditions": [condition]}
    found["status"]["devices"] = [said]
    drivers.kube.replace(found, subresource="/status")
    drivers.bound("cold")
    claim(drivers, "healthy", exactly("gpu"))
    pod(drivers, "healthy", "healthy")
    drivers.waiting("healthy", "without free devices")
    claim(drivers, "doctor", exactly("gpu", tolerations=[{"key": "example.com/sick", "operator": "Exists"}]))
    pod(drivers, "doctor", "doctor")
    drivers.bound("doctor")
    assert devices(drivers, "doctor") == ["sick"]
    namespace = drivers.kube.get("v1", "Namespace", drivers.namespace)
    namespace["metadata"]["labels"]["resource.kubernetes.io/admin-access"] = "true"
    drivers.kube.replace(namespace)
    everything: dict[str, Any] = {"allocationMode": "All", "adminAccess": True, "tolerations": [{"operator": "Exists"}]}
    everything["selectors"] = [{"cel": {"expression": f'device.attributes["{GPU}"].index == 0'}}]
    claim(drivers, "monitor", exactly("gpu", **everything))
    pod(drivers, "monitor", "monitor")
    drivers.bound("monitor")
    assert devices(drivers, "monitor") == ["sick"]
    assert results(drivers, "monitor")[0]["adminAccess"]
