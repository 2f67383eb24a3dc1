"""ResourceSlices: devices by pool, the devices that each node reaches, and those in use.

Equivalent to the pools of kube-scheduler's allocator.
Source: k8s.io/dynamic-resource-allocation/structured, pools and constraints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import orjson

from avactl.kube import logs
from avactl.scheduler.cel import compiler as cel
from avactl.scheduler.objects.node_rules import Labels, node_selector

Key = tuple[str, str, str]
"""Driver, pool and name of a device."""
PoolKey = tuple[str, str]
NodeMatcher = Callable[[str, Labels], bool]
"""Predicate over node name and labels; equal selections of nodes have the same one."""
Reach = tuple[NodeMatcher | None, Mapping[str, Any] | None]
"""Selection of nodes, and the node selector behind it, if there is one."""
_EFFECTS = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods away."""
MAX_CHANGES = 100_000
"""Maximum number of remembered changes."""


class Capacity(NamedTuple):
    """One capacity of a device, in nano units and as text."""

    value: int
    text: str
    policy: Mapping[str, Any] | None


class SliceDevice:
    """One device."""

    __slots__ = (
        "attributes",
        "binding",
        "binds",
        "capacity",
        "counters",
        "facts",
        "failing",
        "key",
        "match",
        "named",
        "published_taints",
        "selector",
        "shared",
        "taints",
    )

    def __init__(self, driver: str, pool: str, item: Mapping[str, Any], each: bool) -> None:
        """`each`: every device of the slice has a node selection of its own."""
        self.key: Key = (driver, pool, item["name"])
        self.attributes: Mapping[str, Mapping[str, Any]] = item.get("attributes") or {}
        self.capacity = {
            name: Capacity(cel.quantity(given["value"]).nano, given["value"], given.get("requestPolicy"))
            for name, given in (item.get("capacity") or {}).items()
        }
        self.shared = bool(item.get("allowMultipleAllocations"))
        self.facts = _device_facts(driver, item, self.shared)
        self.published_taints: tuple[Mapping[str, Any], ...] = tuple(
            taint for taint in item.get("taints") or () if taint["effect"] in _EFFECTS
        )
        self.taints = self.published_taints
        """Those that the driver publishes, and those of DeviceTaintRules."""
        self.counters = tuple(
            (each_set["counterSet"], name, cel.quantity(given["value"]).nano)
            for each_set in item.get("consumesCounters") or ()
            for name, given in each_set["counters"].items()
        )
        self.binding: tuple[str, ...] = tuple(item.get("bindingConditions") or ())
        self.failing: tuple[str, ...] = tuple(item.get("bindingFailureConditions") or ())
        self.binds = bool(item.get("bindsToNode"))
        nothing: Reach = (None, None)
        self.match, self.selector = _reach_of(item) if each else nothing
        self.named = each and bool(item.get("nodeName"))

    @property
    def evicting_taints(self) -> Sequence[Mapping[str, Any]]:
        """Taints that pods which use the device have to tolerate."""
        return [taint for taint in self.taints if taint["effect"] == "NoExecute"]

    @property
    def plain(self) -> bool:
        """True for a whole device without taints, counters, sharing or binding conditions."""
        return not (self.taints or self.counters or self.shared or self.binding or self.binds or self.match)

    def attribute(self, name: str) -> tuple[str, Any] | None:
        """Kind and value of a fully qualified attribute."""
        given = self.attributes.get(name)
        if given is None:
            domain, slash, short = name.partition("/")
            given = self.attributes.get(short) if slash and domain == self.key[0] else None
        return next(iter(given.items())) if given else None


class Slice:
    """One ResourceSlice."""

    __slots__ = (
        "counters",
        "devices",
        "digest",
        "each",
        "generation",
        "match",
        "name",
        "node",
        "parts",
        "pool",
        "selector",
    )

    def __init__(self, item: Mapping[str, Any], digest: int) -> None:
        spec = item["spec"]
        self.name: str = item["metadata"]["name"]
        self.digest = digest
        self.node: str = spec.get("nodeName") or ""
        self.each = bool(spec.get("perDeviceNodeSelection"))
        self.match, self.selector = _reach_of(spec)
        self.pool: PoolKey = (spec["driver"], spec["pool"]["name"])
        self.generation: int = spec["pool"]["generation"]
        self.parts: int = spec["pool"]["resourceSliceCount"]
        self.counters: list[tuple[str, dict[str, int]]] = [
            (each["name"], {name: cel.quantity(given["value"]).nano for name, given in each["counters"].items()})
            for each in spec.get("sharedCounters") or ()
        ]
        self.devices = tuple(SliceDevice(*self.pool, device, self.each) for device in spec.get("devices") or ())

    def devices_for(self, reach: Collection[NodeMatcher]) -> Sequence[SliceDevice]:
        """Return the devices for nodes that these predicates match."""
        if self.each:
            return [device for device in self.devices if device.match in reach]
        return self.devices if self.match in reach else ()

    def concerns(self, reach: Collection[NodeMatcher]) -> bool:
        """Return True if the slice concerns such nodes. Counters belong to the pool as a whole."""
        return bool(self.counters) or self.match in reach or bool(self.devices_for(reach))


