"""Random drivers, classes and claims, and Kubernetes' own allocator to ask about them."""

from __future__ import annotations

import hashlib
import random
import subprocess
from collections.abc import Sequence
from typing import Any

import orjson

from tools.controlplane.build import KUBERNETES_VERSIONS, Module, build_binaries, kubernetes_flags

GPU, NIC = "gpu.example.com", "nic.example.com"
NODE = "n0"
Object = dict[str, Any]


def peer(worlds: Sequence[Object]) -> list[Object]:
    """What Kubernetes' allocator answers for worlds. Raises UnavailableError without Go."""
    version, folder = KUBERNETES_VERSIONS["1.37"]
    source = hashlib.sha256((folder / "allocator" / "main.go").read_bytes()).hexdigest()[:16]
    module = Module(folder, f"{kubernetes_flags(version)} -X main.source={source}", {"allocator": "./allocator"})
    binary = build_binaries(["allocator"], [module])["allocator"]
    given = b"\n".join(orjson.dumps(world) for world in worlds)
    output = subprocess.run([binary], input=given, capture_output=True, check=True).stdout
    return [orjson.loads(line) for line in output.splitlines()]


def world(seed: int) -> Object:
    """A node, what drivers publish, what is in use already, and the claims of one pod."""
    rng = random.Random(seed)
    slices = _gpus(rng) + (_nics(rng) if rng.random() < 0.6 else []) + (_parts(rng) if rng.random() < 0.3 else [])
    if rng.random() < 0.08:
        # In all slices of the pool: which of different counts holds depends on upstream's order.
        pool = rng.choice(slices)["spec"]["pool"]["name"]
        for each in slices:
            each["spec"]["pool"]["resourceSliceCount"] += each["spec"]["pool"]["name"] == pool
    if rng.random() < 0.1:
        old = orjson.loads(orjson.dumps(slices[0]))
        old["metadata"]["name"], old["spec"]["pool"]["generation"] = "old", 0
        slices.append(old)
    labels = {"zone": "a", "kubernetes.io/hostname": NODE}
    return {
        "node": {"metadata": {"name": NODE, "labels": labels}},
        "slices": slices,
        "classes": _classes(rng),
        "allocated": _allocated(rng, slices),
        "claims": [_claim(rng, f"claim-{number}") for number in range(1 + (rng.random() < 0.3))],
    }


def _slice(name: str, driver: str, pool: str, devices: list[Object], count: int = 1, **spec: Any) -> Object:
    body: Object = {
        "driver": driver,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": count},
        **(spec or {"nodeName": NODE}),
    }
    if devices:
        body["devices"] = devices
    return {"metadata": {"name": name}, "spec": body}


def _gpus(rng: random.Random) -> list[Object]:
    odd = rng.random()
    devices = []
    for number in range(rng.randint(1, 6)):
        device: Object = {
            "name": f"gpu-{number}",
            "attributes": {
                "index": {"int": number},
                "numa": {"int": number // 2},
                "model": {"string": rng.choice("xyy")},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci{number // 2}"},
                "ecc": {"bool": number % 3 == 0},
                "driverVersion": {"version": f"1.{number % 2}.0"},
            },
            "capacity": {"memory": {"value": rng.choice(["16Gi", "32Gi"])}},
        }
        if rng.random() < 0.15:
            del device["attributes"]["numa"]
        if rng.random() < 0.2:
            device["taints"] = [{"key": "sick", "value": "yes", "effect": rng.choice(["NoSchedule", "NoExecute"])}]
        if odd < 0.2:
            device["allowMultipleAllocations"] = True
            policy: Object | None = rng.choice(
                [
                    None,
                    {"default": "4Gi", "validValues": ["4Gi", "8Gi", "16Gi"]},
                    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "12Gi", "step": "1Gi"}},
                    {"default": "512Mi", "validRange": {"min": "500m", "step": "250m"}},
                ]
            )
            if policy:
                device["capacity"]["memory"]["requestPolicy"] = policy
        if odd > 0.9:
            device |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"], "bindsToNode": True}
        devices.append(device)
    half = len(devices) // 2 if rng.random() < 0.3 else 0
    if half:
        return [_slice("gpus-1", GPU, NODE, devices[half:], 2), _slice("gpus-0", GPU, NODE, devices[:half], 2)]
    return [_slice("gpus-0", GPU, NODE, devices)]


def _nics(rng: random.Random) -> list[Object]:
    devices: list[Object] = [
        {
            "name": f"nic-{number}",
            "attributes": {
                "numa": {"int": number},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci{number}"},
                f"{GPU}/numa": {"int": number},
            },
        }
        for number in range(rng.randint(1, 3))
    ]
    zone = {"key": "zone", "operator": "In", "values": [rng.choice("aab")]}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    where = rng.random()
    if where < 0.4:
        return [_slice("nics", NIC, "nics", devices)]
    if where < 0.6:
        return [_slice("nics", NIC, "fabric", devices, allNodes=True)]
    if where < 0.8:
        return [_slice("nics", NIC, "fabric", devices, nodeSelector=selector)]
    for device in devices:
        device |= rng.choice(
            [{"nodeName": NODE}, {"nodeName": "other"}, {"allNodes": True}, {"nodeSelector": selector}]
        )
    return [_slice("nics", NIC, "fabric", devices, perDeviceNodeSelection=True)]


