"""Results of a simulation by pod: its machine, or the scheduler's reason for waiting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from avactl.change.plan.cluster_state import OTHERS
from avactl.change.plan.model import PlannedPlace, PlanVerdict, Wait
from avactl.change.plan.simulator import SimulatedCluster
from avactl.contracts import names
from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.hardware.placement.diagnosis import why_gang
from avactl.hardware.placement.gang import Gang, GangRole
from avactl.hardware.placement.request import Request
from avactl.scheduler.cache.team_usage import StartRequest
from avactl.scheduler.objects.node_rules import NotYetError, ReportedWaitError, RuleError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.gang_request import gang_of, roles_of
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup

_MAX_DOMAINS = 4
"""Maximum number of domains that are named."""


def pod_places(world: SimulatedCluster, pods: Iterable[PodInfo]) -> tuple[PlannedPlace, ...]:
    """Return the machines of pods, by pool."""
    found: dict[str, set[str]] = {}
    for pod in pods:
        info = world.cache.tables.nodes.get(pod.node)
        if info is not None and info.name != OTHERS:
            pool = world.cache.tables.pool_of(info)
            found.setdefault(pool.name if pool else "", set()).add(pod.node)
    return tuple(
        PlannedPlace(pool, len(nodes), _narrowest_domains(world, nodes)) for pool, nodes in sorted(found.items())
    )


def count_on_spot(world: SimulatedCluster, pods: Iterable[PodInfo]) -> int:
    """Return how many pods are on spot machines."""
    nodes = world.cache.tables.nodes
    return sum(1 for pod in pods if pod.node in nodes and nodes[pod.node].labels.get(names.CAPACITY) == names.SPOT)


def _narrowest_domains(world: SimulatedCluster, nodes: set[str]) -> tuple[str, ...]:
    """Return the narrowest domains of machines; none if there are too many to list."""
    for level in reversed(world.cache.tables.levels):
        values = {world.cache.tables.nodes[name].labels.get(level, "") for name in nodes}
        if "" not in values and len(values) <= _MAX_DOMAINS:
            return tuple(f"{_short_level(level)} {value}" for value in sorted(values))
    return ()


def _short_level(level: str) -> str:
    return level.rpartition("/")[2]


def group_waits(world: SimulatedCluster, pods: Sequence[PodInfo]) -> tuple[Wait, ...]:
    """Group pending pods by the reason they wait for."""
    units: dict[str, list[PodInfo]] = {}
    for pod in pods:
        if not pod.node and not pod.ended:
            units.setdefault(pod.gang or pod.uid, []).append(pod)
    found: dict[tuple[PlanVerdict, str, str], int] = {}
    for key, mine in units.items():
        words = world.said.get(mine[0].uid, "")
        gang = world.queue.units.get(key)
        together = mine
        if gang is not None and gang.gang:
            need = gang.missing
            if need <= 0:
                continue  # surplus members of a running elastic gang
            together = sorted(gang.waiting, key=lambda pod: (pod.index, pod.name))[:need]
        verdict, room = _waiting_cause(world, gang, together)
        found[verdict, words, room] = found.get((verdict, words, room), 0) + len(mine)
    return tuple(Wait(verdict, count, words, room) for (verdict, words, room), count in found.items())


def _waiting_cause(
    world: SimulatedCluster, unit: QueuedPodGroup | None, pods: Sequence[PodInfo]
) -> tuple[PlanVerdict, str]:
    """Return why the pods of a group, which must start together, do not; and the domains with most capacity."""
    cache = world.cache
    requests: dict[str, Request] = {}
    try:
        for pod in pods:
            demand = cache.dra.demand(pod) if cache.claims.concern(pod) else None
            if pod.shape.refused:
                return PlanVerdict.NEVER, ""
            requests[pod.uid] = cache.requests.request(pod.shape, demand)
            world.constraints.check_ready([pod])
            world.constraints.filter_nodes(pod)
    except ReportedWaitError as wait:
        return PlanVerdict.LATER if wait.under_way else PlanVerdict.WAITS, ""
    except NotYetError:
        return PlanVerdict.WAITS, ""
    except RuleError:
        return PlanVerdict.NEVER, ""
    roles = roles_of(pods, requests)
    wishes = [StartRequest(request, members) for request, members in roles.items()]
    over, models = cache.quotas.admit(wishes)
    if over and not _fits_quota_alone(world, wishes):
        return PlanVerdict.NEVER, ""
    if unit is not None and unit.gang:
        gang = gang_of(unit, pods, requests)[0]
    else:
        gang = Gang(tuple(GangRole("pod", request, len(members)) for request, members in roles.items()))
    reason = why_gang(cache.tables.state, gang, models)
    small = len(gang.roles) > 1 if reason is None else not reason.ever
    # Ignore taints and cordons: they are not permanent.
    if small and cache.requests.never_fits(gang, models, untried=reason is None):
        return PlanVerdict.NEVER, ""
    if over:
        return PlanVerdict.QUOTA, ""
    return PlanVerdict.ROOM, _largest_domains(world, gang, len(pods))


def _fits_quota_alone(world: SimulatedCluster, wishes: Sequence[StartRequest]) -> bool:
    """Return whether the team's quota would admit the pods if nothing else of the team ran."""
    leaf = world.leaves.get(world.cache.quotas.team(wishes[0].pods[0]))
    if leaf is None:
        return True
    for most, index in zip(leaf.quota.amounts, range(2), strict=False):
        if most is not None and sum(len(wish.pods) * wish.request.amounts[index] for wish in wishes) > most:
            return False
    named = {model for wish in wishes for model in wish.request.models}
    for model in sorted(named) or [model for model in world.cache.tables.state.models if model]:
        limit = leaf.quota.limit(model)
        # Non-preemptible work cannot borrow.
        borrow = limit.borrow if all(pod.preemptible for wish in wishes for pod in wish.pods) else 0
        asked = sum(len(wish.pods) * wish.request.total_milli for wish in wishes)
        if borrow is None or asked <= MILLI_PER_GPU * (limit.guaranteed + borrow):
            return True
    return not any(wish.request.gpus for wish in wishes)


def _largest_domains(world: SimulatedCluster, gang: Gang, count: int) -> str:
    """Return the domains of the narrowest level with most capacity: `rack r1 has capacity for 3 of 4`."""
    state = world.cache.tables.state
    if count < 2 or gang.within is not None:
        return ""
    for level, known in reversed(list(zip(state.levels, state.domain_names, strict=True))):
        reason = why_gang(state, Gang(gang.roles, within=level)) if known else None
        if reason is None:
            continue
        for domain in reason.domains:
            if isinstance(domain.name, tuple) and domain.room:
                return f"{_short_level(level)} {domain.name[-1]} has capacity for {domain.room} of {reason.role.least}"
    return ""