_matchers: WeakValueDictionary[bytes, NodeMatcher] = WeakValueDictionary()


def _reach_of(given: Mapping[str, Any]) -> Reach:
    asked = {name: given[name] for name in ("nodeName", "allNodes", "nodeSelector") if given.get(name)}
    if not asked:
        return None, None
    key = orjson.dumps(asked)
    match = _matchers.get(key)
    if match is None:
        match = _matchers[key] = _compile_reach(asked)
    return match, None if "nodeName" in asked or "allNodes" in asked else given["nodeSelector"]


def _compile_reach(asked: Mapping[str, Any]) -> NodeMatcher:
    node = asked.get("nodeName")
    if node:
        return lambda name, _labels: bool(name == node)
    if "allNodes" in asked:
        return lambda _name, _labels: True
    return node_selector(asked["nodeSelector"])


class ReachablePool(NamedTuple):
    """A pool as visible to one node."""

    key: PoolKey
    devices: tuple[SliceDevice, ...]
    trouble: str
    """Reason why the pool is unusable now; empty if it is usable."""
    prepared: bool
    """True if a driver must prepare devices, whose pool comes last."""

    @property
    def order(self) -> tuple[bool, PoolKey]:
        """Place in the order of allocation."""
        return self.prepared, self.key


class PoolGroup:
    """Pools that are the same for several nodes, or those of one node."""

    __slots__ = ("last_search", "pools")

    def __init__(self, pools: Sequence[ReachablePool] = ()) -> None:
        self.pools = tuple(sorted(pools, key=lambda pool: pool.order))
        self.last_search: Any = None
        """Set by the reader."""


class NodeView(NamedTuple):
    """The pools that a node reaches."""

    common: PoolGroup
    """Those of all nodes that the same selections match."""
    own: PoolGroup
    """Pools with slices of this node; they replace the common ones of their keys."""
    own_keys: frozenset[PoolKey]

    def pools(self) -> list[ReachablePool]:
        """Return all pools, in allocation order."""
        common = (pool for pool in self.common.pools if pool.key not in self.own_keys)
        return sorted([*common, *self.own.pools], key=lambda pool: pool.order)


class AllocationResult(NamedTuple):
    """A device allocated to a claim."""

    key: Key
    admin: bool
    share: bool
    consumed: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> AllocationResult:
        """Parse an entry of `status.allocation.devices.results`."""
        consumed = tuple((name, cel.quantity(text).nano) for name, text in (item.get("consumedCapacity") or {}).items())
        share = bool(item.get("shareID"))
        return cls((item["driver"], item["pool"], item["device"]), bool(item.get("adminAccess")), share, consumed)


class TaintRule(NamedTuple):
    """A DeviceTaintRule. None in a field selects all.

    Source: applyPatches in k8s.io/dynamic-resource-allocation/resourceslice/tracker.
    """

    driver: str | None
    pool: str | None
    device: str | None
    taint: Mapping[str, Any]

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> TaintRule | None:
        """Return a rule; None if it keeps no pods away, or selects nothing."""
        spec = item["spec"]
        selector, taint = spec.get("deviceSelector"), spec["taint"]
        if selector is None or taint.get("effect") not in _EFFECTS:
            return None
        return cls(selector.get("driver"), selector.get("pool"), selector.get("device"), taint)

    def selects(self, key: Key) -> bool:
        """Return True if the rule applies to a device."""
        return all(wanted in (None, given) for wanted, given in zip(self[:3], key, strict=True))


