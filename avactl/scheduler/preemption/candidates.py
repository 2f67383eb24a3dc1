"""Preemption candidates: gangs and single pods as workloads for reclaim."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.hardware.placement.quota import Ledger, TeamWorkload
from avactl.hardware.placement.reclaim import Reclaim
from avactl.kube.timestamps import unix_time
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.scheduling_queue import SchedulingQueue

Members = list[tuple[PodInfo, TeamWorkload]]


class BudgetChecker(Protocol):
    """Finds the pods that a disruption budget protects."""

    def protected_pods(self, pods: Sequence[PodInfo]) -> set[PodInfo]:
        """Return the pods whose eviction, in this order, violates a budget."""


class Candidates(NamedTuple):
    """Preemption candidates: users of one GPU model, and all workloads of one team."""

    ledger: Ledger
    """Workloads by gang or pod UID, and GPU model."""
    pods: Mapping[Hashable, Sequence[PodInfo]]
    """Pods of each workload in eviction order."""

    def victims(self, takes: Iterable[Reclaim]) -> list[PodInfo]:
        """Return the pods to evict. A gang is evicted with all of its pods, with or without GPUs."""
        victims: dict[PodInfo, None] = {}
        for take in takes:
            victims.update(dict.fromkeys(self.pods[take.key] if take.whole else self.pods[take.key][: take.members]))
        return list(victims)


def collect_candidates(
    cache: ClusterCache, queue: SchedulingQueue, budgets: BudgetChecker, team: str, model: str, without: set[PodInfo]
) -> Candidates:
    """Return the workloads of a team, and those of other teams with GPUs of a model, `without` terminating pods."""
    shared = cache.quotas.shared
    groups: dict[tuple[str, str], Members] = {}
    for work in cache.quotas.current_ledger().works.values():
        if work.team == team or (shared and model and work.model == model):
            pod = work.key
            assert isinstance(pod, PodInfo)
            if pod not in without:
                groups.setdefault((pod.gang or pod.uid, work.model), []).append((pod, work))
    state = cache.tables.state
    total = {
        model_name: MILLI_PER_GPU * int(state.gpu_count[state.model == number].sum())
        for number, model_name in enumerate(state.models)
    }
    ledger = Ledger(list(cache.quotas.current_ledger().quotas.values()), total)
    protected = _protected_services(groups.values(), budgets)
    pods: dict[Hashable, Sequence[PodInfo]] = {}
    works: list[TeamWorkload] = []
    for key, members in groups.items():
        everyone = [pod for pod, _ in members]
        if len(members) == 1 and not everyone[0].gang:
            pods[key] = everyone
            works.append(_single_pod_work(key, *members[0], protected))
            continue
        unit = queue.units.get(key[0])
        if unit is not None and unit.gang:
            everyone = [pod for pod in unit.pods.values() if _holds_resources(pod) and pod not in without]
        everyone.sort(key=lambda pod: (pod.index, pod.name), reverse=True)
        spare = unit.surplus if unit is not None and unit.gang else 0
        for part, mine in _split_first_pods(key, members):
            pods[part] = everyone
            works.append(_gang_work(part, mine, everyone, spare, protected))
    ledger.start_all(works)
    return Candidates(ledger, pods)


def _split_first_pods(key: tuple[str, str], members: Members) -> list[tuple[Hashable, Members]]:
    """Split off the pods that are first of a role with other requests, such as a job master: the others are alike."""
    alike: dict[Hashable, Members] = {}
    for pod, work in members:
        alike.setdefault((work.gpus, work.amounts), []).append((pod, work))
    most = max(alike.values(), key=len)
    rest = [member for mine in alike.values() if mine is not most for member in mine]
    if rest and all(pod.first for pod, _ in rest):
        return [(key, most), ((*key, "first"), rest)]
    return [(key, members)]


def _holds_resources(pod: PodInfo) -> bool:
    return bool(pod.node or pod.assumed) and not pod.ended


def _single_pod_work(key: Hashable, pod: PodInfo, work: TeamWorkload, protected: set[PodInfo]) -> TeamWorkload:
    """Return a pod without a gang as a workload. Fast, because there are tens of thousands of them."""
    preemptible = pod.managed and pod.preemptible and not pod.deleting
    return TeamWorkload(
        key,
        work.team,
        1,
        work.gpus,
        work.model,
        1,
        _start_time(pod.started),
        pod.priority,
        pod.serving,
        preemptible,
        work.amounts,
        pod in protected,
        pod.reclaim_only,
        bool(pod.preempted_for),
        work.guaranteed_only,
    )


def _gang_work(
    key: Hashable, members: Members, everyone: list[PodInfo], spare: int, protected: set[PodInfo]
) -> TeamWorkload:
    pods, works = [pod for pod, _ in members], [work for _, work in members]
    first = works[0]
    # Surplus members have the highest indexes: the first of a role, such as a job master, is none.
    others = set(everyone).difference(pods)
    alike = all(pod.first for pod in others) and all(
        work.gpus == first.gpus and work.amounts == first.amounts for work in works
    )
    started = min(_start_time(pod.started) for pod in pods)
    serving = any(pod.serving for pod in pods)
    # A pod that is being deleted already cannot be evicted again.
    preemptible = all(pod.managed and pod.preemptible and not pod.deleting for pod in everyone)
    spare = 0 if any(pod.deleting for pod in everyone) else min(spare, sum(not pod.first for pod in pods))
    priority = max(pod.priority for pod in pods)
    is_protected, preempted = any(pod in protected for pod in pods), any(pod.preempted_for for pod in pods)
    if alike:
        count, gpus, amounts = len(works), first.gpus, first.amounts
        least = count - max(0, min(spare, count))
    else:
        # Members that differ stop together: the gang size does not say which of them it can do without.
        count, gpus, least = 1, sum(work.gpus for work in works), None
        amounts = tuple(sum(column) for column in zip(*(work.amounts for work in works), strict=True))
    return TeamWorkload(
        key,
        first.team,
        count,
        gpus,
        first.model,
        least,
        started,
        priority,
        serving,
        preemptible,
        amounts,
        is_protected,
        any(pod.reclaim_only for pod in everyone),
        preempted,
        any(work.guaranteed_only for work in works),
    )


def _protected_services(groups: Iterable[Members], budgets: BudgetChecker) -> set[PodInfo]:
    """Return the services that budgets protect. Budgets of gangs only limit drains, as a gang stops as a whole."""
    serving = [pod for members in groups for pod, work in members if work.serving and not pod.gang]
    serving.sort(key=lambda pod: (pod.priority, -_start_time(pod.started), pod.key))
    return budgets.protected_pods(serving) if serving else set()


@lru_cache(maxsize=65536)
def _start_time(stamp: str) -> float:
    """Return the start as Unix time; infinity for pods without a node, which are the youngest."""
    return unix_time(stamp) if stamp else float("inf")
