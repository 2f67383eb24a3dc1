"""Machines on their way, for which preemptions wait: nobody is preempted for pods that will soon fit anyway.

A unit that would preempt others is placed in a copy of the state to which the machines are added that autoscalers have
ordered, or are about to. If it fits, it waits; it stays `Unschedulable`, so that its machine is not given up. A wait
ends when the machine can be used, when none is on its way any more, and `preemptAfter` after the unit first could have
preempted, or the machine was ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from avactl.contracts import names
from avactl.hardware.placement.allocation import AllocationState, Booking, BookingError, Node
from avactl.hardware.placement.gang import Gang, GangRole, place_gang
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.score import Scorer
from avactl.kube.timestamps import timestamp, unix_time_or
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.planned_machines import (
    NodeGroupStatus,
    PlannedMachine,
    read_autoscaler_status,
    read_node_claim,
)
from avactl.scheduler.preemption.attempt import PreemptionRequest
from avactl.scheduler.queue.scheduling_queue import SchedulingQueue

ORDER_S = 30.0
"""Seconds in which an autoscaler orders a machine for a pod: Cluster Autoscaler looks every 10 s, and Karpenter waits
for further pods for up to 10 s."""
MAX_MACHINES = 64
"""Maximum number of machines on their way with which a placement is tried."""
FORGET_S = 120.0
"""Seconds without an attempt, beyond the longest wait, after which the begin of a wait is forgotten."""
_PODS, _PLENTY = 110, 1 << 40
"""Pods of a machine, the kubelet's default, and amounts that are not known beforehand."""


class _Wait(NamedTuple):
    until: float
    places: Sequence[tuple[str, Booking]]
    """Machines on their way, and what is promised there."""


