"""Preemption candidates: gangs and single pods as workloads for reclaim."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.hardware.placement.quota import Ledger, TeamWorkload
from avactl.hardware.placement.reclaim import Reclaim
from avactl.kube.timestamps import unix_time
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.scheduling_queue import SchedulingQueue

Members = list[tuple[PodInfo, TeamWorkload]]
_GroupKey = tuple[str, str]
"""Gang or pod UID, and GPU model."""


class BudgetChecker(Protocol):
    """Finds the pods that a disruption budget protects."""

    @property
    def version(self) -> int:
        """Return a number that differs after a change of the budgets."""

    def protected_pods(self, pods: Sequence[PodInfo]) -> set[PodInfo]:
        """Return the pods whose eviction, in this order, violates a budget."""


class Candidates:
    """Preemption candidates: users of one GPU model, and all workloads of one team.

    `update` looks only at the pods that have changed since the last time.
    """

    def __init__(
        self, cache: ClusterCache, queue: SchedulingQueue, budgets: BudgetChecker, team: str, model: str
    ) -> None:
        self._cache, self._queue, self._budgets, self._team, self._model = cache, queue, budgets, team, model
        self.ledger = Ledger([], {})
        """Workloads by gang or pod UID, and GPU model."""
        self.pods: dict[Hashable, Sequence[PodInfo]] = {}
        """Pods of each workload in eviction order."""
        self._groups: dict[_GroupKey, dict[PodInfo, TeamWorkload]] = {}
        self._group_of: dict[PodInfo, _GroupKey] = {}
        self._gang_groups: dict[str, set[_GroupKey]] = {}
        self._parts: dict[_GroupKey, list[Hashable]] = {}
        """Keys of the workloads of each group."""
        self._position, self._ending, self._budgets_version = -1, set[PodInfo](), -1
        self._serving = False
        """True if there are services, which budgets may protect."""

    @property
    def pod_count(self) -> int:
        """Return the number of pods of all workloads."""
        return len(self._group_of)

    def update(self, ending: set[PodInfo]) -> None:
        """Take account of what has changed; `ending` pods are no candidates."""
        quotas = self._cache.quotas
        quotas.current_ledger()
        changed = quotas.changed_pods.since(self._position)
        pods = None if changed is None else {*changed, *(ending ^ self._ending)}
        self._position, self._ending = quotas.changed_pods.position, ending
        if pods is None or self._services_changed(pods):
            self._collect_all()
        else:
            groups: dict[_GroupKey, None] = {}
            for pod in pods:
                groups.update(dict.fromkeys(self._regroup(pod)))
            self._count_groups(groups, set())
        state = self._cache.tables.state
        self.ledger.total = {
            model: MILLI_PER_GPU * int(state.gpu_count[state.model == number].sum())
            for number, model in enumerate(state.models)
        }

    def _services_changed(self, changed: set[PodInfo]) -> bool:
        """Return True if budgets may protect other services than before: the order of all services matters."""
        if self._serving:
            return bool(changed) or self._budgets_version != self._budgets.version
        return any(pod.serving and not pod.gang for pod in changed)

    def victims(self, takes: Iterable[Reclaim]) -> list[PodInfo]:
        """Return the pods to evict. A gang is evicted with all of its pods, with or without GPUs."""
        victims: dict[PodInfo, None] = {}
        for take in takes:
            victims.update(dict.fromkeys(self.pods[take.key] if take.whole else self.pods[take.key][: take.members]))
        return list(victims)

    def _collect_all(self) -> None:
        current = self._cache.quotas.current_ledger()
        self.ledger, self.pods = Ledger(list(current.quotas.values()), {}), {}
        self._groups, self._group_of, self._gang_groups, self._parts = {}, {}, {}, {}
        for pod in current.works:
            assert isinstance(pod, PodInfo)
            self._regroup(pod)
        serving = [pod for members in self._groups.values() for pod, work in members.items() if work.serving]
        serving = [pod for pod in serving if not pod.gang]
        self._serving, self._budgets_version = bool(serving), self._budgets.version
        self._count_groups(self._groups, _protected_services(serving, self._budgets))

    def _regroup(self, pod: PodInfo) -> set[_GroupKey]:
        """Put a pod into its group, or take it out; return the groups that this, or a change of the pod, concerns."""
        work = self._cache.quotas.current_ledger().works.get(pod)
        key = (pod.gang or pod.uid, work.model) if work is not None and self._is_candidate(pod, work) else None
        before = self._group_of.get(pod)
        if before is not None and before != key:
            del self._group_of[pod], self._groups[before][pod]
        if key is not None and work is not None:
            self._groups.setdefault(key, {})[pod] = work
            self._group_of[pod] = key
            if pod.gang:
                self._gang_groups.setdefault(pod.gang, set()).add(key)
        groups = {group for group in (before, key) if group is not None}
        return groups | self._gang_groups.get(pod.gang, set()) if pod.gang else groups

    def _is_candidate(self, pod: PodInfo, work: TeamWorkload) -> bool:
        if pod in self._ending:
            return False
        return work.team == self._team or bool(self._cache.quotas.shared and self._model and work.model == self._model)

    def _count_groups(self, groups: Iterable[_GroupKey], protected: set[PodInfo]) -> None:
        """Replace the workloads of some groups by those of their current pods."""
        works: list[TeamWorkload] = []
        for key in list(groups):
            for part in self._parts.pop(key, ()):
                self.ledger.end(part)
                del self.pods[part]
            members = list(self._groups[key].items())
            if not members:
                self._remove_group(key)
                continue
            made = self._works_of(key, members, protected)
            self._parts[key] = [work.key for work in made]
            works += made
        if len(works) > len(self.ledger.works):
            self.ledger.start_all(works)
        else:
            for work in works:
                self.ledger.start(work)

    def _remove_group(self, key: _GroupKey) -> None:
        del self._groups[key]
        gang = self._gang_groups.get(key[0], set())
        gang.discard(key)
        if not gang:
            self._gang_groups.pop(key[0], None)

    def _works_of(self, key: _GroupKey, members: Members, protected: set[PodInfo]) -> list[TeamWorkload]:
        """Return the workloads of a group, and set the pods of each."""
        everyone = [pod for pod, _ in members]
        if len(members) == 1 and not everyone[0].gang:
            self.pods[key] = everyone
            return [_single_pod_work(key, *members[0], protected)]
        unit = self._queue.units.get(key[0])
        if unit is not None and unit.gang:
            everyone = [pod for pod in unit.pods.values() if _holds_resources(pod) and pod not in self._ending]
        everyone.sort(key=lambda pod: (pod.index, pod.name), reverse=True)
        if unit is not None and (first := unit.expendable):
            everyone = [*first, *(pod for pod in everyone if pod not in first)]
        spare = unit.surplus if unit is not None and unit.gang else 0
        works = []
        for part, mine in _split_first_pods(key, members):
            self.pods[part] = everyone
            works.append(_gang_work(part, mine, everyone, spare, protected))
        return works


def _split_first_pods(key: _GroupKey, members: Members) -> list[tuple[Hashable, Members]]:
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
        work.member,
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
    # Those without GPUs do not protect the others: a team would keep what it has borrowed by one of them.
    holders = [pod for pod, work in members if work.gpus]
    preemptible = all(pod.managed and not pod.deleting for pod in everyone)
    preemptible = preemptible and all(pod.preemptible for pod in holders or everyone)
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
        first.member,
    )


def _protected_services(serving: list[PodInfo], budgets: BudgetChecker) -> set[PodInfo]:
    """Return the services that budgets protect. Budgets of gangs only limit drains, as a gang stops as a whole."""
    serving.sort(key=lambda pod: (pod.priority, -_start_time(pod.started), pod.key))
    return budgets.protected_pods(serving) if serving else set()


@lru_cache(maxsize=65536)
def _start_time(stamp: str) -> float:
    """Return the start as Unix time; infinity for pods without a node, which are the youngest."""
    return unix_time(stamp) if stamp else float("inf")
