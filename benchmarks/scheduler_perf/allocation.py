"""Allocation of ResourceClaims without pods, which scheduler_perf makes with kube-scheduler's allocator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from avactl.scheduler.cel.compiler import compile_selector
from avactl.scheduler.dra.resource_slices import Key, SliceDevice
from benchmarks.scheduler_perf.templates import Manifest

_REQUEST_FIELDS = frozenset({"deviceClassName", "selectors", "count", "allocationMode"})


class AllocationError(Exception):
    """A claim asks for what this allocation does not know, or for more than is free."""


class Allocation:
    """The free devices of all ResourceSlices; each claim takes one."""

    def __init__(self, slices: Sequence[Manifest], classes: Mapping[str, Manifest]) -> None:
        self._classes = classes
        self._devices = [
            (SliceDevice(item["spec"]["driver"], item["spec"]["pool"]["name"], device, False), _reach(item["spec"]))
            for item in slices
            for device in item["spec"].get("devices", ())
        ]
        self._taken: set[Key] = set()
        self._counters: set[tuple[str, str, str]] = set()

    def allocate(self, claim: Manifest) -> Manifest:
        """Return the allocation of a claim, and take its device. Raises AllocationError."""
        name, devices = claim["metadata"]["name"], claim["spec"]["devices"]
        requests = devices.get("requests", [])
        exactly = requests[0].get("exactly") if len(requests) == 1 else None
        if exactly is None or devices.get("constraints") or exactly.get("count", 1) != 1:
            raise AllocationError(f"claim {name}: not one request of exactly one device")
        if unknown := set(exactly) - _REQUEST_FIELDS:
            raise AllocationError(f"claim {name}: cannot allocate by {', '.join(sorted(unknown))}")
        selectors = [*self._classes[exactly["deviceClassName"]]["spec"].get("selectors", ())]
        selectors += exactly.get("selectors", ())
        device, node_selector = self._take(name, [selector["cel"]["expression"] for selector in selectors])
        driver, pool, label = device.key
        result = {"request": requests[0]["name"], "driver": driver, "pool": pool, "device": label}
        return {"devices": {"results": [result]}, "nodeSelector": node_selector}

    def _take(self, name: str, expressions: Iterable[str]) -> tuple[SliceDevice, Manifest]:
        selectors = [compile_selector(expression) for expression in expressions]
        for device, node_selector in self._devices:
            counters = {(device.key[1], *counter[:2]) for counter in device.counters}
            if device.key in self._taken or counters & self._counters:
                continue
            if all(selects(device.facts) for selects in selectors):
                self._taken.add(device.key)
                self._counters |= counters
                return device, node_selector
        raise AllocationError(f"claim {name}: no device is free")


def _reach(spec: Manifest) -> Manifest:
    if "nodeName" in spec:
        field = {"key": "metadata.name", "operator": "In", "values": [spec["nodeName"]]}
        return {"nodeSelectorTerms": [{"matchFields": [field]}]}
    selector: Manifest = spec["nodeSelector"]
    return selector
