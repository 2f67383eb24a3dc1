"""GPUs under dynamic resource allocation: what slices publish, what claims ask for, and what they have.

The GPUs of a node are the whole devices of one driver there, numbered as the machine numbers them. A request is met by
nodes all of whose GPUs it selects. What it cannot express (parts of devices, alternatives, constraints between
devices, devices of other drivers) is refused in words. Source: resource.k8s.io/v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from avactl.kube import logs
from avactl.placement.state import MAX_GPUS
from avactl.scheduler import cel
from avactl.scheduler.pod import Pod
from avactl.scheduler.rules import NotYetError, RuleError

FINALIZER = "resource.kubernetes.io/delete-protection"
_PARTS = (
    "consumesCounters", "allowMultipleAllocations", "bindingConditions", "bindsToNode", "taints", "nodeName",
    "nodeSelector", "allNodes",
)  # fmt: skip
"""Fields of devices that are more than one whole GPU of the slice's node, free for anybody."""


class Gpu(NamedTuple):
    """One device."""

    driver: str
    pool: str
    name: str
    facts: cel.Device


class Slice(NamedTuple):
    """One ResourceSlice of a node."""

    node: str
    driver: str
    pool: str
    generation: int
    parts: int
    """Slices of the pool."""
    devices: tuple[Gpu, ...]


class Wanted(NamedTuple):
    """One request of a claim: so many GPUs that all selectors take."""

    name: str
    selectors: tuple[tuple[str, bool], ...]
    """Expressions, and whether an administrator wrote them."""
    gpus: int
    device_class: str


class Claim:
    """One ResourceClaim."""

    __slots__ = (
        "config", "deleting", "finalized", "key", "name", "namespace", "requests", "reserved", "results", "uid",
        "version",
    )  # fmt: skip

    def __init__(self, item: Mapping[str, Any]) -> None:
        metadata, devices = item["metadata"], item["spec"].get("devices") or {}
        status = item.get("status") or {}
        self.namespace: str = metadata["namespace"]
        self.name: str = metadata["name"]
        self.key = f"{self.namespace}/{self.name}"
        self.uid: str = metadata["uid"]
        self.version: str = metadata["resourceVersion"]
        self.finalized = FINALIZER in (metadata.get("finalizers") or ())
        self.deleting = "deletionTimestamp" in metadata
        self.requests: list[dict[str, Any]] = devices.get("requests") or []
        self.config: list[dict[str, Any]] = devices.get("config") or []
        if devices.get("constraints"):
            self.requests = [{"constraints": True}]
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        self.results = tuple((each["driver"], each["pool"], each["device"]) for each in results)
        self.reserved: list[dict[str, Any]] = status.get("reservedFor") or []

    @property
    def allocated(self) -> bool:
        """Whether it has its devices."""
        return bool(self.results)


class Demand(NamedTuple):
    """What a pod's claims ask for."""

    key: str
    """Equal for pods that ask for the same."""
    wanted: tuple[tuple[Claim, tuple[Wanted, ...]], ...]
    """Claims without devices yet."""
    held: tuple[Claim, ...]
    """Claims that have them."""

    @property
    def gpus(self) -> int:
        """How many are to be allocated."""
        return sum(each.gpus for _, requests in self.wanted for each in requests)


