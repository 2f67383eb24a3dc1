"""Dynamic resource allocation: find the nodes that can satisfy a pod's claims, and allocate devices.

On nodes where every GPU matches a request for a number of GPUs, the placement engine counts and chooses them, as for
device plugins. For all other requests (parts of devices, alternatives, constraints, other drivers, devices of several
nodes) the allocator searches each node, and repeats the search only for changed nodes.
Source: resource.k8s.io/v1.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from avactl.hardware.placement.allocation import MAX_GPUS
from avactl.scheduler.cel import compiler as cel
from avactl.scheduler.dra.allocator import AllocatedDevice, Allocator, StuckError, find_untolerated, takes
from avactl.scheduler.dra.extended_resources import (
    ClassMapping,
    classes_by_resource,
    map_requests,
    new_claim,
    refuse_many,
    resources_of,
)
from avactl.scheduler.dra.resource_claim import (
    ALL,
    ClaimSpec,
    DeviceRequest,
    LiveDeviceClass,
    ParsedClaim,
    ResourceClaim,
    claim_spec,
    parse,
)
from avactl.scheduler.dra.resource_slices import (
    DeviceInventory,
    Key,
    PoolGroup,
    PoolKey,
    ReachablePool,
    Slice,
    SliceDevice,
    gpu_order,
)
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.node_rules import Labels, NotYetError, RuleError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.pod_requirements import PodRequirements

MAX_DEMANDS_CACHED = 512
"""Maximum number of different demands with cached nodes."""
_MAX_KEPT_MAPPINGS = 256
"""Maximum number of containers' requests in a mapping that is kept."""
MAX_SELECTOR_RESULTS = 200_000
"""Maximum number of cached results of selectors."""
MAX_RELEVANT_DEVICES = 200_000
"""Maximum number of sets of selectors with cached pools of several nodes, and of the devices in these."""


class ClaimDemand(NamedTuple):
    """Devices that the unallocated claims of a pod request."""

    key: str
    """Equal for pods with equal requests."""
    wanted: tuple[tuple[ResourceClaim, ParsedClaim], ...]
    """Unallocated claims."""
    held: tuple[ResourceClaim, ...]
    """Claims that are allocated or being allocated."""
    gpus: int
    """GPUs to allocate: the maximum over alternatives."""
    exact: bool
    """True for a plain number of whole GPUs."""
    counted: bool
    """True if the number does not depend on the node."""
    resources: tuple[str, ...] = ()
    """Extended resources of the pod that its claim provides: no device plugin."""
    mappings: tuple[dict[str, str], ...] = ()
    """Requests of that claim by container, for the pod's status."""


class Offers:
    """Nodes that can satisfy a demand now, and reasons for the others."""

    __slots__ = ("changed", "position", "words", "yes")

    def __init__(self) -> None:
        self.yes: set[str] = set()
        self.words: dict[str, str] = {}
        self.changed: list[str] | None = None
        """Nodes that were searched since the reader last emptied the list; None: all."""
        self.position = -1
        """Number of device changes that are taken into account."""


class _CommonSearch(NamedTuple):
    """The last search of devices that several nodes reach."""

    position: int
    """Number of device changes that it has seen."""
    claims: tuple[ParsedClaim, ...]
    found: list[list[AllocatedDevice]] | None
    stuck: str
    """Message of its StuckError; empty if there was none."""


