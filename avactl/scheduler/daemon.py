"""The scheduler daemon: watches, the scheduling loop and periodic tasks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from avactl.contracts import names
from avactl.contracts.scheduling import PlacementPolicy
from avactl.kube import logs
from avactl.kube.access import ClusterAccess
from avactl.kube.client import ApiError, Client, Rate, UnreachableError
from avactl.kube.elected_daemon import ElectedDaemon, ReplicaOptions, run_elected
from avactl.kube.identity import identify
from avactl.kube.reflector import Reflector
from avactl.scheduler import metrics, metrics_collector
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.node_faults import describe_faulty_nodes
from avactl.scheduler.constraints.constraint_set import ConstraintSet
from avactl.scheduler.cycle.scheduling_cycle import SchedulingCycle
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.handlers import resources
from avactl.scheduler.handlers.pods import PodHandler
from avactl.scheduler.objects.pod_info import FAULT, PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.objects.watch_store import CallbackStore
from avactl.scheduler.preemption.disruption_budgets import DisruptionBudgets
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup, SchedulingQueue
from avactl.scheduler.queue.throttle import NamespaceThrottle
from avactl.scheduler.writers.binder import REFUSED, Binder
from avactl.scheduler.writers.cordons import Cordons
from avactl.scheduler.writers.done_workspaces import DoneWorkspaces
from avactl.scheduler.writers.evictor import Evictor
from avactl.scheduler.writers.fault_evictions import FaultEvictions
from avactl.scheduler.writers.group_conditions import GroupConditions
from avactl.scheduler.writers.node_warnings import (
    GPUS_UNUSABLE,
    PODS_FAIL,
    NodeWarnings,
    failing_nodes,
    nodes_with_unusable_gpus,
)
from avactl.scheduler.writers.pod_reporter import PodReporter
from avactl.scheduler.writers.pod_stopper import PodStopper
from avactl.scheduler.writers.run_timeouts import RunTimeouts
from avactl.scheduler.writers.stale_gangs import StaleGangs
from avactl.scheduler.writers.stale_nominations import StaleNominations

_SLICE = 0.004
"""Seconds of deciding, after which watches and answers have their turn."""
_RETRY = 0.05
"""Seconds between two tries of what waits."""
_TICK = 0.5
_IDENTIFY_RETRY_S = 1.0
_PLANNING = 0.1
"""Share of the time that plans for room may take that come to nothing."""
_COLLECT = (200_000, 20, 100)
"""Thresholds of the garbage collector."""
_BOOKED = ("pods", "resourceclaims")
"""Kinds that record device assignments."""
_BROKEN = 0.25
"""Seconds charged for a failed decision, after which the state is rebuilt."""
_FAILED, _REFUSED = 60.0, 5.0
"""Seconds until retry after a failed decision, and after a binding that the API server rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions(ReplicaOptions):
    """Options of a scheduler replica; the namespace is also that of the ConfigMaps."""

    policy: PlacementPolicy
    qps: float = 1000.0
    burst: float = 2000.0
    """Burst of API requests; events have a separate budget of the same size, as in kube-scheduler."""
    gang_grace: float = 30.0
    """Seconds for which a partial gang may hold GPUs."""