class Dra:
    """Slices, classes and claims."""

    def __init__(self, driver: str) -> None:
        """`driver` is the one whose devices are GPUs where a node has devices of several."""
        self._driver = driver
        self._slices: dict[str, Slice] = {}
        self._classes: dict[str, tuple[tuple[str, ...], list[dict[str, Any]]]] = {}
        self.claims: dict[str, Claim] = {}
        self._gpus: dict[str, tuple[Gpu, ...]] | None = None
        self._places: dict[tuple[str, str, str], tuple[str, int]] = {}
        self._offers: dict[tuple[str, str], bool] = {}
        self._demands: dict[str, tuple[Wanted, ...]] = {}

    # -- what is there ----------------------------------------------------------------------------------------------

    def put_slice(self, item: Mapping[str, Any]) -> bool:
        """A slice is there, or has changed; whether that changes anything here."""
        spec, name = item["spec"], item["metadata"]["name"]
        node = spec.get("nodeName")
        if not node:
            return False  # of no one node: network-attached devices
        pool, driver = spec["pool"], spec["driver"]
        devices = []
        for device in spec.get("devices") or ():
            if any(device.get(part) for part in _PARTS):
                continue
            facts = _facts(driver, device)
            kind = facts.attributes.get(driver, {}).get("type", "gpu")
            if kind in ("gpu", "full"):
                devices.append(Gpu(driver, pool["name"], device["name"], facts))
        found = Slice(node, driver, pool["name"], pool["generation"], pool["resourceSliceCount"], tuple(devices))
        if self._slices.get(name) == found:
            return False
        self._slices[name] = found
        self._forget()
        return True

    def drop_slice(self, name: str) -> bool:
        """A slice is gone; whether it was known."""
        self._forget()
        return self._slices.pop(name, None) is not None

    def slices(self) -> Iterable[str]:
        """Names of the slices."""
        return self._slices

    def put_class(self, item: Mapping[str, Any]) -> None:
        """A DeviceClass is there, or has changed."""
        spec = item.get("spec") or {}
        expressions = tuple(each["cel"]["expression"] for each in spec.get("selectors") or () if "cel" in each)
        self._classes[item["metadata"]["name"]] = (expressions, spec.get("config") or [])

    def drop_class(self, name: str) -> None:
        """A DeviceClass is gone."""
        self._classes.pop(name, None)

    def classes(self) -> Iterable[str]:
        """Names of the classes."""
        return self._classes

    def _forget(self) -> None:
        self._gpus = None
        self._offers.clear()

    def gpus(self, node: str) -> tuple[Gpu, ...]:
        """The GPUs of a node, in the machine's order."""
        if self._gpus is None:
            self._gpus = self._number()
        return self._gpus.get(node, ())

    def _number(self) -> dict[str, tuple[Gpu, ...]]:
        newest: dict[tuple[str, str], int] = {}
        for each in self._slices.values():
            key = (each.driver, each.pool)
            newest[key] = max(newest.get(key, 0), each.generation)
        parts: dict[tuple[str, str, str], list[Slice]] = {}
        for each in self._slices.values():
            if each.generation == newest[each.driver, each.pool]:
                parts.setdefault((each.node, each.driver, each.pool), []).append(each)
        by_driver: dict[str, dict[str, list[Gpu]]] = {}
        for (node, driver, _), slices in parts.items():
            # A pool of which slices are missing is being published.
            if len(slices) == slices[0].parts:
                mine = by_driver.setdefault(node, {}).setdefault(driver, [])
                mine += [gpu for each in slices for gpu in each.devices]
        result: dict[str, tuple[Gpu, ...]] = {}
        self._places = {}
        for node, drivers in by_driver.items():
            driver = self._driver if self._driver in drivers else min(drivers)
            gpus = sorted(drivers[driver], key=_order)[:MAX_GPUS]
            result[node] = tuple(gpus)
            for index, gpu in enumerate(gpus):
                self._places[gpu.driver, gpu.pool, gpu.name] = (node, index)
        return result

    def place(self, result: tuple[str, str, str]) -> tuple[str, int] | None:
        """Node and number of an allocated device; None for one that is no GPU here."""
        if self._gpus is None:
            self._gpus = self._number()
        return self._places.get(result)

    # -- what is asked for ------------------------------------------------------------------------------------------

    def demand(self, pod: Pod) -> Demand:
        """What a pod's claims ask for. Raises RuleError where it must wait, or asks for what is not supported."""
        wanted: list[tuple[Claim, tuple[Wanted, ...]]] = []
        held: list[Claim] = []
        for name, made in pod.claims:
            claim = self.claims.get(f"{pod.namespace}/{made}") if made else None
            if claim is None or claim.deleting:
                raise NotYetError(f"waits for its ResourceClaim {made or name}, which is not there yet")
            if claim.allocated:
                if len(claim.reserved) >= 256 and all(each["uid"] != pod.uid for each in claim.reserved):
                    raise RuleError(f"ResourceClaim {made} is in use by 256 pods, which is the most")
                held.append(claim)
            else:
                wanted.append((claim, self._requests(claim)))
        parts = [[each.selectors, each.gpus] for _, requests in wanted for each in requests]
        key = orjson.dumps(parts).decode()
        self._demands.setdefault(key, tuple(each for _, requests in wanted for each in requests))
        return Demand(key, tuple(wanted), tuple(held))

    def _requests(self, claim: Claim) -> tuple[Wanted, ...]:
        found = []
        for request in claim.requests:
            exactly = request.get("exactly")
            if "constraints" in request:
                raise RuleError("its ResourceClaim has constraints between devices, which are not supported")
            if exactly is None:
                raise RuleError("its ResourceClaim asks for the first available of several, which is not supported")
            for field in ("adminAccess", "tolerations", "capacity"):
                if exactly.get(field):
                    raise RuleError(f"its ResourceClaim asks with `{field}`, which is not supported")
            if exactly.get("allocationMode", "ExactCount") != "ExactCount":
                raise RuleError("its ResourceClaim asks for all devices of a machine: ask for their number")
            name = exactly["deviceClassName"]
            if name not in self._classes:
                raise RuleError(f"its ResourceClaim asks for the DeviceClass {name}, which is not there")
            selectors = [(expression, True) for expression in self._classes[name][0]]
            selectors += [(each["cel"]["expression"], False) for each in exactly.get("selectors") or ()]
            for expression, trusted in selectors:
                try:
                    cel.compile_selector(expression, trusted)
                except cel.CelError as error:
                    raise RuleError(f"selector of DeviceClass {name} or of the claim: {error}") from None
            found.append(Wanted(request["name"], tuple(selectors), exactly.get("count", 1), name))
        return tuple(found)

    def offers(self, node: str, key: str) -> bool:
        """Whether all GPUs of a node are what a demand asks for."""
        known = self._offers.get((node, key))
        if known is None:
            gpus = self.gpus(node)
            selectors = {selector for wanted in self._demands[key] for selector in wanted.selectors}
            known = bool(gpus) and all(_takes(selectors, gpu) for gpu in gpus)
            self._offers[node, key] = known
        return known

    # -- what is given ----------------------------------------------------------------------------------------------

    def allocation(self, claim: Claim, requests: Sequence[Wanted], node: str, gpus: Sequence[int]) -> dict[str, Any]:
        """`status.allocation` of a claim that gets these GPUs of a node."""
        here, left = self.gpus(node), list(gpus)
        results: list[dict[str, Any]] = []
        config: list[dict[str, Any]] = []
        for wanted in requests:
            for index in left[: wanted.gpus]:
                gpu = here[index]
                results.append({"request": wanted.name, "driver": gpu.driver, "pool": gpu.pool, "device": gpu.name})
            del left[: wanted.gpus]
            for each in self._classes.get(wanted.device_class, ((), []))[1]:
                config.append({"source": "FromClass", "requests": [wanted.name], **each})
        config += [{"source": "FromClaim", **each} for each in claim.config]
        devices: dict[str, Any] = {"results": results}
        if config:
            devices["config"] = config
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        return {"devices": devices, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}


