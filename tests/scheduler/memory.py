"""The decider in memory: bindings happen at once, victims go when the test says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from avactl.contracts import names
from avactl.contracts.pod_annotations import DEVICES, GANG_SIZE, PREEMPTION
from avactl.contracts.scheduling import KNOWN_GANG_KINDS, PlacementPolicy
from avactl.hardware.placement.quota import QuotaLimit, QuotaNode
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.cached_datasets import CachedDatasets
from avactl.scheduler.constraints.constraint_set import ConstraintSet
from avactl.scheduler.constraints.job_order import JobOrder
from avactl.scheduler.cycle.scheduling_cycle import SchedulingCycle
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.handlers.pods import PodHandler
from avactl.scheduler.interfaces import BindRequest, Eviction
from avactl.scheduler.objects.config import TeamQuota
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.preemption.disruption_budgets import DisruptionBudgets
from avactl.scheduler.queue.scheduling_queue import SchedulingQueue

LEVELS = ("example.com/block", "example.com/rack")


class Memory:
    """A cluster of V100 machines; it is what the decider binds, evicts and reports to."""

    def __init__(
        self,
        machines: int = 2,
        gpus: int = 8,
        rack: int = 2,
        *,
        daemon: bool = False,
        levels: tuple[str, ...] = LEVELS,
        gpu_driver: str = "",
        hold_after: float = 0.0,
        **cache: Any,
    ) -> None:
        """`daemon`: the cluster runs the cache daemon. `levels`: of the topology, the widest first.

        `gpu_driver`: the DRA driver of GPUs. `hold_after`: seconds after which younger pods wait behind a gang.
        """
        self.cache = ClusterCache(levels, DraManager(gpu_driver), **cache)
        policy = PlacementPolicy(
            cluster="main",
            system_namespace="avactl-system",
            levels=levels[::-1],
            gpu_driver="gpu.example.com",
            cache_daemon=daemon,
            jobs=True,
            pod_groups=True,
            gang_kinds=KNOWN_GANG_KINDS,
        )
        self.constraints = ConstraintSet(self.cache, policy)
        self.datasets, self.jobs = self.constraints.get(CachedDatasets), self.constraints.get(JobOrder)
        self.queue = SchedulingQueue()
        self.budgets = DisruptionBudgets()
        self.time: Callable[[], float] = lambda: time.time()
        self.cycle = SchedulingCycle(
            self.cache,
            self.queue,
            self.constraints,
            self,
            self,
            self,
            self.budgets,
            clock=lambda: self.time(),
            hold_after=hold_after,
            waits_for_machines=True,
        )
        self.pod_handler = PodHandler(self.cache, self.queue, self.cycle.forget)
        self.items: dict[str, dict[str, Any]] = {}
        self.said: dict[str, str] = {}
        self.reasons: dict[str, WaitReason] = {}
        self.evictions: list[Eviction] = []
        self.orders: list[BindRequest] = []
        self.clock = 0
        for number in range(machines):
            self.machine(f"n{number}", gpus, {LEVELS[0]: "b", LEVELS[1]: f"r{number // rack}"})

    # -- what the decider asks for ----------------------------------------------------------------------------------

    def put(self, order: BindRequest) -> None:
        self.orders.append(order)

    def give_back(self, pod: PodInfo, claims: Sequence[object]) -> None:
        assert not claims, "their devices were chosen for this pod"

    def evict(self, eviction: Eviction) -> None:
        self.evictions.append(eviction)
        for victim in eviction.victims:
            assert victim.note.startswith("Preempted for "), victim.note
            self._mark(victim.pod, eviction.preemption)
            self._condition(victim.pod.key, "DisruptionTarget", "PreemptionByScheduler", victim.note)
        for pod, node in eviction.places.items():
            self._mark(pod, eviction.preemption)
            self.items[pod.key]["status"]["nominatedNodeName"] = node
            self.pod_handler.put(self.items[pod.key])

    def _mark(self, pod: PodInfo, preemption: str) -> None:
        self.items[pod.key]["metadata"]["annotations"][PREEMPTION.name] = preemption

    def clear(self, pods: Sequence[PodInfo]) -> None:
        for pod in pods:
            if pod.key in self.items:
                self.items[pod.key]["status"].pop("nominatedNodeName", None)
                self.items[pod.key]["metadata"]["annotations"].pop(PREEMPTION.name, None)

    def unschedulable(self, pod: PodInfo, message: str, reason: WaitReason) -> None:
        self.said[pod.name], self.reasons[pod.name] = message, reason

    not_yet = unschedulable

    # -- what the test does -----------------------------------------------------------------------------------------

    def machine(
        self, name: str, gpus: int, labels: Mapping[str, str], amounts: Mapping[str, str] = {}, **spec: object
    ) -> None:
        """Add a machine; `amounts` replace what it has by default."""
        given = {names.GPU_LABEL: "V100", "kubernetes.io/hostname": name, **labels}
        usual = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        status = {"allocatable": {**usual, **amounts}}
        self.cache.put_node({"metadata": {"name": name, "labels": given}, "spec": spec, "status": status})

    def quota(
        self,
        team: str,
        guaranteed: int,
        borrow: int | None = None,
        weight: int = 1,
        cpu: int | None = None,
        per_member: int | None = None,
    ) -> None:
        limits, amounts = {"V100": QuotaLimit(guaranteed, borrow, weight)}, (None if cpu is None else 1000 * cpu,)
        own = {} if per_member is None else {"V100": per_member}
        quota = QuotaNode(team, limits, amounts=amounts, per_member=own)
        self.cache.quotas.put_quota(team, TeamQuota(team, (team,), quota))

    def pod(
        self,
        team: str,
        name: str,
        gpus: int = 0,
        notes: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        amounts: Mapping[str, str] = {},
        owner: Any = None,
        **spec: Any,
    ) -> None:
        """`owner`: the reference to its controller."""
        self.clock += 1
        requests = {"cpu": "1", "memory": "1Gi", **amounts, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
        metadata = {
            "name": name,
            "namespace": team,
            "uid": f"{name}-{self.clock}",
            "labels": labels or {},
            "annotations": notes or {},
            "creationTimestamp": self._now(),
            "ownerReferences": [{**owner, "controller": True}] if owner else [],
        }
        main = {"name": "main", "resources": {"requests": requests}}
        item = {"metadata": metadata, "spec": {"schedulerName": "avactl", "containers": [main], **spec}, "status": {}}
        self.items[f"{team}/{name}"] = item
        self.pod_handler.put(item)

    def mark_started(self, team: str, name: str) -> None:
        """Note when a pod with a node was bound."""
        self.clock += 1
        self._condition(f"{team}/{name}", "PodScheduled", "", "")

    def gang(self, team: str, name: str, members: int, gpus: int, size: int = 0, first: int = 0, **spec: Any) -> None:
        notes = {GANG_SIZE.name: str(size or members), **spec.pop("notes", {})}
        labels = {names.GANG_LABEL: name, **spec.pop("labels", {})}
        for number in range(first, members):
            index = {"batch.kubernetes.io/job-completion-index": str(number)}
            self.pod(team, f"{name}-{number}", gpus, {**notes, **index}, labels=labels, **spec)

    def settle(self) -> None:
        """Decide until there is nothing left to decide, and nobody is helped by what was freed."""
        if self.cache.tables.stale:
            self.cache.rebuild()
            self.cycle.clear()
        freed = -1
        while freed != self.cache.tables.change_epoch:
            freed = self.cache.tables.change_epoch
            self.cycle.sync()
            self.queue.retry(freed)
            self.decide()

    def decide(self) -> None:
        """Decide on those that are to be tried; what waits is not tried again."""
        while (unit := self.queue.pop()) is not None:
            self.cycle.decide(unit)
            self._bind()

    def _bind(self) -> None:
        for order in self.orders:
            item = self.items[order.pod.key]
            item["spec"]["nodeName"] = order.node
            if order.devices:
                item["metadata"]["annotations"][DEVICES.name] = order.devices
            self.clock += 1
            self._condition(order.pod.key, "PodScheduled", "", "")
        self.orders.clear()

    def _condition(self, key: str, kind: str, reason: str, message: str) -> None:
        conditions = self.items[key]["status"].setdefault("conditions", [])
        conditions[:] = [each for each in conditions if each["type"] != kind]
        conditions.append(
            {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": self._now()}
        )
        self.pod_handler.put(self.items[key])

    def _now(self) -> str:
        return f"2026-01-01T{self.clock // 3600:02}:{self.clock // 60 % 60:02}:{self.clock % 60:02}Z"

    def drop(self, team: str, *pods: str) -> None:
        for name in pods:
            del self.items[f"{team}/{name}"]
            self.pod_handler.drop(f"{team}/{name}")

    def go(self) -> list[str]:
        """The victims that are there still are gone now; their names."""
        evicted = dict.fromkeys(each.pod for eviction in self.evictions for each in eviction.victims)
        gone = [pod for pod in evicted if self.items.get(pod.key, {}).get("metadata", {}).get("uid") == pod.uid]
        for pod in gone:
            self.drop(pod.namespace, pod.name)
        return sorted(pod.name for pod in gone)

    def restart(self) -> Memory:
        """Another scheduler, that knows what the API server knows."""
        other = Memory(machines=0)
        for node in self.cache.tables.nodes.values():
            other.cache.tables.nodes[node.name] = node
        for leaf in self.cache.quotas.quotas.values():
            other.cache.quotas.put_quota(leaf.team, leaf)
        other.items, other.clock = self.items, self.clock
        for item in self.items.values():
            other.pod_handler.put(item)
        return other

    # -- looking ----------------------------------------------------------------------------------------------------

    def where(self) -> dict[str, str]:
        """Pods that have a node."""
        found = ((item["metadata"]["name"], item["spec"].get("nodeName")) for item in self.items.values())
        return {name: node for name, node in found if node}