class DeviceInventory:
    """All ResourceSlices, and the allocations of their devices."""

    def __init__(self) -> None:
        self.slices: dict[str, Slice] = {}
        self._by_node: dict[str, dict[str, Slice]] = {}
        self._shared: dict[str, Slice] = {}
        """Slices that can concern several nodes."""
        self._pools: dict[PoolKey, dict[str, Slice]] = {}
        self._slice_by_device: dict[Key, Slice] = {}
        self._evicting: dict[str, dict[Key, SliceDevice]] = {}
        """Devices with a taint NoExecute, by slice."""
        self._views: dict[str, NodeView] = {}
        self._matchers: frozenset[NodeMatcher] | None = None
        """All selections of nodes that slices of no single node have; None: to be collected."""
        self._common: dict[frozenset[NodeMatcher], PoolGroup] = {}
        self._left: dict[PoolKey, dict[tuple[str, str], int]] = {}
        self._held: dict[str, tuple[AllocationResult, ...]] = {}
        """Devices of claims by UID, allocations in progress included."""
        self.taken: dict[Key, int] = {}
        """Number of claims that hold a device exclusively."""
        self.used: dict[Key, dict[str, int]] = {}
        """Consumed capacity of shared devices, in nano units."""
        self._sharing: dict[Key, int] = {}
        self._taint_rules: dict[str, TaintRule | None] = {}
        self.changes: list[str] = []
        """Nodes whose devices were allocated or released, in order; empty: all nodes."""
        self.forgotten = 0
        """Number of changes that are no longer remembered."""

    # -- slices -----------------------------------------------------------------------------------------------------

    def put(self, item: Mapping[str, Any]) -> bool:
        """Add or update a slice; return True if anything relevant changed."""
        digest = hash(orjson.dumps(item["spec"]))
        known = self.slices.get(item["metadata"]["name"])
        if known is not None and known.digest == digest:
            return False
        added = Slice(item, digest)
        self._taint(added)
        if known is not None:
            self.drop(known.name)
        self.slices[added.name] = added
        if added.node:
            self._by_node.setdefault(added.node, {})[added.name] = added
        if added.counters or not added.node:
            self._shared[added.name] = added
        self._pools.setdefault(added.pool, {})[added.name] = added
        evicting = {device.key: device for device in added.devices if device.evicting_taints}
        if evicting:
            self._evicting[added.name] = evicting
        for device in added.devices:
            other = self._slice_by_device.get(device.key)
            if other is None or other.generation <= added.generation:
                self._slice_by_device[device.key] = added
        self._clear_views()
        return True

    def drop(self, name: str) -> bool:
        """Remove a slice; return True if it was known."""
        known = self.slices.pop(name, None)
        if known is None:
            return False
        self._shared.pop(name, None)
        self._evicting.pop(name, None)
        if known.node:
            del self._by_node[known.node][name]
            if not self._by_node[known.node]:
                del self._by_node[known.node]
        for device in known.devices:
            if self._slice_by_device.get(device.key) is known:
                del self._slice_by_device[device.key]
        rest = self._pools[known.pool]
        del rest[name]
        if not rest:
            del self._pools[known.pool]
        self._clear_views()
        return True

    def put_taint_rule(self, item: Mapping[str, Any]) -> bool:
        """Add or change a DeviceTaintRule; return True if the taints of any device changed."""
        name, rule = item["metadata"]["name"], TaintRule.parse(item)
        before = self._taint_rules.get(name)
        self._taint_rules[name] = rule
        return before != rule and self._taint_all()

    def drop_taint_rule(self, name: str) -> bool:
        """Remove a DeviceTaintRule; return True if the taints of any device changed."""
        return self._taint_rules.pop(name, None) is not None and self._taint_all()

    @property
    def taint_rules(self) -> Collection[str]:
        """Names of the known DeviceTaintRules."""
        return self._taint_rules.keys()

    def _taint_all(self) -> bool:
        changed = [self._taint(each) for each in self.slices.values()]
        if any(changed):
            self._clear_views()
        return any(changed)

    def _taint(self, given: Slice) -> bool:
        """Give the devices of a slice the taints of all rules; return True if that changed any."""
        driver, pool = given.pool
        rules = [
            rule
            for rule in self._taint_rules.values()
            if rule is not None and rule.driver in (None, driver) and rule.pool in (None, pool)
        ]
        changed = False
        for device in given.devices:
            taints = (*device.published_taints, *(rule.taint for rule in rules if rule.selects(device.key)))
            changed |= taints != device.taints
            device.taints = taints
        return changed

    def _clear_views(self) -> None:
        self._views.clear()
        self._matchers = None
        self._common.clear()
        self._left.clear()
        self.changed("")

    def node_changed(self, name: str) -> None:
        """Handle a node that was added, removed or relabelled."""
        self._views.pop(name, None)
        self.changed(name)

    def has_node(self, pool: PoolKey) -> bool:
        """Return True if a slice of a pool belongs to a single node."""
        return any(each.node for each in self._pools.get(pool, {}).values())

    def view(self, name: str, labels: Labels) -> NodeView:
        """Return the pools that a node reaches."""
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = self._find_view(name, labels)
        return view

    def _find_view(self, name: str, labels: Labels) -> NodeView:
        if self._matchers is None:
            shared = [each for each in self._shared.values() if not each.node]
            selections = {each.match for each in shared} | {
                device.match for each in shared if each.each for device in each.devices
            }
            self._matchers = frozenset(match for match in selections if match is not None)
        reach = frozenset(match for match in self._matchers if match(name, labels))
        common = self._common.get(reach)
        if common is None:
            common = self._common[reach] = PoolGroup(self._gather(self._shared.values(), reach))
        local = self._by_node.get(name, {})
        keys = frozenset(each.pool for each in local.values())
        beside = (each for pool in keys for each in self._pools[pool].values() if each.name in self._shared)
        slices = [*(each for each in local.values() if each.name not in self._shared), *beside]
        own_reach = reach.union(each.match for each in local.values() if each.match is not None)
        return NodeView(common, PoolGroup(self._gather(slices, own_reach)), keys)

    def _gather(self, slices: Iterable[Slice], reach: Collection[NodeMatcher]) -> list[ReachablePool]:
        """Return the pools of slices, as nodes see them that these predicates match."""
        by_pool: dict[PoolKey, list[Slice]] = {}
        for each in slices:
            if each.concerns(reach):
                mine = by_pool.setdefault(each.pool, [])
                if mine and each.generation > mine[0].generation:
                    mine.clear()
                if not mine or each.generation == mine[0].generation:
                    mine.append(each)
        result = []
        for key, newest in by_pool.items():
            every: Iterable[Slice] = newest
            # Slices with different counts are of a pool that is being published, too.
            if {each.parts for each in newest} != {len(newest)}:
                others = self._pools[key].values()
                if any(each.generation > newest[0].generation for each in others):
                    continue  # a newer generation, which these nodes do not reach, is replacing it
                every = [each for each in others if each.generation == newest[0].generation]
                if {each.parts for each in every} != {len(every)}:
                    result.append(ReachablePool(key, (), f"resource pool {key[0]}/{key[1]} is being published", False))
                    continue
            newest.sort(key=lambda each: each.name)
            devices = tuple(device for each in newest for device in each.devices_for(reach))
            trouble = _find_problem(newest, every)
            prepared = not trouble and any(device.binding for device in devices)
            result.append(ReachablePool(key, () if trouble else devices, trouble, prepared))
        return result

    def find(self, key: Key) -> SliceDevice | None:
        """Return a device by its key."""
        known = self._slice_by_device.get(key)
        return next((device for device in known.devices if device.key == key), None) if known is not None else None

    @property
    def evicting_devices(self) -> Mapping[Key, SliceDevice]:
        """Devices with a taint NoExecute."""
        return {key: device for devices in self._evicting.values() for key, device in devices.items()}

    def node_of(self, key: Key) -> str:
        """Return the node of a device; empty if it does not belong to a single node."""
        known = self._slice_by_device.get(key)
        return known.node if known is not None else ""

    def selector(self, key: Key) -> Mapping[str, Any] | None:
        """Return the node selector of a device's slice."""
        known = self._slice_by_device.get(key)
        return None if known is None or known.each else known.selector

    # -- what is in use ---------------------------------------------------------------------------------------------

    def hold(self, uid: str, results: tuple[AllocationResult, ...]) -> None:
        """Set the devices of a claim, replacing previous ones."""
        if self._held.get(uid) == results:
            return
        self.release(uid)
        self._held[uid] = results
        self._count_results(results, 1)

    def release(self, uid: str) -> bool:
        """Release the devices of a claim; return True if it had any."""
        results = self._held.pop(uid, None)
        if results is None:
            return False
        self._count_results(results, -1)
        return True

    def held(self, uid: str) -> tuple[AllocationResult, ...]:
        """Return the devices of a claim."""
        return self._held.get(uid, ())

    def _count_results(self, results: Iterable[AllocationResult], sign: int) -> None:
        for key, admin, share, consumed in results:
            if admin:
                continue
            counts = self._sharing if share else self.taken
            counts[key] = counts.get(key, 0) + sign
            if not counts[key]:
                del counts[key]
            if consumed:
                sums = self.used.setdefault(key, {})
                for name, amount in consumed:
                    sums[name] = sums.get(name, 0) + sign * amount
                if not self._sharing.get(key):
                    del self.used[key]
            self._left.pop(key[:2], None)
            nodes = {each.node for each in self._pools.get(key[:2], {}).values() if each.devices or not each.counters}
            self.changed(nodes.pop() if len(nodes) == 1 else "")

    def changed(self, node: str) -> None:
        """Record a change of a node's devices; an empty name stands for all nodes."""
        if len(self.changes) >= MAX_CHANGES:
            self.forgotten += len(self.changes)
            self.changes.clear()
        self.changes.append(node)

    @property
    def position(self) -> int:
        """Number of changes until now."""
        return self.forgotten + len(self.changes)

    def has_shares(self, key: Key) -> bool:
        """Return True if a part of a shared device is allocated."""
        return key in self._sharing

    def in_use(self, key: Key) -> bool:
        """Return True if a device is allocated, wholly or in part."""
        return key in self.taken or key in self._sharing

    def left(self, pool: PoolKey) -> Mapping[tuple[str, str], int]:
        """Return the remaining counters of a pool by counter set and name, in nano units."""
        counters_left = self._left.get(pool)
        if counters_left is None:
            slices = self._pools.get(pool, {}).values()
            newest = max((each.generation for each in slices), default=0)
            mine = [each for each in slices if each.generation == newest]
            counters_left = {
                (group, name): amount
                for each in mine
                for group, counters in each.counters
                for name, amount in counters.items()
            }
            for each in mine:
                for device in each.devices:
                    if device.counters and self.in_use(device.key):
                        for group, name, amount in device.counters:
                            if (group, name) in counters_left:
                                counters_left[group, name] -= amount
            self._left[pool] = counters_left
        return counters_left


