"""Effects of a change on other workloads: preempted, shrunk and started ones, and remaining capacity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from avactl.change.plan.model import Effect, PlannedOwner, PlannedPool, PlannedQuota
from avactl.change.plan.simulator import SimulatedCluster
from avactl.contracts import names
from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.program import registry
from avactl.scheduler.objects.pod_info import PodInfo


class Moment:
    """Running and waiting GPUs by owner."""

    def __init__(self, world: SimulatedCluster) -> None:
        self.running: dict[PlannedOwner, int] = {}
        self.waiting: dict[PlannedOwner, int] = {}
        for pod in world.cache.tables.pods.values():
            if pod.ended or pod.deleting or not (pod.node or pod.managed):
                continue
            found = self.running if pod.node else self.waiting
            owner = owner_of(pod)
            found[owner] = found.get(owner, 0) + 1
        self.pools = {(name, model): used for name, model, _, used in _pool_usage(world)}
        self.quotas = {(team, model): used for team, model, used, _ in world.cache.quotas.usage()}


def owner_of(pod: PodInfo) -> PlannedOwner:
    """Return the spec that a pod belongs to, by its labels; other pods are their own owner."""
    labels = pod.labels
    kind = registry.kind_with_label(labels.get("app.kubernetes.io/name", ""))
    instance = labels.get("app.kubernetes.io/instance", "")
    if kind is None or labels.get(names.MANAGED_BY) != names.MANAGER or not instance:
        return PlannedOwner("Pod", "", pod.key)
    return PlannedOwner(kind, labels.get(names.TEAM_LABEL, ""), instance)


def spec_effects(world: SimulatedCluster, then: Moment, own: set[PlannedOwner]) -> Iterator[Effect]:
    """Return the effects on unchanged specs."""
    now = Moment(world)
    victims: dict[PlannedOwner, tuple[str, str, PlannedOwner | None]] = {}
    stopped: Counter[PlannedOwner] = Counter()
    for eviction in world.evictions:
        by = next((owner_of(pod) for pod in eviction.places), None)
        for victim in eviction.victims:
            stopped[owner_of(victim.pod)] += 1
            victims.setdefault(owner_of(victim.pod), (victim.why, victim.note, by))
    for owner in sorted(then.running.keys() | then.waiting.keys()):
        if owner in own:
            continue
        was, left = then.running.get(owner, 0), now.running.get(owner, 0)
        if left < was:
            why, words, by = victims.get(owner, ("", "", None))
            if owner in victims:
                yield Effect(owner, "shrinks" if left else "preempted", was - left, was, why, words, by)
            else:
                yield Effect(owner, "stops", was - left, was)
        elif left > was:
            yield Effect(owner, "starts", left - was, was + then.waiting.get(owner, 0))
        elif owner in victims and was:
            why, words, by = victims[owner]
            yield Effect(owner, "restarts", stopped[owner], was, why, words, by)


def _pool_usage(world: SimulatedCluster) -> Iterator[tuple[str, str, int, float]]:
    """Pool, GPU model, GPUs and those in use."""
    state, cache = world.cache.tables.state, world.cache
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for name, slot in state.slots.items():
        count = int(state.gpu_count[slot])
        if not count:
            continue
        pool = cache.tables.pool_of(cache.tables.nodes[name])
        key = (pool.name if pool else "", state.models[state.model[slot]])
        total, used = found.get(key, (0, 0.0))
        found[key] = (total + count, used + count - int(state.gpu_total[slot]) / MILLI_PER_GPU)
    for (name, model), (total, used) in sorted(found.items()):
        yield name, model, total, used


def pool_changes(world: SimulatedCluster, then: Moment) -> Iterator[PlannedPool]:
    """Return the pools with GPUs in use before and after."""
    for name, model, total, used in _pool_usage(world):
        yield PlannedPool(name, model, total, then.pools.get((name, model), 0.0), used)


def quota_changes(world: SimulatedCluster, then: Moment) -> Iterator[PlannedQuota]:
    """Return the teams with a quota whose usage differs, before and after."""
    for team, model, used, _ in sorted(world.cache.quotas.usage()):
        was = then.quotas.get((team, model), 0.0)
        if was != used:
            limit = world.leaves[team].quota.limit(model)
            most = None if limit.borrow is None else limit.guaranteed + limit.borrow
            yield PlannedQuota(team, model, was, used, limit.guaranteed, most)