def _parts(rng: random.Random) -> list[Object]:
    """One GPU, whole or in parts, as MIG has it."""
    amounts = {"memory": {"value": "40Gi"}, "slices": {"value": "7"}}
    counters = [{"name": "gpu", "counters": amounts}]
    devices: list[Object] = [
        {
            "name": "whole",
            "attributes": {"model": {"string": "mig"}},
            "consumesCounters": [{"counterSet": "gpu", "counters": amounts}],
        }
    ]
    for number in range(rng.randint(1, 4)):
        taken = {"memory": {"value": f"{rng.choice([10, 20])}Gi"}, "slices": {"value": str(rng.choice([1, 3]))}}
        part: Object = {
            "name": f"part-{number}",
            "attributes": {"model": {"string": "part"}, "numa": {"int": number}},
            "consumesCounters": [{"counterSet": "gpu", "counters": taken}],
        }
        if rng.random() < 0.3:
            part["allowMultipleAllocations"] = True
            if rng.random() < 0.5:
                part["capacity"] = {"memory": {"value": "8Gi", "requestPolicy": {"default": "2Gi"}}}
        devices.append(part)
    return [
        _slice("parts-counters", GPU, "parts", [], 2, nodeName=NODE, sharedCounters=counters),
        _slice("parts-devices", GPU, "parts", devices, 2),
    ]


def _classes(rng: random.Random) -> list[Object]:
    config = [{"opaque": {"driver": GPU, "parameters": {"kind": "class"}}}]
    expressions = {
        "gpu": [f'device.driver == "{GPU}"'],
        "nic": [f'device.driver == "{NIC}"'],
        "any": [],
        "large": [
            f'device.driver == "{GPU}" && "memory" in device.capacity["{GPU}"] && '
            f'device.capacity["{GPU}"].memory.compareTo(quantity("20Gi")) >= 0'
        ],
    }
    return [
        {
            "metadata": {"name": name},
            "spec": {
                "selectors": [{"cel": {"expression": each}} for each in found],
                **({"config": config} if name == "gpu" and rng.random() < 0.5 else {}),
            },
        }
        for name, found in expressions.items()
    ]


def _allocated(rng: random.Random, slices: list[Object]) -> list[Object]:
    results: list[Object] = []
    for each in slices:
        for device in each["spec"].get("devices") or ():
            if rng.random() < 0.2:
                result: Object = {
                    "request": "r",
                    "driver": each["spec"]["driver"],
                    "pool": each["spec"]["pool"]["name"],
                    "device": device["name"],
                }
                if device.get("allowMultipleAllocations"):
                    result["shareID"] = str(len(results))
                    if "capacity" in device:
                        result["consumedCapacity"] = {"memory": rng.choice(["4Gi", "8Gi"])}
                elif rng.random() < 0.15:
                    result["adminAccess"] = True
                results.append(result)
    status = {"allocation": {"devices": {"results": results}}}
    return [{"metadata": {"name": "before", "namespace": "d", "uid": "before"}, "spec": {}, "status": status}]


def _claim(rng: random.Random, name: str) -> Object:
    requests: list[Object] = []
    for number in range(rng.choice([1, 1, 1, 2, 2, 3])):
        request: Object = {"name": f"r{number}"}
        if rng.random() < 0.2:
            request["firstAvailable"] = [{"name": f"a{one}", **_exactly(rng)} for one in range(rng.randint(1, 3))]
        else:
            request["exactly"] = _exactly(rng)
            if rng.random() < 0.08:
                request["exactly"]["adminAccess"] = True
        requests.append(request)
    devices: Object = {"requests": requests}
    names = [request["name"] for request in requests]
    covered = rng.choice([[], names, names[:1], names[1:]])
    if rng.random() < 0.3:
        attribute = rng.choice(["resource.kubernetes.io/pcieRoot", f"{GPU}/numa", f"{GPU}/model", f"{GPU}/ecc"])
        # With several devices of one request, upstream's constraint remembers the last one's value only.
        single = all(
            each.get("count", 1) == 1 and "allocationMode" not in each
            for request in requests
            for each in request.get("firstAvailable") or [request["exactly"]]
        )
        kind = "distinctAttribute" if single and rng.random() < 0.5 else "matchAttribute"
        constraint = {kind: attribute, **({"requests": covered} if covered else {})}
        devices["constraints"] = [constraint]
    if rng.random() < 0.2:
        devices["config"] = [{"opaque": {"driver": GPU, "parameters": {"kind": "claim"}}}]
        if covered:
            devices["config"][0]["requests"] = covered
    return {
        "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1"},
        "spec": {"devices": devices},
    }


def _exactly(rng: random.Random) -> Object:
    found: Object = {"deviceClassName": rng.choice(["gpu", "gpu", "gpu", "nic", "any", "large"])}
    if rng.random() < 0.15:
        found["allocationMode"] = "All"
    else:
        found["allocationMode"], found["count"] = "ExactCount", rng.choice([1, 1, 1, 2, 2, 3])
    if rng.random() < 0.3:
        expression = rng.choice(
            [
                f'has(device.attributes["{GPU}"].index) && device.attributes["{GPU}"].index > 0',
                f'device.attributes["{GPU}"].?model.orValue("") == "y"',
                f'"numa" in device.attributes["{GPU}"] ? device.attributes["{GPU}"].numa % 2 == 0 : false',
                f'cel.bind(own, device.attributes["{GPU}"], "ecc" in own && own.ecc)',
                "device.allowMultipleAllocations || true",
            ]
        )
        found["selectors"] = [{"cel": {"expression": expression}}]
    if rng.random() < 0.3:
        found["tolerations"] = [
            rng.choice([{"operator": "Exists"}, {"key": "sick", "operator": "Equal", "value": "yes"}])
        ]
    if rng.random() < 0.1:
        found["capacity"] = {"requests": {"memory": rng.choice(["2Gi", "3Gi", "6Gi", "30Gi", "1100m"])}}
    return found