def _find_problem(slices: Iterable[Slice], every: Iterable[Slice]) -> str:
    """Return why a pool is invalid; empty if it is valid."""
    where = ""
    names: set[str] = set()
    counters: dict[str, dict[str, int]] = {}
    for each in slices:
        where = f"resource pool {each.pool[0]}/{each.pool[1]} is invalid:"
        for device in each.devices:
            if device.key[2] in names:
                return f"{where} two devices are named {device.key[2]}"
            names.add(device.key[2])
        for name, group in each.counters:
            if name in counters:
                return f"{where} two counter sets are named {name}"
            counters[name] = group
    for each in every:
        for device in each.devices:
            for name, counter, _ in device.counters:
                if counter not in counters.get(name, ()):
                    return f"{where} device {device.key[2]} consumes counter {name}/{counter}, which does not exist"
    return ""


def _device_facts(driver: str, item: Mapping[str, Any], shared: bool) -> cel.CelDevice:
    attributes: dict[str, dict[str, Any]] = {}
    for name, given in (item.get("attributes") or {}).items():
        domain, _, short = name.rpartition("/")
        try:
            value = cel.version(given["version"]) if "version" in given else next(iter(given.values()))
        except cel.CelError as error:
            logs.warn("invalid attribute", device=item["name"], attribute=name, error=str(error))
            continue
        attributes.setdefault(domain or driver, {})[short] = value
    capacity: dict[str, dict[str, Any]] = {}
    for name, given in (item.get("capacity") or {}).items():
        domain, _, short = name.rpartition("/")
        capacity.setdefault(domain or driver, {})[short] = cel.quantity(given["value"])
    return cel.CelDevice(driver, attributes, capacity, shared)


def gpu_order(device: SliceDevice) -> tuple[Any, ...]:
    """Return a sort key for the GPUs of a machine, in machine order."""
    own = device.facts.attributes.get(device.key[0], {})
    index = next((own[name] for name in ("index", "minor") if isinstance(own.get(name), int)), -1)
    bus = device.facts.attributes.get("resource.kubernetes.io", {}).get("pciBusID", "")
    natural = tuple(
        (part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", device.key[2])
    )
    return index, str(bus), natural
