"""What a scheduler remembers of devices, after random changes, equals what one finds that starts anew."""

from __future__ import annotations

import random
from typing import Any

import pytest

from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.dra.allocator import StuckError
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.handlers.resources import nodes, resource_claims, slices
from avactl.scheduler.objects.watch_store import CallbackStore

GPU, FABRIC = "gpu.example.com", "fabric.example.com"
CLASSES = {"gpu": f'device.driver == "{GPU}"', "fabric": f'device.driver == "{FABRIC}"', "any": "true"}
DEMANDS = (("gpu", 1), ("gpu", 2), ("fabric", 1), ("any", 2))
NODES, SLICES, PODS = 3, 5, 4
STEPS = 30
Object = dict[str, Any]


class Cluster:
    """Objects as the API server has them, and the caches of a scheduler that watches them."""

    def __init__(self, objects: dict[str, dict[str, Object]] | None = None) -> None:
        self.cache = ClusterCache((), DraManager(GPU))
        for name, expression in CLASSES.items():
            spec = {"selectors": [{"cel": {"expression": expression}}]}
            self.cache.dra.put_class({"metadata": {"name": name}, "spec": spec})
        self._stores: dict[str, CallbackStore] = {
            "slices": slices(self.cache),
            "nodes": nodes(self.cache),
            "claims": resource_claims(self.cache),
            "pods": CallbackStore(self._put_pod, self._drop_pod, self.cache.pod_keys),
        }
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in self._stores}
        for kind, items in (objects or {}).items():
            for name, item in items.items():
                self.put(kind, name, item)
        self.cache.rebuild()

    def _put_pod(self, item: Object) -> None:
        self.cache.put_pod(item)

    def _drop_pod(self, key: str) -> None:
        self.cache.drop_pod(key)

    def put(self, kind: str, name: str, item: Object) -> None:
        self.objects[kind][name] = item
        self._stores[kind].put(item)

    def remove(self, kind: str, name: str) -> None:
        del self.objects[kind][name]
        self._stores[kind].remove(name)

    def settle(self) -> None:
        if self.cache.tables.stale:
            self.cache.rebuild()

    def possible(self, number: int) -> tuple[set[str], set[str]]:
        """Return the nodes that a pod can get, and those on which the placement engine counts its GPUs."""
        cache = self.cache
        pod = cache.tables.pods[f"a/asks-{number}"]
        demand = cache.dra.demand(pod)
        request = cache.requests.request(pod.shape, demand)
        found = set()
        for name in cache.tables.state.slots:
            try:
                if cache.choose(pod, request, cache.tables.mask([name])) is not None:
                    found.add(name)
            except StuckError:
                continue
        any_node = cache.choose(pod, request, None)
        assert (any_node is not None) == bool(found)
        allowed = cache.tables.state.allowed[request.nodes]
        return found, {name for name, slot in cache.tables.state.slots.items() if demand.exact and allowed[slot]}


def a_slice(rng: random.Random, name: str) -> Object:
    devices: list[Object] = [
        {"name": f"{name}-{number}", "attributes": {"index": {"int": number}}} for number in range(rng.randint(1, 3))
    ]
    spec: Object = {
        "driver": rng.choice((GPU, FABRIC)),
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    zone = {"key": "zone", "operator": "In", "values": [rng.choice("ab")]}
    of_node = {"nodeName": f"n{rng.randrange(NODES)}"}
    of_zone = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    of_all = {"allNodes": True}
    if rng.random() < 0.2:
        spec["perDeviceNodeSelection"] = True
        for device in devices:
            device.update(rng.choice((of_node, of_zone, of_all)))
    else:
        spec.update(rng.choice((of_node, of_node, of_zone, of_all)))
    return {"metadata": {"name": name}, "spec": spec}


def a_node(rng: random.Random, name: str) -> Object:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    labels = {"zone": rng.choice("abc"), "avactl.dev/gpu": "V100"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts}}


def a_claim(name: str, device_class: str, count: int, status: Object | None = None) -> Object:
    asked = {"name": "r", "exactly": {"deviceClassName": device_class, "count": count}}
    metadata = {"name": name, "namespace": "a", "uid": name, "resourceVersion": "2" if status else "1"}
    return {"metadata": metadata, "spec": {"devices": {"requests": [asked]}}, "status": status or {}}


def a_pod(name: str, node: str = "") -> Object:
    metadata = {"name": name, "namespace": "a", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec: Object = {
        "schedulerName": "avactl",
        "containers": [{"name": "main", "resources": {}}],
        "resourceClaims": [{"name": "c", "resourceClaimName": name}],
    }
    if node:
        spec["nodeName"] = node
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running" if node else "Pending"}}


def bind(rng: random.Random, live: Cluster, name: str) -> None:
    """Run a pod on the first node that has devices for it, or end the pod if it runs."""
    if f"a/{name}" in live.objects["pods"]:
        live.remove("pods", f"a/{name}")
        live.remove("claims", f"a/{name}")
        return
    dra, (device_class, count) = live.cache.dra, rng.choice(DEMANDS)
    live.put("claims", f"a/{name}", a_claim(name, device_class, count))
    live.put("pods", f"a/{name}", a_pod(name))
    ((claim, parsed),) = dra.demand(live.cache.tables.pods[f"a/{name}"]).wanted
    for info in live.cache.tables.nodes.values():
        found = dra.search(info.name, info.labels, (parsed,))
        if found is not None:
            allocation = dra.allocation(claim, found[0], info.name)
            users = [{"resource": "pods", "name": name, "uid": name}]
            status = {"allocation": allocation, "reservedFor": users}
            live.put("claims", f"a/{name}", a_claim(name, device_class, count, status))
            live.put("pods", f"a/{name}", a_pod(name, info.name))
            return
    live.remove("pods", f"a/{name}")
    live.remove("claims", f"a/{name}")


def change(rng: random.Random, live: Cluster) -> None:
    """Change one object."""
    kind = rng.choice(("slices", "slices", "nodes", "pods"))
    if kind == "pods":
        bind(rng, live, f"runs-{rng.randrange(PODS)}")
        return
    name = f"s{rng.randrange(SLICES)}" if kind == "slices" else f"n{rng.randrange(NODES)}"
    if name in live.objects[kind] and rng.random() < 0.5:
        live.remove(kind, name)
    else:
        live.put(kind, name, (a_slice if kind == "slices" else a_node)(rng, name))


@pytest.mark.parametrize("seed", range(12))
def test_caches_of_devices_equal_those_of_a_scheduler_that_starts(seed: int) -> None:
    rng = random.Random(seed)
    live = Cluster()
    for number, (device_class, count) in enumerate(DEMANDS):
        live.put("claims", f"a/asks-{number}", a_claim(f"asks-{number}", device_class, count))
        live.put("pods", f"a/asks-{number}", a_pod(f"asks-{number}"))
    for step in range(STEPS):
        change(rng, live)
        live.settle()
        asked = rng.sample(range(len(DEMANDS)), rng.randint(1, len(DEMANDS)))
        fresh = Cluster(live.objects)
        for number in asked:
            assert live.possible(number) == fresh.possible(number), (step, DEMANDS[number])