class SchedulerDaemon(ElectedDaemon):
    """One replica of the scheduler."""

    registry, leader_gauge, stuck_after_s = metrics.REGISTRY, metrics.LEADER, 60.0

    def __init__(self, client: Client, options: SchedulerOptions) -> None:
        super().__init__(options.listen, options.leader(client))
        self._client, self._options = client, options
        policy = options.policy
        self.cache = ClusterCache(policy.widest_first, DraManager(policy.gpu_driver), policy.objective)
        self.constraints = ConstraintSet(self.cache, policy)
        self.queue = SchedulingQueue()
        self.reporter = PodReporter(client, Rate(options.qps, options.burst))
        rate = Rate(options.qps, options.burst)
        self.binder = Binder(client, rate, self.cache, self.reporter, self._returned, self.leading)
        self.reporter.yield_to = lambda: self.binder.in_flight > 0
        self.budgets = DisruptionBudgets()
        evictor = Evictor(client, rate, self.reporter, self.leading, self._wanted, self._not_made)
        self.cycle = SchedulingCycle(
            self.cache,
            self.queue,
            self.constraints,
            self.binder,
            self.reporter,
            evictor,
            self.budgets,
            _PLANNING,
            client.clock.now,
            policy.hold_after,
            policy.autoscalers,
        )
        self.stale_nominations = StaleNominations(self.cache, evictor, self._wanted)
        self.pod_handler = PodHandler(self.cache, self.queue, self.cycle.forget)
        stopper = PodStopper(client, rate, self.reporter, self.leading)
        self.gangs = StaleGangs(stopper, self.queue, self.reporter, options.gang_grace)
        self.fault_evictions = FaultEvictions(self.cache, self.queue, self.budgets, stopper)
        tables = self.cache.tables
        self.group_conditions = GroupConditions(client, rate, tables.pod_groups, self.leading)
        self.node_warnings = (
            NodeWarnings(PODS_FAIL, lambda: failing_nodes(tables), self.reporter),
            NodeWarnings(GPUS_UNUSABLE, lambda: nodes_with_unusable_gpus(tables), self.reporter),
            NodeWarnings(FAULT, lambda: describe_faulty_nodes(tables), self.reporter),
        )
        self.cordons = Cordons(client, rate, tables, self.reporter, self.leading)
        self.timeouts = RunTimeouts(client, rate, self.cache.tables, self.leading)
        self.workspaces = DoneWorkspaces(client, rate, self.cache.tables, self.reporter, self.leading)
        self._throttle = NamespaceThrottle()
        self._retried = 0.0
        self._failed: dict[str, float] = {}
        """Units that failed, by key, and when they are tried again."""
        self._reflectors += self._watch()

    def _watch(self) -> list[Reflector]:
        def reflect(path: str, store: Any, **more: Any) -> Reflector:
            failed = metrics.WATCH_ERRORS.labels(path.rsplit("/", 1)[-1]).inc
            return Reflector(self._client, path, store, self._wake.set, failed=failed, **more)

        cache, dra = self.cache, "/apis/resource.k8s.io/v1"
        configs = resources.ConfigMapHandler(cache, cache.quotas.put_quota)
        pods = CallbackStore(self.pod_handler.put, self.pod_handler.drop, cache.pod_keys)
        return [
            *(
                reflect(watch.path, watch.store, query=watch.query, optional=watch.optional)
                for watch in self.constraints.watches()
            ),
            reflect("/api/v1/nodes", resources.nodes(cache)),
            reflect("/api/v1/pods", pods),
            reflect("/api/v1/namespaces", resources.namespaces(cache)),
            reflect(
                f"/api/v1/namespaces/{self._options.namespace}/configmaps",
                configs,
                query={"labelSelector": names.CONFIG_LABEL},
            ),
            reflect("/apis/policy/v1/poddisruptionbudgets", resources.budgets(self.budgets)),
            reflect(f"{dra}/resourceslices", resources.slices(cache), optional=True),
            reflect(f"{dra}/deviceclasses", resources.device_classes(cache), optional=True),
            reflect(f"{dra}/resourceclaims", resources.resource_claims(cache), optional=True),
            *(self._watch_autoscalers(reflect) if self._options.policy.autoscalers else ()),
            *(
                [reflect(f"{dra}/devicetaintrules", resources.taint_rules(cache), optional=True)]
                if self._options.policy.taint_rules
                else ()
            ),
        ]

    def _watch_autoscalers(self, reflect: Callable[..., Reflector]) -> list[Reflector]:
        """Return the watches of what autoscalers have ordered; a cluster has one of them, or none."""
        machines, query = self.cycle.preemptor.machines, {"fieldSelector": f"metadata.name={names.AUTOSCALER_STATUS}"}
        status = f"/api/v1/namespaces/{names.AUTOSCALER_NAMESPACE}/configmaps"
        return [
            reflect("/apis/karpenter.sh/v1/nodeclaims", resources.node_claims(machines), dispensable=True),
            reflect(status, resources.autoscaler_status(machines), query=query, dispensable=True),
        ]

    def _returned(self, pod: PodInfo, result: str) -> None:
        """A binding failed."""
        unit = self.queue.units.get(pod.gang or pod.uid)
        if result == REFUSED and unit is not None:
            # It would be refused again at once, as often as the API server answers.
            self.queue.suspend(unit)
            self._failed[unit.key] = monotonic() + _REFUSED
        elif self.pod_handler.returned(pod):
            self._wake.set()

    def _wanted(self, unit: str) -> bool:
        """Return True while capacity is being freed for a pod group."""
        return self.cycle.preemptor.has_nomination(unit)

    def _not_made(self, unit: str) -> None:
        """Victims could not be evicted."""
        self.cycle.preemptor.abandon(unit)
        self._wake.set()

    # -- running ----------------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Wait until the API server tells its Cluster. Raises WrongClusterError if the policy is that of another."""
        while self._client.context:  # in a pod, the policy is that of its own cluster
            try:
                target = await identify(self._client, self._options.policy.cluster, self._options.namespace)
            except (ApiError, UnreachableError) as error:
                logs.warn("cluster", error=str(error))
                await asyncio.sleep(_IDENTIFY_RETRY_S)
                continue
            logs.info("identified", context=target.context, cluster=target.cluster, unverified=target.unverified)
            return

    def _on_synced(self) -> None:
        logs.info("synced", nodes=len(self.cache.tables.nodes), pods=len(self.cache.tables.pods))

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reporter.run())
            group.create_task(self.binder.run())
            await self._decide()

    async def _decide(self) -> None:
        if self._leader is not None:
            # What the one before did last may not have been told yet: a watch can be behind, or dead and not know it.
            behind = [each for each in self._reflectors if each.kind in _BOOKED and each.since < self._leader.since]
            await asyncio.gather(*(each.again() for each in behind))
        while True:
            await self._turn()
            # Whoever waits is not tried at once whenever something comes free, but is soon.
            freed = self.queue.retried != self.cache.tables.change_epoch
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY if freed else _TICK):
                    await self._wake.wait()

    async def _turn(self) -> None:
        """Decide on all that can be decided now."""
        self._wake.clear()
        if not self.leading():
            return
        until = monotonic() + _SLICE
        self._tidy()
        while self.leading():
            unit = self._next()
            if unit is None:
                return
            self._decide_on(unit)
            if monotonic() >= until:
                await asyncio.sleep(0)
                await self.binder.wait_for_capacity()
                self._tidy()
                until = monotonic() + _SLICE

    def _next(self) -> QueuedPodGroup | None:
        """The unit to be decided on: of a namespace whose attempts keep failing only when no other waits."""
        for namespace in self.queue.deferred:
            if not self._throttle.exceeded(namespace):
                self.queue.readmit(namespace)
        while (unit := self.queue.pop()) is not None:
            if not self._throttle.exceeded(unit.namespace):
                return unit
            self.queue.defer(unit)
        return self.queue.pop_deferred()

    def _decide_on(self, unit: QueuedPodGroup) -> None:
        began, namespace = monotonic(), unit.namespace
        try:
            self.cycle.decide(unit)
            if unit.waiting:
                self._throttle.charge(namespace, monotonic() - began)
        except Exception as error:  # one odd pod must not stop the scheduling of all
            logs.error("scheduling failed", unit=unit.key, error=repr(error), trace=traceback.format_exc())
            metrics.DECISIONS.labels("failed").inc()
            for pod in unit.waiting:
                message = f"internal error of the scheduler: {error!r}"
                self.reporter.unschedulable(pod, message, WaitReason.ERROR)
            self.queue.suspend(unit)
            self._failed[unit.key] = monotonic() + _FAILED
            self.cache.tables.stale = True  # it may have stopped half way
            self._throttle.charge(namespace, _BROKEN)

    def _tidy(self) -> None:
        if self.cache.tables.stale:
            began = monotonic()
            self.cache.rebuild()
            self.cycle.clear()
            logs.info("state built", nodes=len(self.cache.tables.nodes), seconds=round(monotonic() - began, 3))
        for key in sorted(self.cache.tables.waits.woken):
            if key in self.queue.units:
                self.queue.push(self.queue.units[key])
        self.cache.tables.waits.woken.clear()
        self._guarded(self.cycle.sync)
        now = monotonic()
        if (
            self.queue.retried != self.cache.tables.change_epoch
            and now - self._retried >= _RETRY
            and not self.queue.retrying
        ):
            self._retried = now
            self.queue.retry(self.cache.tables.change_epoch)
        if now - self._turned >= _TICK:
            self._turned = now
            for look in (
                self.reporter.later,
                self.gangs.tick,
                self.fault_evictions.tick,
                self.group_conditions.tick,
                self.stale_nominations.tick,
                self.cordons.tick,
                self.timeouts.tick,
                self.workspaces.tick,
                *(warnings.tick for warnings in self.node_warnings),
                self.constraints.tick,
            ):
                self._guarded(look)
            if self.cache.tables.waits.woken:
                self._wake.set()
            for key in [key for key, due in self._failed.items() if now > due]:
                del self._failed[key]
                unit = self.queue.units.get(key)
                if unit is not None:
                    self.queue.push(unit)

    def _guarded(self, look: Callable[[], None]) -> None:
        """Housekeeping that fails is tried again at the next turn: it must not end the scheduling of all."""
        try:
            look()
        except Exception as error:
            logs.error("periodic tasks failed", what=look.__qualname__, error=repr(error), trace=traceback.format_exc())
            metrics.DECISIONS.labels("failed").inc()

    async def _update_metrics(self) -> None:
        active, waiting = self.queue.lengths()
        metrics.PENDING.labels("active").set(active)
        metrics.PENDING.labels("unschedulable").set(waiting)
        machines = self.cycle.preemptor.machines
        metrics.PREEMPTIONS_WAITING.set(machines.waiting)
        metrics.MACHINES_COMING.clear()
        for pool, number in Counter(machine.pool for machine in machines.planned()).items():
            metrics.MACHINES_COMING.labels(pool).set(number)
        await metrics_collector.collect(self.cache, self.cache.tables.scorer.measure)


async def run(access: ClusterAccess, options: SchedulerOptions) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    # Objects that come are trees, which end without it: to look for cycles took half of the time of reading lists.
    gc.set_threshold(*_COLLECT)
    await run_elected(
        Client(access, names.CONTROLLER, compressed=False), lambda client: SchedulerDaemon(client, options)
    )