class ComingMachines:
    """The machines that autoscalers have ordered, and the units that wait for them."""

    def __init__(self, cache: ClusterCache, queue: SchedulingQueue, clock: Callable[[], float], enabled: bool) -> None:
        """`clock`: that of the API server, in Unix seconds; `enabled`: False in a plan, where no time passes."""
        self._cache, self._queue, self._clock, self._enabled = cache, queue, clock, enabled
        self.claims: dict[str, PlannedMachine | None] = {}
        """Machines by NodeClaim; None for those that pods can use."""
        self.groups: dict[str, NodeGroupStatus] = {}
        """Node groups of Cluster Autoscaler."""
        self._waits: dict[str, _Wait] = {}
        """By key of the unit."""
        self._begun: dict[Hashable, tuple[float, float]] = {}
        """When units of a kind first could have preempted, and when one was last asked for."""

    # -- what autoscalers say -----------------------------------------------------------------------------------------

    def put_claim(self, item: Mapping[str, Any]) -> None:
        """Add or change a NodeClaim."""
        name, machine = str(item["metadata"]["name"]), read_node_claim(item, self._clock())
        if self.claims.get(name) != machine or name not in self.claims:
            self.claims[name] = machine
            self._cache.tables.change_epoch += 1

    def drop_claim(self, name: str) -> None:
        """Remove a NodeClaim."""
        if self.claims.pop(name, None) is not None:
            self._cache.tables.change_epoch += 1

    def put_status(self, item: Mapping[str, Any]) -> None:
        """Take over the status of Cluster Autoscaler, which it writes every few seconds."""
        groups = read_autoscaler_status(item, self._clock())
        if groups != self.groups:
            self.groups = groups
            self._cache.tables.change_epoch += 1

    def drop_status(self, _: str) -> None:
        """Forget the status of Cluster Autoscaler."""
        if self.groups:
            self.groups = {}
            self._cache.tables.change_epoch += 1

    def planned(self) -> Iterator[PlannedMachine]:
        """Yield the machines that have been ordered for pools with `preemptAfter`."""
        pools = self._cache.tables.pools
        for claim in self.claims.values():
            if claim is not None and claim.pool in pools and pools[claim.pool].preempt_after:
                yield claim
        for pool in pools.values():
            for name in pool.node_groups if pool.preempt_after else ():
                group = self.groups.get(name)
                for number in range(min(group.coming, MAX_MACHINES) if group is not None else 0):
                    yield PlannedMachine(f"{name} {number}", pool.name, {}, group.since if group is not None else 0.0)

    # -- who waits for them -------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of units that preempt nobody because machines are on their way."""
        return len(self._waits)

    def sync(self) -> bool:
        """Return True if waits have ended, so that units may preempt."""
        now, ended = self._clock(), False
        for key, wait in list(self._waits.items()):
            unit = self._queue.units.get(key)
            if unit is None or not unit.waiting or now >= wait.until:
                del self._waits[key]
                ended = True
        if self._begun:
            longest = max((pool.preempt_after for pool in self._cache.tables.pools.values()), default=0.0)
            kept = now - longest - FORGET_S
            self._begun = {kind: times for kind, times in self._begun.items() if times[1] > kept}
        return ended

    def reset(self) -> None:
        """Forget what was promised in a state that has been rebuilt; when waits began stays."""
        self._waits = {key: wait._replace(places=()) for key, wait in self._waits.items()}

    def wait(self, need: PreemptionRequest, model: str, mask: Mask | None) -> str:
        """Return the message of a unit that waits for machines with GPUs of a model; empty if it does not.

        `mask`: nodes that it may use now.
        """
        self._waits.pop(need.unit.key, None)
        pools = {name: pool for name, pool in self._cache.tables.pools.items() if pool.preempt_after}
        if not (self._enabled and need.machine_helps and pools):
            return ""
        now = self._clock()
        begun = self._begin(need, now)
        open_pools = {
            name: pool
            for name, pool in pools.items()
            if now < begun + pool.preempt_after and (not model or pool.machine.gpu == model)
        }
        machines = [
            machine
            for machine in self.planned()
            if machine.pool in open_pools
            and machine.ordered is not None
            and now < machine.ordered + open_pools[machine.pool].preempt_after
        ]
        if now < begun + ORDER_S:
            for pool in open_pools.values():
                machines += self._orders(pool, machines, len(need.pods))
        used = self._place(need, machines[:MAX_MACHINES], mask)
        if not used:
            return ""
        ends = [begun + pools[machine.pool].preempt_after for machine, _ in used]
        ends += [
            begun + ORDER_S if machine.ordered is None else machine.ordered + pools[machine.pool].preempt_after
            for machine, _ in used
        ]
        self._waits[need.unit.key] = _Wait(min(ends), [(machine.name, booking) for machine, booking in used])
        where = ", ".join(sorted({machine.pool for machine, _ in used}))
        what = "may be ordered" if any(machine.ordered is None for machine, _ in used) else "is on its way"
        return f"a machine of pool {where} {what}: no pod is preempted for it until {timestamp(min(ends))}"

    def _begin(self, need: PreemptionRequest, now: float) -> float:
        """Return when the unit could first have preempted, or an equal one before it, behind which it has waited.

        Equal units are not all tried: what counts is when the first of them was, or when this one was made.
        """
        asked = sorted((wish.request.gpus, wish.request.milli, len(wish.pods)) for wish in need.wishes)
        kind = (self._cache.quotas.owner(need.pods[0]), need.unit.gang, tuple(asked))
        begun = self._begun.get(kind, (now, now))[0]
        self._begun[kind] = (begun, now)
        return max(begun, *(min(now, unix_time_or(begun, pod.created)) for pod in need.pods))

    def _orders(self, pool: ConfiguredPool, machines: Sequence[PlannedMachine], most: int) -> Iterator[PlannedMachine]:
        """Yield machines that an autoscaler may order for a pool: as many as it may grow, and pods may need."""
        groups = [self.groups[name] for name in pool.node_groups if name in self.groups]
        if pool.most is None or (groups and all(group.backing_off for group in groups)):
            return
        nodes = self._cache.tables.nodes.values()
        there = sum(info.labels.get(names.POOL_LABEL) == pool.name for info in nodes)
        there += sum(machine.pool == pool.name for machine in machines)
        for number in range(min(most, MAX_MACHINES, pool.most - there)):
            yield PlannedMachine(f"{pool.name} next {number}", pool.name, {}, None)

    def _place(
        self, need: PreemptionRequest, machines: Sequence[PlannedMachine], mask: Mask | None
    ) -> list[tuple[PlannedMachine, Booking]]:
        """Return the machines on which pods of a unit would start, with their bookings; empty if it does not fit.

        Constraints between pods, volumes and the links of single devices are not tried: they end the wait later.
        """
        if not machines:
            return []
        state = self._cache.tables.state.copy()
        slots = {self._add(state, machine, need): machine for machine in machines}
        self._book_promises(state, {machine.name: slot for slot, machine in slots.items()})
        feasible: Mask | None = None
        if mask is not None:
            feasible = np.zeros(len(state.free), np.bool_)
            feasible[: len(mask)] = mask
            feasible[list(slots)] = True
        roles = tuple(GangRole(str(number), wish.request, len(wish.pods)) for number, wish in enumerate(need.wishes))
        gang = Gang(roles, (need.unit.within or None) if need.unit.gang else None)
        members = place_gang(Scorer(state), "", gang, feasible)
        return [
            (slots[member.node], state.bookings["", member.role, member.number])
            for member in members or ()
            if member.node in slots
        ]

    def _add(self, state: AllocationState, machine: PlannedMachine, need: PreemptionRequest) -> int:
        """Add a machine to a state, and to the node sets of the unit's pods that may use it; return its slot."""
        tables = self._cache.tables
        pool = tables.pools[machine.pool]
        machine = machine._replace(labels={**machine.labels, **pool.labels})
        offered = {"cpu": round(pool.machine.cpu * 1000), "memory": pool.machine.memory, "pods": _PODS}
        offered |= {"ephemeral-storage": _PLENTY, pool.rdma_resource: _PLENTY}
        seen = [info for info in tables.nodes.values() if info.labels.get(names.POOL_LABEL) == pool.name]
        for name in state.resources:
            if name not in offered:
                offered[name] = max((info.allocatable.get(name, 0) for info in seen), default=0)
        domains: list[tuple[str, ...] | None] = []
        path: tuple[str, ...] = ()
        for level in state.levels:
            path = (*path, machine.labels.get(level, ""))
            domains.append(path if path[-1] else None)
        node = Node(
            name=machine.name,
            amounts=tuple(offered[name] for name in state.resources),
            gpus=pool.machine.gpus,
            model=pool.machine.gpu,
            machine=pool.machine,
            domains=tuple(domains),
        )
        slot = state.put_node(node)
        for request in {wish.request for wish in need.wishes}:
            if self._cache.requests.may_use_machine(request, machine, pool):
                state.allow(request.nodes, {slot: True})
        return slot

    def _book_promises(self, state: AllocationState, slots: Mapping[str, int]) -> None:
        """Book what other units wait for."""
        for key, wait in self._waits.items():
            for number, (name, booking) in enumerate(wait.places):
                if name in slots:
                    try:
                        state.book(("promised", key, number), replace(booking, node=slots[name]))
                    except BookingError:
                        continue
