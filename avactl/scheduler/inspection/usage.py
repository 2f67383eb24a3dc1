"""Usage by team, pool and job, for `avactl top` and the metrics. Read-only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from avactl.contracts import names
from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.hardware.placement.fragmentation import Measure
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.inspection import partial_gpus
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.node_rules import RuleError
from avactl.scheduler.objects.pod_info import PodInfo

_INSTANCE, _KIND = "app.kubernetes.io/instance", "app.kubernetes.io/name"
_JOB_NAMES = ("batch.kubernetes.io/job-name", "job-name")
_KINDS = {
    "trainingjob": "train",
    "servingdeployment": "serve",
    "pipeline": "flow",
    "processingjob": "data",
    "workspace": "work",
}
UNAVAILABLE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class PoolUsage(NamedTuple):
    """Machines of one pool and GPU model; GPU nodes outside all pools form a pool without a name."""

    name: str
    model: str
    machines: int
    away: int
    """Machines that are cordoned or not ready."""
    whole: int
    """Schedulable machines without allocated GPUs."""
    gpus: int
    used: float
    """Allocated GPUs; a share counts as a fraction."""
    lost: float | None
    """Free GPUs that the next pod of the expected workload for this model cannot use, on average (FGD); None if no such
    pod is expected."""

    @property
    def free(self) -> float:
        """Unallocated GPUs, also on machines that are not schedulable."""
        return self.gpus - self.used


class TeamLine(NamedTuple):
    """Usage of one GPU model by a team, in GPUs."""

    name: str
    model: str
    """Empty for pending pods without a GPU model."""
    used: float
    guaranteed: float | None
    """None without a quota."""
    borrow: float | None
    """Maximum that it may borrow; None for no limit."""
    borrowed: float
    reclaimable: float
    """Borrowed GPUs held by preemptible pods."""
    waiting: float
    """GPUs requested by pending pods."""


class JobUsage(NamedTuple):
    """Pods of one job, service or workspace."""

    namespace: str
    name: str
    kind: str
    """`train`, `serve`, `work`; else `job`, `pod`."""
    team: str
    pods: int
    running: int
    gpus: float
    model: str
    since: str
    """Creation time of the oldest pod."""
    why: str
    """Reasons for pending pods, from the scheduler's messages."""

    @property
    def waiting(self) -> int:
        """Pending pods."""
        return self.pods - self.running


def job_of(pod: PodInfo) -> tuple[str, str]:
    """Return the name and kind of the job that a pod belongs to."""
    labels = pod.labels
    if labels.get(names.MANAGED_BY) == names.MANAGER and _INSTANCE in labels:
        return labels[_INSTANCE], _KINDS.get(labels.get(_KIND, ""), "pod")
    if pod.gang and pod.group is None:
        return pod.gang.partition("/")[2], "job"
    for label in _JOB_NAMES:
        if label in labels:
            return labels[label], "job"
    return (pod.pod_group, "job") if pod.gang else (pod.name, "pod")


def away(info: NodeInfo) -> str:
    """Return why a machine is not schedulable: `cordoned` or `not ready`; empty if it is."""
    if any(taint["key"] in UNAVAILABLE_TAINTS for taint in info.taints):
        return "not ready"
    return "cordoned" if info.cordoned else ""


def gpus_of(cache: ClusterCache, pod: PodInfo) -> float:
    """Return the GPUs that a pod holds or requests."""
    if pod.node or pod.assumed:
        return (cache.claims.held_gpus(pod) + partial_gpus.of_pod(cache, pod)) / MILLI_PER_GPU
    if pod.shape.share:
        return pod.shape.share / MILLI_PER_GPU
    with contextlib.suppress(RuleError):
        return cache.claims.requested_gpus(pod)
    return cache.requests.gpu_count(pod.shape)


def model_of(cache: ClusterCache, pod: PodInfo) -> str:
    """Return the GPU model that a pod has or requests; empty if unknown."""
    node = pod.node or pod.assumed
    return cache.tables.model_of(node) if node in cache.tables.nodes else pod.shape.rules.model or ""