def _facts(driver: str, device: Mapping[str, Any]) -> cel.Device:
    attributes: dict[str, dict[str, Any]] = {}
    for name, given in (device.get("attributes") or {}).items():
        domain, _, short = name.rpartition("/")
        try:
            value = cel.version(given["version"]) if "version" in given else next(iter(given.values()))
        except cel.CelError as error:
            logs.warn("attribute not understood", device=device["name"], attribute=name, error=str(error))
            continue
        attributes.setdefault(domain or driver, {})[short] = value
    capacity: dict[str, dict[str, Any]] = {}
    for name, given in (device.get("capacity") or {}).items():
        domain, _, short = name.rpartition("/")
        capacity.setdefault(domain or driver, {})[short] = cel.quantity(given["value"])
    return cel.Device(driver, attributes, capacity)


def _order(gpu: Gpu) -> tuple[Any, ...]:
    own = gpu.facts.attributes.get(gpu.driver, {})
    index = next((own[name] for name in ("index", "minor") if isinstance(own.get(name), int)), -1)
    bus = gpu.facts.attributes.get("resource.kubernetes.io", {}).get("pciBusID", "")
    natural = tuple((part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", gpu.name))
    return index, str(bus), natural


def _takes(selectors: Iterable[tuple[str, bool]], gpu: Gpu) -> bool:
    try:
        return all(cel.compile_selector(expression, trusted)(gpu.facts) for expression, trusted in selectors)
    except cel.CelError:
        # kube-scheduler gives up on the pod; here the node is left out.
        return False
