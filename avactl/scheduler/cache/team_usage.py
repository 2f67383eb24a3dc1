"""Usage and quotas of teams, and admission of pods by quota. GPUs are counted in milli, as pods can share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from avactl.contracts import names
from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.quota import Ledger, QuotaLimit, QuotaNode, QuotaRefusal, QuotaShape, TeamWorkload
from avactl.hardware.placement.request import Request
from avactl.scheduler.cache.change_journal import ChangeJournal
from avactl.scheduler.cache.tables import ChangeListener, ClusterTables
from avactl.scheduler.objects.config import TeamQuota
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.gang_request import QuotaOwner


class StartRequest(NamedTuple):
    """Pods that start together and have equal requests."""

    request: Request
    pods: Sequence[PodInfo]


class QuotaExceeded(NamedTuple):
    """An exceeded quota that blocks pods."""

    refusals: Sequence[QuotaRefusal]
    preemptible: bool
    """True if all of the pods are preemptible."""

    def __str__(self) -> str:
        """Render `quota of team vision: requests 8 V100, uses 24 of 24 (16 guaranteed + 8 borrowed)`."""
        parts = "; ".join(map(self._describe, self.refusals))
        never = any(each.asked > each.limit for each in self.refusals)
        suffix = "; it can never start with this quota" if never else ""
        return f"quota of team {self.refusals[0].quota}: {parts}{suffix}"

    def rank(self) -> tuple[bool, int, int]:
        """Return how far the pods are from a start: less is closer."""
        never = any(each.asked > each.limit for each in self.refusals)
        lacking = max(each.used + each.asked - each.limit for each in self.refusals)
        return never, lacking, -max(each.limit for each in self.refusals)

    def _describe(self, refusal: QuotaRefusal) -> str:
        if isinstance(refusal.resource, int):
            name, unit, suffix = (("CPUs", 1000, ""), ("memory", 1 << 30, " GiB"))[refusal.resource]
            have = f"uses {refusal.used / unit:g} of {refusal.limit / unit:g}{suffix}"
            return f"requests {refusal.asked / unit:g}{suffix} {name}, {have}"
        guaranteed, most = refusal.guaranteed / MILLI_PER_GPU, refusal.limit / MILLI_PER_GPU
        if refusal.member:
            have = f"{quote(refusal.member)} uses {refusal.used / MILLI_PER_GPU:g} of {most:g} of each member"
            return f"requests {refusal.asked / MILLI_PER_GPU:g} {refusal.resource}, {have}"
        borrowed = f" ({guaranteed:g} guaranteed + {most - guaranteed:g} borrowed)" if most > guaranteed else ""
        if not self.preemptible and not borrowed:
            borrowed = " (non-preemptible pods use guaranteed GPUs only)"
        have = f"uses {refusal.used / MILLI_PER_GPU:g} of {most:g}{borrowed}"
        model = refusal.resource or f"GPUs without a model (nodes without label {names.GPU_LABEL})"
        return f"requests {refusal.asked / MILLI_PER_GPU:g} {model}, {have}"


class TeamUsage(ChangeListener):
    """Ledger of the teams, updated with the pods that hold resources."""

    def __init__(self, tables: ClusterTables, held_gpus: Callable[[PodInfo], int]) -> None:
        """`held_gpus` returns the GPU milli of a pod that has a node."""
        self._tables, self._held_gpus = tables, held_gpus
        tables.subscribe(self)
        self._quotas: dict[str, TeamQuota] = {}
        self._ledger = Ledger([], {})
        """One workload for each pod."""
        self._ranks: dict[str, Counter[tuple[bool, int]]] = {}
        """Ranks of each team's preemptible pods."""
        self._members: Counter[str] = Counter()
        """Number of pods that hold resources, by gang."""
        self._surplus: Counter[str] = Counter()
        """Number of gang members beyond the gangs' sizes, by team."""
        self.nominated_works: list[TeamWorkload] = []
        """Units with reserved places, which count against the quotas already."""
        self.changed_pods = ChangeJournal[PodInfo]()
        """Pods that started, ended or changed, unless nothing here depends on them."""
        self._deleting: dict[PodInfo, None] = {}
        self._stale = True

    @property
    def quotas(self) -> Mapping[str, TeamQuota]:
        """Quotas by team; read-only."""
        return self._quotas

    # -- keeping count ----------------------------------------------------------------------------------------------

    def put_quota(self, team: str, quota: TeamQuota | None) -> None:
        """Add, change or (None) remove a team's quota."""
        if quota is None:
            self._quotas.pop(team, None)
        else:
            self._quotas[team] = quota
        self._tables.quota_teams = {name: known.team for known in self._quotas.values() for name in known.namespaces}
        self._stale = True
        self._tables.change_epoch += 1

    def state_cleared(self) -> None:
        """Request a rebuild of the ledger."""
        self._stale = True

    def pod_added(self, pod: PodInfo, node: str) -> None:
        """Add a pod to the ledger."""
        if self._stale or pod in self._ledger.works:
            return
        work = self._work_of(pod, node)
        if work is None:
            return
        before = self._ledger.borrowed(work.team, work.model) if work.gpus else 1
        self._ledger.start(work)
        self._count_pod(pod, work.team, 1)
        self.pod_updated(pod)
        if self._quotas and not before and self._ledger.borrowed(work.team, work.model):
            self._tables.change_epoch += 1  # waiting pods may now reclaim what the team borrows

    def pod_removed(self, pod: PodInfo, node: str) -> None:
        """Remove a pod from the ledger."""
        if not self._stale and pod in self._ledger.works:
            self._count_pod(pod, self._ledger.end(pod).team, -1)
            self._deleting.pop(pod, None)
            self.changed_pods.record(pod)

    def pod_updated(self, pod: PodInfo) -> None:
        """Note a changed pod that holds resources, or belongs to a gang that may."""
        if self._stale:
            return
        if pod in self._ledger.works:
            if pod.deleting:
                self._deleting[pod] = None
        elif not pod.gang:
            return
        self.changed_pods.record(pod)

    def pods_left(self, pods: Sequence[PodInfo]) -> None:
        """Count pods no longer for their gang."""
        for pod in pods if not self._stale else ():
            if pod in self._ledger.works:
                self._count_pod(pod, self._ledger.works[pod].team, -1)

    def pods_joined(self, pods: Sequence[PodInfo]) -> None:
        """Count pods for their gang."""
        for pod in pods if not self._stale else ():
            if pod in self._ledger.works:
                self._count_pod(pod, self._ledger.works[pod].team, 1)
                self.changed_pods.record(pod)

    def recount(self, pod: PodInfo, node: str) -> None:
        """Count a pod on a node again, with its current resources."""
        self.pod_removed(pod, node)
        self.pod_added(pod, node)

    def namespace_changed(self, name: str, before: Mapping[str, str]) -> None:
        """Count a namespace's pods for the team in its current labels."""
        if before.get(names.TEAM_LABEL) == self._tables.namespaces.get(name, {}).get(names.TEAM_LABEL):
            return
        for node, pods in self._tables.pods_by_node.items():
            for pod in pods.values():
                if pod.namespace == name:
                    self.recount(pod, node)

    def claim_changed(self, claim: str) -> None:
        """Count a claim's devices for the first of its users."""
        for pod in self._tables.claim_users.get(claim, {}).values():
            self.recount(pod, pod.assumed or pod.node)
            return

    def _count_pod(self, pod: PodInfo, team: str, change: int) -> None:
        if pod.managed and pod.preemptible:
            ranks = self._ranks.setdefault(team, Counter())
            _add_count(ranks, pod.rank, change)
            if not ranks:
                del self._ranks[team]
        if pod.gang:
            # A removed pod is still among the members here, an added one is not yet.
            beyond = self._members[pod.gang] + max(change, 0) > pod.gang_size
            _add_count(self._members, pod.gang, change)
            _add_count(self._surplus, team, change * beyond)

    def current_ledger(self) -> Ledger:
        """Return the current ledger, with one workload per pod; read-only."""
        if self._stale:
            self._ledger = Ledger([_in_milli(known.quota) for known in self._quotas.values()], {})
            self._ranks, self._members, self._surplus = {}, Counter(), Counter()
            self._deleting.clear()
            self.changed_pods.forget_all()
            self._stale = False
            for node, pods in self._tables.pods_by_node.items():
                for pod in pods.values():
                    self.pod_added(pod, node)
        return self._ledger

    def deleting_pods(self) -> Collection[PodInfo]:
        """Return the pods that hold resources and are being deleted; read-only."""
        self.current_ledger()
        return self._deleting

    def team(self, pod: PodInfo) -> str:
        """Return the team of a pod: that of its namespace by quota or label, otherwise the namespace itself."""
        return self._tables.team_of(pod.namespace)

    def member(self, pod: PodInfo) -> str:
        """Return the member of its team whose limit a pod counts for; empty if it, or the team, has none."""
        known = self._quotas.get(self.team(pod)) if pod.member else None
        return pod.member if known is not None and known.quota.per_member else ""

    def owner(self, pod: PodInfo) -> QuotaOwner:
        """Return the properties of a pod that quotas and preemption use."""
        return QuotaOwner(self.team(pod), pod.rank, pod.preemptible, pod.never_preempts, self.member(pod))

    def _work_of(self, pod: PodInfo, node: str) -> TeamWorkload | None:
        info = self._tables.nodes.get(node)
        if info is None:
            return None
        gpus = self._held_gpus(pod)
        model = self._tables.model_of(node) if gpus else ""
        amounts = (pod.shape.amounts.get("cpu", 0), pod.shape.amounts.get("memory", 0))
        return TeamWorkload(
            pod,
            self.team(pod),
            1,
            gpus,
            model,
            priority=pod.priority,
            serving=pod.serving,
            preemptible=pod.preemptible,
            amounts=amounts,
            guaranteed_only=not pod.preemptible,
            member=self.member(pod),
        )

    # -- asking -----------------------------------------------------------------------------------------------------

    def admit(self, wishes: Sequence[StartRequest]) -> tuple[QuotaExceeded | None, Mask | None]:
        """Return the quota that blocks pods, or the nodes whose GPU models it permits; None for all.

        Pods without a GPU model may start on all models that their team's quota permits.
        """
        if not self._quotas:
            return None, None
        ledger = self.current_ledger()
        models = [model for model in self._tables.state.models if model]
        permitted: list[str] = []
        refused: list[QuotaExceeded] = []
        named = {model for wish in wishes for model in wish.request.models}
        gpus = any(wish.request.gpus for wish in wishes)
        unnamed = gpus and not named and self._has_unknown_models()
        if unnamed:
            models.append("")
        for model in (sorted(named) or models) if gpus else [""]:
            exceeded = self._find_exceeded(ledger, wishes, model)
            if exceeded is None:
                permitted.append(model)
            else:
                refused.append(exceeded)
        if not permitted:
            # Of several models, that which lacks least: not one that the team has no quota of.
            return min(refused, key=QuotaExceeded.rank, default=None), None
        if named or not gpus or len(permitted) == len(models):
            return None, None
        state = self._tables.state
        # Nodes without a model and without GPUs are for pods that need none.
        allowed = np.array([model in permitted or not (model or unnamed) for model in state.models])
        mask: Mask = allowed[state.model]
        return None, mask

    def describe_excluded(self, models: Mask | None) -> str:
        """Describe how many GPU machines `admit` excludes for a pod."""
        if models is None:
            return ""
        state = self._tables.state
        excluded = ~models & (state.gpu_count > 0)
        unknown_model = excluded & (state.model == (state.models.index("") if "" in state.models else -1))
        unnamed, over_quota = int(unknown_model.sum()), int((excluded & ~unknown_model).sum())
        reasons = [f"{over_quota} with a GPU model beyond its quota"] if over_quota else []
        reasons += [f"{unnamed} without label {names.GPU_LABEL}, so not covered by quotas"] if unnamed else []
        return ", ".join(reasons)

    def _has_unknown_models(self) -> bool:
        """Return True if there are GPUs without a known model: no quota covers them."""
        state = self._tables.state
        if "" not in state.models:
            return False
        return bool(state.gpu_count[: state.size][state.model[: state.size] == state.models.index("")].any())

    def _find_exceeded(self, ledger: Ledger, wishes: Sequence[StartRequest], model: str) -> QuotaExceeded | None:
        """Try GPUs of one model; roles that ask for another model count for that one."""
        started: list[Hashable] = []
        exceeded: QuotaExceeded | None = None
        for nominated in self.nominated_works:
            ledger.start(nominated)
            started.append(nominated.key)
        # Pods with the gang label of others count for their own members.
        of_members = [
            (wish.request, wish.pods, member, count)
            for wish in wishes
            for member, count in Counter(map(self.member, wish.pods)).items()
        ]
        for number, (request, pods, member, count) in enumerate(of_members):
            wanted = model if not request.models or model in request.models else min(request.models)
            preemptible = all(pod.preemptible for pod in pods)
            work = TeamWorkload(
                ("wish", number),
                self.team(pods[0]),
                count,
                request.total_milli,
                wanted if request.gpus else "",
                amounts=request.amounts[:2],
                guaranteed_only=not preemptible,
                member=member,
            )
            refusals = ledger.may_start(work)
            if refusals:
                exceeded = QuotaExceeded(refusals, preemptible)
                break
            ledger.start(work)
            started.append(work.key)
        for key in started:
            ledger.end(key)
        return exceeded

    def may_yield_to(self, pod: PodInfo, models: Iterable[str]) -> bool:
        """Return True if any workload could be preempted for a pod. Fast, because it runs for thousands of pods."""
        ledger, team = self.current_ledger(), self.team(pod)
        if any(rank < pod.rank for rank in self._ranks.get(team, ())):
            return True
        wanted = set(models) if self.shared else ()
        if any(other != team and model in wanted and ledger.borrowed(other, model) for other, model in ledger.users()):
            return True
        return self._surplus[team] > 0

    def model_mask(self, model: str) -> Mask:
        """Return the nodes with a GPU model."""
        state = self._tables.state
        known = np.array([each == model for each in state.models], np.bool_)
        mask: Mask = known[state.model] if len(known) else np.zeros(len(state.model), np.bool_)
        return mask

    @property
    def shared(self) -> bool:
        """True if there are quotas, so that teams lend to each other."""
        return bool(self._quotas)

    def usage(self) -> Iterable[tuple[str, str, float, float]]:
        """Yield team, model, GPUs in use, and how many of them are borrowed."""
        ledger = self.current_ledger()
        for team, known in self._quotas.items():
            for model in {*known.quota.limits, *(shape.model for shape in known.quota.shapes)}:
                yield (
                    team,
                    model,
                    ledger.used(team, model) / MILLI_PER_GPU,
                    ledger.borrowed(team, model) / MILLI_PER_GPU,
                )


_Key = TypeVar("_Key", bound=Hashable)


def _add_count(counts: Counter[_Key], key: _Key, change: int) -> None:
    """Change a count, and remove it if it is zero."""
    counts[key] += change
    if not counts[key]:
        del counts[key]


def _in_milli(quota: QuotaNode) -> QuotaNode:
    return replace(
        quota,
        limits={
            model: QuotaLimit(
                limit.guaranteed * MILLI_PER_GPU,
                None if limit.borrow is None else limit.borrow * MILLI_PER_GPU,
                limit.weight,
            )
            for model, limit in quota.limits.items()
        },
        per_member={model: most * MILLI_PER_GPU for model, most in quota.per_member.items()},
        shapes=tuple(QuotaShape(shape.machines, shape.gpus * MILLI_PER_GPU, shape.model) for shape in quota.shapes),
    )