def pools(cache: ClusterCache, measure: Measure | None = None) -> list[PoolUsage]:
    """Return pools by name and model. The cluster cache must not be stale. `measure`: the fragmentation measure."""
    state = cache.tables.state
    groups: dict[tuple[str, str], list[int]] = {}
    gone: dict[int, bool] = {}
    for name, info in cache.tables.nodes.items():
        slot = state.slots.get(name)
        pool = cache.tables.pool_of(info)
        if slot is None or not (state.gpu_count[slot] or pool is not None):
            continue
        groups.setdefault((pool.name if pool else "", cache.tables.model_of(name)), []).append(slot)
        gone[slot] = bool(away(info))
    in_parts = {
        state.slots[node]: sum(part.milli for _, part in held) for node, held in partial_gpus.by_node(cache).items()
    }
    result = []
    for (name, model), numbers in sorted(groups.items(), key=lambda group: (not group[0][0], group[0])):
        slots = np.array(numbers, np.int64)
        there = np.array([not gone[slot] for slot in numbers])
        broken = np.array([in_parts.get(slot, 0) for slot in numbers])
        lost = None
        if measure is not None and (share := measure.share(model)):
            # Pods that need another GPU model say nothing about fragmentation here.
            gpus = state.gpu_free[slots, : state.width].astype(np.int64)
            chances = measure.chances(state.free[slots], state.model[slots], state.models) / share
            lost = max(0.0, float(measure.lost(chances, gpus).sum())) / MILLI_PER_GPU
        full = (
            (state.gpu_total[slots] == MILLI_PER_GPU * state.gpu_count[slots])
            & (state.gpu_count[slots] > 0)
            & (broken == 0)
        )
        count = int(state.gpu_count[slots].sum())
        used = (MILLI_PER_GPU * count - int(state.gpu_total[slots].sum()) + int(broken.sum())) / MILLI_PER_GPU
        out = int((~there).sum())
        result.append(PoolUsage(name, model, len(numbers), out, int((full & there).sum()), count, used, lost))
    return result


class Counts:
    """GPU counts by team and model."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._used: dict[tuple[str, str], float] = {}
        self._parts: dict[tuple[str, str], float] = {}
        """GPUs in parts, which quotas do not count."""
        self._preemptible: dict[tuple[str, str], float] = {}
        self._waiting: dict[tuple[str, str], float] = {}

    def add(self, pod: PodInfo) -> None:
        """Count a pod."""
        cache = self._cache
        gpus = 0.0 if pod.ended else gpus_of(cache, pod)
        if not gpus:
            return
        key = cache.quotas.team(pod), model_of(cache, pod)
        holds = bool(pod.node or pod.assumed)
        into = self._used if holds else self._waiting
        into[key] = into.get(key, 0.0) + gpus
        if holds and pod.claims:
            self._parts[key] = self._parts.get(key, 0.0) + partial_gpus.of_pod(cache, pod) / MILLI_PER_GPU
        if holds and pod.preemptible:
            self._preemptible[key] = self._preemptible.get(key, 0.0) + gpus

    def teams(self) -> list[TeamLine]:
        """Return teams by name and GPU model: those with a quota, and those that hold or request GPUs."""
        quotas = self._cache.quotas.quotas
        of_quota = {
            (team, model)
            for team, known in quotas.items()
            for model in {*known.quota.limits, *(shape.model for shape in known.quota.shapes)}
        }
        result = []
        for key in sorted({*self._used, *self._waiting, *of_quota}):
            team, model = key
            limit = quotas[team].quota.limit(model) if team in quotas and model else None
            has = self._used.get(key, 0.0)
            borrowed = max(0.0, has - self._parts.get(key, 0.0) - limit.guaranteed) if limit else 0.0
            result.append(
                TeamLine(
                    team,
                    model,
                    has,
                    limit.guaranteed if limit else None,
                    limit.borrow if limit else None,
                    borrowed,
                    min(borrowed, self._preemptible.get(key, 0.0)),
                    self._waiting.get(key, 0.0),
                )
            )
        return result


def teams(cache: ClusterCache, pods: Iterable[PodInfo]) -> list[TeamLine]:
    """Return teams by name and GPU model, counting these pods."""
    counts = Counts(cache)
    for pod in pods:
        counts.add(pod)
    return counts.teams()


def jobs(cache: ClusterCache, pods: Iterable[PodInfo], messages: dict[str, str] | None = None) -> list[JobUsage]:
    """Return jobs with GPUs, and all jobs pending on this scheduler: pending jobs first, then the largest."""
    groups: dict[tuple[str, str, str], list[PodInfo]] = {}
    for pod in pods:
        if pod.managed or gpus_of(cache, pod):
            groups.setdefault((pod.namespace, *job_of(pod)), []).append(pod)
    found = [_new_job(cache, *key, group, messages or {}) for key, group in groups.items()]
    shown = [job for job in found if job.gpus or job.waiting]
    return sorted(shown, key=lambda job: (not job.waiting, -job.gpus, job.since, job.namespace, job.name))


def _new_job(
    cache: ClusterCache, namespace: str, name: str, kind: str, group: list[PodInfo], messages: dict[str, str]
) -> JobUsage:
    wait = [pod for pod in group if not (pod.node or pod.assumed)]
    why = next(_pending_reasons(wait, messages), "")
    models = sorted({model for pod in group if gpus_of(cache, pod) and (model := model_of(cache, pod))})
    return JobUsage(
        namespace,
        name,
        kind,
        cache.quotas.team(group[0]),
        len(group),
        len(group) - len(wait),
        float(sum(gpus_of(cache, pod) for pod in group)),
        ", ".join(models),
        min(pod.created for pod in group),
        why,
    )


def _pending_reasons(waiting: Iterable[PodInfo], messages: dict[str, str]) -> Iterator[str]:
    for pod in waiting:
        text = pod.message or messages.get(pod.key, "")
        if pod.gated:
            yield "held back by scheduling gates"
        elif text:
            yield text
