"""Evictions from machines and GPUs with faults, as far as the NodePool permits them (`onFault`).

Nothing is stored: who has to leave follows from the conditions of nodes, the taints of devices and the status of pods,
so another replica, or one that was killed, goes on where the last one was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.node_faults import may_evict, nodes_with_faults, suspended_pools
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.pod_info import FAULT, PodInfo
from avactl.scheduler.preemption.candidates import BudgetChecker
from avactl.scheduler.queue.scheduling_queue import SchedulingQueue

CAUSE = "fault"
"""Label of the metric of evictions."""


class PodSink(Protocol):
    """Stops pods."""

    def stop(self, pods: Sequence[PodInfo], reason: str, note: str, cause: str) -> None:
        """Mark pods as disrupted and delete them, each once."""


class Leaving(NamedTuple):
    """A pod that has to leave its node."""

    pod: PodInfo
    why: str
    broken: bool
    """True if it cannot go on where it is: budgets are not considered."""


class FaultEvictions:
    """Evicts pods from faulty machines and GPUs."""

    def __init__(self, cache: ClusterCache, queue: SchedulingQueue, budgets: BudgetChecker, stopper: PodSink) -> None:
        self._cache, self._queue, self._budgets, self._stopper = cache, queue, budgets, stopper

    def tick(self) -> None:
        """Stop the pods that have to leave, and those of their gangs that cannot go on without them."""
        if self._cache.tables.stale:
            return
        suspended = suspended_pools(self._cache.tables)
        leaving: dict[str, dict[PodInfo, Leaving]] = {}
        for each in self._find_leaving(suspended):
            leaving.setdefault(each.pod.gang or each.pod.uid, {}).setdefault(each.pod, each)
        for unit, mine in leaving.items():
            if unit in self._queue.units and self._queue.units[unit].gang:
                self._stop_gang(unit, mine)
            else:
                self._stop_pod(*mine.values())

    def _find_leaving(self, suspended: Collection[str]) -> Iterator[Leaving]:
        tables = self._cache.tables
        for info in nodes_with_faults(tables):
            pool = tables.pool_of(info)
            if pool is not None and pool.name not in suspended and may_evict(pool, info):
                for pod in tables.pods_by_node.get(info.name, {}).values():
                    if _is_running(pod) and (left := self._leaves(pod, info, pool)) is not None:
                        yield left
        for pod, why in (*self._on_unhealthy_devices(), *self._on_tainted_devices()):
            pool = tables.pool_of(tables.nodes[pod.node]) if pod.node in tables.nodes else None
            # Kubernetes may be evicting it by itself, but not the others of its gang.
            leaves = pod.managed and not pod.ended
            if pool is not None and pool.on_fault != "avoid" and pool.name not in suspended and leaves:
                yield Leaving(pod, why, True)

    def _leaves(self, pod: PodInfo, info: NodeInfo, pool: ConfiguredPool) -> Leaving | None:
        """Return why a pod of a node with faults has to leave it; None if it stays."""
        faults = [fault for fault in info.faults if fault.evict]
        gpus = self._gpus_of(pod, info)
        for fault in faults:
            certain = not pool.machine.kubelet_chooses or bool(info.devices) or gpus.bit_count() == pool.machine.gpus
            if gpus and (fault.gpu is None or (certain and gpus >> fault.gpu & 1)):
                return Leaving(pod, f"node {info.name}: {fault}", True)
        if pool.on_fault == "drain":
            return Leaving(pod, f"node {info.name} is drained: {info.describe_faults()}", False)
        return None

    def _gpus_of(self, pod: PodInfo, info: NodeInfo) -> int:
        """Return the mask of the node's GPUs that a pod holds, by its requests and its claims."""
        state, mask = self._cache.tables.state, 0
        for key in (pod.uid, *(claim.uid for claim in self._cache.claims.claims_of(pod))):
            booking = state.bookings.get(key)
            if booking is not None and booking.node == state.slots.get(info.name):
                mask |= booking.gpus
        return mask

    def _on_unhealthy_devices(self) -> Iterator[tuple[PodInfo, str]]:
        tables = self._cache.tables
        for key in list(tables.unhealthy_pods):
            pod = tables.pods.get(key)
            if pod is None or not pod.unhealthy_device:
                tables.unhealthy_pods.discard(key)
            else:
                yield pod, f"node {pod.node}: its kubelet reports {pod.unhealthy_device} as unhealthy"

    def _on_tainted_devices(self) -> Iterator[tuple[PodInfo, str]]:
        for claim, taint in self._cache.dra.evicted_claims():
            for pod in self._cache.tables.claim_users.get(claim.key, {}).values():
                yield pod, f"node {pod.node}: a device of ResourceClaim {claim.name} has the taint {taint}"

    # -- what stops -------------------------------------------------------------------------------------------------

    def _stop_gang(self, key: str, leaving: Mapping[PodInfo, Leaving]) -> None:
        """Stop the pods of a gang that have to leave; all of it, unless as many as it needs are left."""
        unit = self._queue.units[key]
        running = [pod for pod in unit.pods.values() if _is_running(pod)]
        mine = [pod for pod in running if pod in leaving]
        alone = len(running) - len(mine) >= unit.size and not any(pod.first for pod in leaving)
        why = next(iter(leaving.values())).why
        if alone and mine:
            self._stopper.stop(mine, FAULT, why, CAUSE)
        elif running and not alone:
            self._stopper.stop(running, FAULT, f"its gang starts again elsewhere: {why}", CAUSE)

    def _stop_pod(self, leaving: Leaving) -> None:
        # Replicas of a service that still work leave one after the other, as their budget says.
        if _is_running(leaving.pod) and (leaving.broken or not self._budgets.protected_pods([leaving.pod])):
            self._stopper.stop([leaving.pod], FAULT, leaving.why, CAUSE)


def _is_running(pod: PodInfo) -> bool:
    return pod.managed and bool(pod.node) and not (pod.ended or pod.deleting)
