"""Dynamic resource allocation on a real API server, whose controller makes claims from templates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.scheduler.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
DRIVER = "gpu.example.com"
API = "resource.k8s.io/v1"


@pytest.fixture
def dra(world: World) -> Iterator[World]:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].model.matches("(?i)\\\\bV100\\\\b")'
    selectors = [{"cel": {"expression": expression}}]
    world.kube.create(
        {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "test-v100"}, "spec": {"selectors": selectors}}
    )
    yield world
    world.kube.delete(API, "DeviceClass", "test-v100")
    world.kube.request("DELETE", "/apis/resource.k8s.io/v1/resourceslices")


def machine(world: World, name: str, model: str = "Tesla V100", gpus: int = 8) -> None:
    world.node(name, gpus=0, pool="")
    devices = [
        {"name": f"gpu-{number}", "attributes": {"model": {"string": model}, "index": {"int": number}}}
        for number in range(gpus)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"nodeName": name, "driver": DRIVER, "pool": pool, "devices": devices}
    world.kube.create({"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})


def template(world: World, gpus: int, **exactly: Any) -> str:
    name = f"gpus-{gpus}"
    request = {"name": "gpus", "exactly": {"deviceClassName": "test-v100", "count": gpus, **exactly}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    metadata = {"name": name, "namespace": world.namespace}
    world.kube.apply({"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec})
    return name


def pod(world: World, name: str, claims: str, **more: Any) -> None:
    world.pod(name, resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": claims}], **more)


def allocated(world: World) -> dict[str, set[tuple[str, str]]]:
    """Devices of each pod: (node, device)."""
    found: dict[str, set[tuple[str, str]]] = {}
    for claim in world.kube.list(API, "ResourceClaim", world.namespace):
        status = claim.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        for consumer in status.get("reservedFor") or ():
            found[consumer["name"]] = {(each["pool"], each["device"]) for each in results}
            assert "resource.kubernetes.io/delete-protection" in claim["metadata"]["finalizers"]
    return found


def test_claims_are_allocated_and_reserved(dra: World) -> None:
    machine(dra, "a")
    machine(dra, "b", model="Tesla T4")
    dra.ready()
    dra.start()
    four = template(dra, 4)
    for number in range(3):
        pod(dra, f"p{number}", four)
    dra.bound("p0", "p1")
    assert dra.waiting("p2").startswith("fits on none of 2 nodes: 1 is excluded (1 no devices for its ResourceClaim")
    devices = allocated(dra)
    assert devices["p0"] | devices["p1"] == {("a", f"gpu-{number}") for number in range(8)}
    dra.kube.delete("v1", "Pod", "p0", dra.namespace)
    dra.bound("p2")
    assert allocated(dra)["p2"] == devices["p0"]


def test_a_new_process_knows_what_is_allocated(dra: World) -> None:
    machine(dra, "a")
    dra.ready()
    process = dra.start()
    five, three = template(dra, 5), template(dra, 3)
    pod(dra, "first", five)
    dra.bound("first")
    dra.kill(process)
    dra.free_lease()
    dra.start()
    pod(dra, "second", three)
    dra.bound("second")
    devices = allocated(dra)
    assert not devices["first"] & devices["second"]


def test_what_a_crash_has_allocated_is_used_or_given_back(dra: World) -> None:
    for name in ("a", "b"):
        machine(dra, name)
    dra.ready()
    eight = template(dra, 8)
    pod(dra, "p", eight)
    dra.wait(lambda: dra.kube.list(API, "ResourceClaim", dra.namespace))
    claim = dra.kube.list(API, "ResourceClaim", dra.namespace)[0]
    results = [{"request": "gpus", "driver": DRIVER, "pool": "a", "device": f"gpu-{n}"} for n in range(8)]
    claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    claim = dra.kube.replace(claim).body
    uid = dra.pods()["p"]["metadata"]["uid"]
    field = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    claim["status"] = {
        "allocation": {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}],
    }
    dra.kube.replace(claim, subresource="/status")
    # Meanwhile somebody took the CPUs of that machine.
    dra.pod("cpu", cpu="64", nodeSelector={"kubernetes.io/hostname": "a"})
    dra.bind("cpu", "a")
    dra.start()
    assert dra.bound("p")["p"] == "b"
    assert {node for node, _ in allocated(dra)["p"]} == {"b"}


def test_a_gang_gets_all_of_its_claims(dra: World) -> None:
    for number in range(3):
        machine(dra, f"n{number}")
    dra.ready()
    dra.start()
    eight = template(dra, 8)
    for number in range(3):
        pod(
            dra,
            f"train-{number}",
            eight,
            labels={"avactl.dev/gang": "train"},
            notes={"avactl.dev/gang-size": "3"},
        )
    assert sorted(dra.bound().values()) == ["n0", "n1", "n2"]
    found = {name: len(devices) for name, devices in allocated(dra).items()}
    assert found == {f"train-{number}": 8 for number in range(3)}


def test_what_is_not_supported_is_refused_in_words(dra: World) -> None:
    machine(dra, "a")
    dra.ready()
    dra.start()
    selectors = [{"cel": {"expression": 'device.driver.replace("x", "y") == "gpu"'}}]
    pod(dra, "odd", template(dra, 1, selectors=selectors))
    assert "`.replace()` is not supported" in dra.waiting("odd")