class DraManager:
    """ResourceSlices, DeviceClasses and ResourceClaims of the cluster."""

    def __init__(self, driver: str) -> None:
        """`driver`: its devices are the GPUs of nodes with devices of several drivers."""
        self.driver = driver
        self.drivers: frozenset[str] = frozenset({driver})
        """Drivers whose devices are GPUs; on nodes without their devices, drivers with `gpu` in their name."""
        self.devices = DeviceInventory()
        self.classes: dict[str, LiveDeviceClass] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.extended: dict[str, str] = {}
        """Claims of extended resources, `namespace/name`, by the UID of their pod."""
        self._class_of: dict[str, str] = {}
        """DeviceClass by extended resource."""
        self.giving: dict[str, dict[str, Any]] = {}
        """Allocations being written, by the claim's UID."""
        self.returning: set[str] = set()
        """UIDs of claims that are being deallocated."""
        self.version = 0
        """Number of changes that can affect a pod's demand."""
        self._gpus: dict[str, tuple[SliceDevice, ...]] = {}
        self._places: dict[Key, tuple[str, int]] = {}
        self._faulty: dict[str, int] = {}
        """Mask of the GPUs of a node that nobody gets any more, by node; none: 0."""
        self._kinds: dict[tuple[Any, ...], SliceDevice] = {}
        """One GPU of each kind, as an example."""
        self._parsed: WeakKeyDictionary[ClaimSpec, ParsedClaim | RuleError] = WeakKeyDictionary()
        self._parsed_by_key: dict[str, tuple[ParsedClaim, ...]] = {}
        self._simple: dict[str, dict[str, bool]] = {}
        """Cached results by node and key of the demand."""
        self.simple_epoch = 0
        """Number of times that the results of `simple` for all nodes were forgotten."""
        self._offers: dict[str, Offers] = {}
        self._selector_results: dict[tuple[Any, SliceDevice], bool | str] = {}
        self._relevant_pools: dict[tuple[PoolGroup, frozenset[Any]], Mapping[PoolKey, ReachablePool]] = {}
        """Pools that are relevant to selectors, by group of several nodes."""
        self._relevant_size = 0
        self._last_demand: tuple[tuple[Any, ...], ClaimDemand | RuleError] | None = None
        """The last demand or error, with the pod's UID, its claims' names, its extended resources, and the version."""
        self._mapped: dict[tuple[PodRequirements, tuple[str, ...]], tuple[ClaimSpec, ClassMapping]] = {}

    # -- objects ----------------------------------------------------------------------------------------------

    def put_slice(self, item: Mapping[str, Any]) -> bool:
        """Add or update a slice; return True if that may renumber GPUs or affect devices in use."""
        before = self.devices.slices.get(item["metadata"]["name"])
        used = before is not None and self._is_noted(before)
        return self.devices.put(item) and self._slice_changed(used, self.devices.slices[item["metadata"]["name"]])

    def drop_slice(self, name: str) -> bool:
        """Remove a slice; return True if that may renumber GPUs or affect devices in use."""
        before = self.devices.slices.get(name)
        if before is None:
            return False
        used = self._is_noted(before)
        self.devices.drop(name)
        return self._slice_changed(used)

    def _slice_changed(self, used: bool, after: Slice | None = None) -> bool:
        used = used or (after is not None and self._is_noted(after))
        if used:
            self._clear_caches()
        else:
            self.version += 1
            self._forget_nodes()
        return used

    def _forget_nodes(self) -> None:
        self._simple.clear()
        self.simple_epoch += 1
        self._offers.clear()
        self._forget_relevant_pools()

    def _forget_relevant_pools(self) -> None:
        self._relevant_pools.clear()
        self._relevant_size = 0

    def _is_noted(self, given: Slice) -> bool:
        """Return True if GPUs are numbered by a slice's pool, or claims hold devices of the slice."""
        return self.devices.has_node(given.pool) or any(map(self.devices.in_use, (each.key for each in given.devices)))

    def put_taint_rule(self, item: Mapping[str, Any]) -> bool:
        """Add or change a DeviceTaintRule; return True if the taints of any device changed."""
        return self._taints_changed(self.devices.put_taint_rule(item))

    def drop_taint_rule(self, name: str) -> bool:
        """Remove a DeviceTaintRule; return True if the taints of any device changed."""
        return self._taints_changed(self.devices.drop_taint_rule(name))

    def _taints_changed(self, changed: bool) -> bool:
        if changed:
            self._clear_caches()
        return changed

    def put_class(self, item: Mapping[str, Any]) -> bool:
        """Add or update a DeviceClass; return True if anything relevant changed."""
        name, device_class = item["metadata"]["name"], LiveDeviceClass.parse(item)
        if self.classes.get(name) == device_class:
            return False
        self.classes[name] = device_class
        self._forget_classes()
        return True

    def drop_class(self, name: str) -> bool:
        """Remove a DeviceClass; return True if it was known."""
        known = self.classes.pop(name, None) is not None
        self._forget_classes()
        return known

    def backed(self, shape: PodRequirements) -> tuple[str, ...]:
        """Return the extended resources of pods that have a DeviceClass, sorted."""
        if not (self._class_of and shape.extended):
            return ()
        return tuple(sorted({name for each in shape.extended for name in each.amounts if name in self._class_of}))

    def has_class(self, resource: str) -> bool:
        """Return True if an extended resource has a DeviceClass."""
        return resource in self._class_of

    def _forget_classes(self) -> None:
        self._class_of = classes_by_resource(self.classes)
        self._mapped.clear()
        self._parsed.clear()
        self._clear_caches()

    def _clear_caches(self) -> None:
        self.version += 1
        self._gpus.clear()
        self._places.clear()
        self._kinds.clear()
        self._parsed_by_key.clear()
        self._forget_nodes()
        self._selector_results.clear()

    def node_changed(self, name: str) -> None:
        """Handle a node that was added, removed or relabelled."""
        self.devices.node_changed(name)
        self._simple.pop(name, None)
        self._faulty.pop(name, None)
        if self._gpus.pop(name, None):
            self.version += 1

    # -- GPUs by number ---------------------------------------------------------------------------------------------

    def number(self, name: str, labels: Labels) -> int:
        """Number the GPUs of a node in machine order; return their count."""
        known = self._gpus.get(name)
        if known is not None:
            return len(known)
        by_driver: dict[str, list[SliceDevice]] = {}
        for pool in self.devices.view(name, labels).own.pools:
            for device in pool.devices:
                # A device that several nodes reach belongs to no machine.
                if device.match is None and self.devices.node_of(device.key) == name and _is_whole_gpu(device):
                    by_driver.setdefault(device.key[0], []).append(device)
        drivers = [driver for driver in by_driver if driver in self.drivers] or [
            driver for driver in by_driver if "gpu" in driver
        ]
        gpus = sorted(by_driver[min(drivers)], key=gpu_order)[:MAX_GPUS] if drivers else []
        for number, device in enumerate(gpus):
            self._places[device.key] = (name, number)
            self._kinds.setdefault(_gpu_kind(device), device)
        self._gpus[name] = tuple(gpus)
        self.version += bool(gpus)
        return len(gpus)

    def set_faulty(self, name: str, gpus: int) -> None:
        """Set the mask of a node's GPUs that are not allocated any more, until they are repaired."""
        if self._faulty.get(name, 0) != gpus:
            self._faulty[name] = gpus
            self.devices.changed(name)

    def _without_faulty(self, node: str, pools: Mapping[PoolKey, ReachablePool]) -> Mapping[PoolKey, ReachablePool]:
        """Leave out the faulty GPUs of a node, and parts of GPUs that may be of a faulty one."""
        mask = self._faulty.get(node, 0)
        if not mask:
            return pools
        faulty = set(self.keys(node, mask))
        sound = {device.key for device in self.gpus(node)} - faulty
        drivers = {key[0] for key in faulty}
        whole = {_own_attribute(device, "uuid") for device in self.gpus(node) if device.key in sound} - {None}

        def works(device: SliceDevice) -> bool:
            if device.key in sound or device.key[0] not in drivers:
                return True
            return _own_attribute(device, "parentUUID") in whole

        return {
            key: pool._replace(devices=tuple(device for device in pool.devices if works(device)))
            for key, pool in pools.items()
        }

    def evicted_claims(self) -> Iterator[tuple[ResourceClaim, str]]:
        """Yield the allocated claims with a device whose taint NoExecute they do not tolerate, and its key.

        Source: pkg/controller/devicetainteviction of Kubernetes, which evicts pods one by one.
        """
        devices = self.devices.evicting_devices
        if not devices:
            return
        for claim in self.claims.values():
            for given in ((claim.allocation or {}).get("devices") or {}).get("results") or ():
                device = devices.get((given["driver"], given["pool"], given["device"]))
                taint = device and find_untolerated(device.evicting_taints, given.get("tolerations") or ())
                if taint:
                    yield claim, taint["key"]
                    break

    def place(self, key: Key) -> tuple[str, int] | None:
        """Return node and number of a device; None if it is not a GPU of a node."""
        return self._places.get(key)

    def counts(self, key: Key) -> bool:
        """Return True if a device is a whole GPU.

        For an unpublished device, such as during a driver restart, the driver name decides, because the device may
        still be allocated.
        """
        if key in self._places:
            return True
        device = self.devices.find(key)
        if device is not None and (
            self._gpus.get(self.devices.node_of(key)) or device.match or not _is_whole_gpu(device)
        ):
            return False
        return key[0] in self.drivers or "gpu" in key[0]

    def gpus(self, node: str) -> tuple[SliceDevice, ...]:
        """Return the GPUs of a node, by number."""
        return self._gpus.get(node, ())

    def keys(self, node: str, gpus: int) -> list[Key]:
        """Return the devices of a GPU mask."""
        return [device.key for number, device in enumerate(self._gpus.get(node, ())) if gpus >> number & 1]

    # -- demands ------------------------------------------------------------------------------------------

    def demand(self, pod: PodInfo, resources: tuple[str, ...] | None = None) -> ClaimDemand:
        """Return the demand of a pod's claims. Raises RuleError if it must wait or requests something unsupported.

        `resources`: those of its extended resources that need a claim, on the nodes in question; None: all that have a
        DeviceClass.
        """
        resources = self.backed(pod.shape) if resources is None else resources
        # A pod gets the names of its claims after they are created, which does not change the version.
        asked = (pod.uid, pod.claims, resources, self.version)
        last = self._last_demand
        if last is None or last[0] != asked:
            demand: ClaimDemand | RuleError
            try:
                demand = self._compute_demand(pod, resources)
            except RuleError as error:
                demand = error
            last = self._last_demand = (asked, demand)
        if isinstance(last[1], RuleError):
            raise last[1]
        return last[1]

    def _compute_demand(self, pod: PodInfo, resources: tuple[str, ...]) -> ClaimDemand:
        wanted: list[tuple[ResourceClaim, ParsedClaim]] = []
        held: list[ResourceClaim] = []
        mappings: tuple[dict[str, str], ...] = ()
        for name, made in pod.claims:
            if not name:
                continue  # that of its extended resources
            key = f"{pod.namespace}/{made}"
            claim = self.claims.get(key) if made else None
            if claim is None or claim.deleting:
                late = f"{made}, which does not exist yet" if made else f"{name}: does its ResourceClaimTemplate exist?"
                raise NotYetError(f"waits for its ResourceClaim {late}", f"claim {key}")
            if claim.uid in self.returning:
                raise NotYetError(f"waits for ResourceClaim {made} to be deallocated", f"claim {key}")
            if claim.allocated or claim.uid in self.giving:
                if claim not in held:
                    held.append(claim)
            elif all(claim is not other for other, _ in wanted):
                wanted.append((claim, self._parse_spec(claim.spec)))
        own = self._own_claim(pod)
        if own is not None:
            held.append(own)
            resources = resources_of(pod.shape.extended, own.spec.requests)
        if resources:
            spec, mapped = self._map(pod.shape, resources)
            mappings = mapped.mappings
            if own is None:
                wanted.append((new_claim(pod, spec.requests), self._parse_spec(spec)))
        key = "\n".join(claim.spec.text for claim, _ in wanted)
        parsed = self._parsed_by_key.get(key)
        if parsed is None:
            if len(self._parsed_by_key) > MAX_DEMANDS_CACHED:
                self._parsed_by_key.clear()
                self._forget_nodes()
            parsed = self._parsed_by_key[key] = tuple(parsed_claim for _, parsed_claim in wanted)
        gpus, exact, counted = 0, all(parsed_claim.plain for parsed_claim in parsed), True
        for parsed_claim in parsed:
            for request in parsed_claim.requests:
                counts = [self._max_gpus(alternative) for alternative in request]
                gpus += max(counts)
                exact = exact and counts[0] == request[0].number
                counted = counted and len(request) == 1 and (request[0].number != ALL or not counts[0])
        return ClaimDemand(key, tuple(wanted), tuple(held), gpus, exact and gpus > 0, counted, resources, mappings)

    def _own_claim(self, pod: PodInfo) -> ResourceClaim | None:
        """Return the allocated claim of a pod's extended resources. Raises NotYetError while it is being removed.

        Somebody else may have created it, or may share it: then it is none.
        """
        claim = self.claims.get(self.extended.get(pod.uid, ""))
        if claim is None or claim.namespace != pod.namespace:
            return None
        if claim.uid in self.returning or (claim.deleting and claim.allocated):
            raise NotYetError("waits for the removal of its previous ResourceClaim", f"claim {claim.key}")
        if not (claim.allocated or claim.uid in self.giving) or claim.deleting:
            return None
        return claim if all(each["uid"] == pod.uid for each in claim.reserved) else None

    def _map(self, shape: PodRequirements, resources: tuple[str, ...]) -> tuple[ClaimSpec, ClassMapping]:
        """Return the claim of some extended resources, and its requests by container."""
        known = self._mapped.get((shape, resources))
        if known is None:
            refuse_many(shape.extended, resources)
            mapped = map_requests(shape.extended, {name: self._class_of.get(name, "") for name in resources})
            known = claim_spec({"requests": list(mapped.requests)}), mapped
            if len(mapped.mappings) <= _MAX_KEPT_MAPPINGS:
                if len(self._mapped) > MAX_DEMANDS_CACHED:
                    self._mapped.clear()
                self._mapped[shape, resources] = known
        return known

    def _parse_spec(self, spec: ClaimSpec) -> ParsedClaim:
        parsed = self._parsed.get(spec)
        if parsed is None:
            try:
                parsed = parse(spec, self.classes)
            except RuleError as error:
                parsed = type(error)(*error.args)  # without its traceback, which holds on to frames
            self._parsed[spec] = parsed
        if isinstance(parsed, RuleError):
            raise type(parsed)(*parsed.args)
        return parsed

    def _max_gpus(self, wanted: DeviceRequest) -> int:
        """Return the maximum number of GPUs that a request can get."""
        if wanted.admin or not any(self._selects(wanted, device) for device in self._kinds.values()):
            return 0
        return max(map(len, self._gpus.values()), default=0) if wanted.number == ALL else wanted.number

    def _selects(self, wanted: DeviceRequest, device: SliceDevice) -> bool:
        """Raises CelError never: a device for which a selector has no value is not selected."""
        try:
            return self.selects(wanted, device)
        except cel.CelError:
            return False

    def selects(self, wanted: DeviceRequest, device: SliceDevice) -> bool:
        """Return True if the selectors of a request match a device. Raises CelError."""
        place = (wanted.selectors, device)
        known = self._selector_results.get(place)
        if known is None:
            if len(self._selector_results) > MAX_SELECTOR_RESULTS:
                self._selector_results.clear()
            try:
                known = takes(wanted, device)
            except cel.CelError as error:
                known = str(error)
            self._selector_results[place] = known
        if isinstance(known, str):
            raise cel.CelError(known)
        return known

    # -- feasible nodes ----------------------------------------------------------------------------------------

    def simple(self, node: str, labels: Labels, key: str) -> bool:
        """Return True if counting free GPUs decides an exact demand on this node."""
        here = self._simple.setdefault(node, {})
        known = here.get(key)
        if known is None:
            known = here[key] = self._is_simple(node, labels, self._parsed_by_key[key])
        return known

    def _is_simple(self, node: str, labels: Labels, claims: tuple[ParsedClaim, ...]) -> bool:
        gpus = self._gpus.get(node, ())
        requests = {each.selectors: each for claim in claims for (each,) in claim.requests}.values()
        if not gpus or not all(
            device.plain and self._selects(wanted, device) for device in gpus for wanted in requests
        ):
            return False
        known = {device.key for device in gpus}
        return not any(
            self._selects(wanted, device)
            for pool in self.devices.view(node, labels).pools()
            for device in pool.devices
            if device.key not in known
            for wanted in requests
        )

    def offers(self, demand: ClaimDemand, nodes: Mapping[str, NodeInfo]) -> Offers:
        """Return the nodes where the allocator can currently satisfy a demand.

        Excludes nodes whose GPUs the placement engine counts.
        """
        devices, known = self.devices, self._offers.get(demand.key, Offers())
        old = known.position < devices.forgotten
        look: Iterable[str] = [""] if old else set(devices.changes[known.position - devices.forgotten :])
        if "" in look:
            look, known = nodes, Offers()
        elif known.changed is not None:
            known.changed += look
        for node in look:
            known.yes.discard(node)
            known.words.pop(node, None)
            info = nodes.get(node)
            if info is None or (demand.exact and self.simple(node, info.labels, demand.key)):
                continue
            try:
                if self.search(node, info.labels, self._parsed_by_key[demand.key]) is not None:
                    known.yes.add(node)
            except StuckError as error:
                known.words[node] = str(error)
        known.position = devices.position
        self._offers[demand.key] = known
        return known

    def search(
        self, node: str, labels: Labels, claims: tuple[ParsedClaim, ...], prefer: Collection[Key] = ()
    ) -> list[list[AllocatedDevice]] | None:
        """Return devices of a node for claims, preferred devices first; None if there are none. Raises StuckError."""
        view = self.devices.view(node, labels)
        requests = {each.selectors: each for claim in claims for request in claim.requests for each in request}
        # Devices of one node are few: to remember them for each node would take much memory.
        common, own = self._relevant_common(view.common, requests), self._relevant(view.own, requests)
        own = self._without_faulty(node, own)
        if not own and not prefer and view.own_keys.isdisjoint(common):
            return self._search_common(view.common, claims, common.values())
        pools = [*(pool for key, pool in common.items() if key not in view.own_keys), *own.values()]
        pools.sort(key=lambda pool: pool.order)
        return Allocator(self.devices, pools, claims, self.selects, prefer).run()

    def _search_common(
        self, group: PoolGroup, claims: tuple[ParsedClaim, ...], pools: Iterable[ReachablePool]
    ) -> list[list[AllocatedDevice]] | None:
        """Search devices that several nodes reach: once for all of them, until a device is allocated or released."""
        now = self.devices.position
        last: _CommonSearch | None = group.last_search
        if last is None or last.position != now or last.claims != claims:
            try:
                found = Allocator(self.devices, tuple(pools), claims, self.selects).run()
            except StuckError as error:
                last = _CommonSearch(now, claims, None, str(error))
            else:
                last = _CommonSearch(now, claims, found, "")
            group.last_search = last
        if last.stuck:
            raise StuckError(last.stuck)
        return last.found

    def _relevant_common(
        self, group: PoolGroup, requests: Mapping[tuple[str, ...], DeviceRequest]
    ) -> Mapping[PoolKey, ReachablePool]:
        """Return `_relevant` pools of a group of several nodes, cached until slices change."""
        if not group.pools:
            return {}
        key = (group, frozenset(requests))
        known = self._relevant_pools.get(key)
        if known is None:
            known = self._relevant(group, requests)
            size = 1 + sum(len(pool.devices) for pool in known.values())
            if self._relevant_size + size > MAX_RELEVANT_DEVICES:
                self._forget_relevant_pools()
            self._relevant_size += size
            self._relevant_pools[key] = known
        return known

    def _relevant(
        self, group: PoolGroup, requests: Mapping[tuple[str, ...], DeviceRequest]
    ) -> Mapping[PoolKey, ReachablePool]:
        """Return the unusable pools, and those with devices that a selector matches or fails on, without others."""
        known: dict[PoolKey, ReachablePool] = {}
        for pool in group.pools:
            devices = tuple(
                device for device in pool.devices if any(self._can_take(each, device) for each in requests.values())
            )
            if devices or pool.trouble:
                known[pool.key] = pool._replace(devices=devices)
        return known

    def _can_take(self, wanted: DeviceRequest, device: SliceDevice) -> bool:
        try:
            return self.selects(wanted, device)
        except cel.CelError:
            return True  # the allocator reports it

    # -- what is given ----------------------------------------------------------------------------------------------

    def split(self, demand: ClaimDemand, node: str, gpus: int) -> list[list[AllocatedDevice]]:
        """Divide the GPUs chosen by the engine among the claims of an exact demand."""
        here = [device for number, device in enumerate(self._gpus[node]) if gpus >> number & 1]
        result = []
        for _, parsed in demand.wanted:
            mine: list[AllocatedDevice] = []
            for (wanted,) in parsed.requests:
                mine += [AllocatedDevice(wanted, device, {}) for device in here[: wanted.number]]
                del here[: wanted.number]
            result.append(mine)
        return result

    def allocation(self, claim: ResourceClaim, found: Iterable[AllocatedDevice], node: str) -> dict[str, Any]:
        """Return `status.allocation` of a claim with these devices."""
        results: list[dict[str, Any]] = []
        chosen: dict[str, str] = {}
        for wanted, device, consumed in found:
            driver, pool, name = device.key
            result: dict[str, Any] = {"request": wanted.name, "driver": driver, "pool": pool, "device": name}
            if wanted.admin:
                result["adminAccess"] = True
            if wanted.tolerations:
                result["tolerations"] = list(wanted.tolerations)
            if device.shared:
                result["shareID"] = str(uuid.uuid4())
                if consumed:
                    result["consumedCapacity"] = {each: text for each, (_, text) in consumed.items()}
            if device.binding:
                result["bindingConditions"] = list(device.binding)
                result["bindingFailureConditions"] = list(device.failing)
            results.append(result)
            chosen[wanted.name] = wanted.device_class
        devices: dict[str, Any] = {"results": results}
        config = self._allocation_config(claim.spec, chosen)
        if config:
            devices["config"] = config
        allocation: dict[str, Any] = {"devices": devices}
        selector = self._node_selector([device for _, device, _ in found], node)
        if selector:
            allocation["nodeSelector"] = selector
        return allocation

    def _allocation_config(self, spec: ClaimSpec, chosen: Mapping[str, str]) -> list[dict[str, Any]]:
        config: list[dict[str, Any]] = []
        by_class: dict[str, list[str]] = {}
        for name, device_class in chosen.items():
            by_class.setdefault(device_class, []).append(name)
        for device_class, names in by_class.items():
            known = self.classes.get(device_class)
            config += [{"source": "FromClass", "requests": names, **each} for each in (known.config if known else ())]
        requests = {*chosen, *(name.partition("/")[0] for name in chosen)}
        config += [
            {"source": "FromClaim", **each}
            for each in spec.config
            if not each.get("requests") or requests.intersection(each["requests"])
        ]
        # As kube-scheduler 1.37 has it: what is for all requests names none.
        selected = {request["name"]: {request["name"]} for request in spec.requests}
        for name in chosen:
            selected[name.partition("/")[0]].add(name)
        return [
            {key: value for key, value in each.items() if key != "requests"}
            if all(mine.intersection(each.get("requests") or mine) for mine in selected.values())
            else each
            for each in config
        ]

    def _node_selector(self, devices: Iterable[SliceDevice], node: str) -> dict[str, Any] | None:
        """Return the NodeSelector of nodes that reach the devices; None: all nodes."""
        terms: dict[str, list[dict[str, Any]]] = {"matchFields": [], "matchExpressions": []}
        for device in devices:
            selector = device.selector or self.devices.selector(device.key)
            if device.binds or device.named or self.devices.node_of(device.key):
                field = {"key": "metadata.name", "operator": "In", "values": [node]}
                return {"nodeSelectorTerms": [{"matchFields": [field]}]}
            for term in (selector or {}).get("nodeSelectorTerms") or ():
                for kind, mine in terms.items():
                    mine += [each for each in term.get(kind) or () if each not in mine]
        term = {kind: mine for kind, mine in terms.items() if mine}
        return {"nodeSelectorTerms": [term]} if term else None


def _is_whole_gpu(device: SliceDevice) -> bool:
    """Return True for a whole GPU: drivers also publish partitions and passed-through GPUs."""
    own = device.facts.attributes.get(device.key[0], {})
    if device.shared:
        return False
    return own.get("type") in ("gpu", "full") if "type" in own else not device.counters


def _own_attribute(device: SliceDevice, name: str) -> Any:
    """Return an attribute that a device's own driver defines; None if there is none."""
    return device.facts.attributes.get(device.key[0], {}).get(name)


def _gpu_kind(device: SliceDevice) -> tuple[Any, ...]:
    own = device.facts.attributes.get(device.key[0], {})
    words = tuple(own.get(name) for name in ("type", "productName", "model", "architecture", "brand"))
    return device.key[0], words, tuple(sorted(device.facts.capacity.get(device.key[0], {}).items()))
