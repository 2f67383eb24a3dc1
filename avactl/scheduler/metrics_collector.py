"""Gauges of the cluster cache, updated when the metrics are scraped."""

from __future__ import annotations

import asyncio

from prometheus_client import Gauge

from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.hardware.placement.fragmentation import Measure
from avactl.scheduler import metrics
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.inspection import partial_gpus, usage

CHUNK_PODS = 500
"""Number of pods counted at a time, so that decisions do not wait for metrics."""


async def collect(cache: ClusterCache, measure: Measure) -> None:
    """Update the gauges of GPU models, pools and teams, and remove the series of those that no longer exist.

    `measure` is the fragmentation measure of the expected workload."""
    if cache.tables.stale:
        return
    state = cache.tables.state
    _clear_gauges(metrics.FAILING_JOBS, metrics.FAULTS, metrics.UNUSABLE_GPUS)
    for node, pods in cache.tables.failed.suspects().items():
        metrics.FAILING_JOBS.labels(node).set(len(pods))
    for name, info in cache.tables.nodes.items():
        if info.faults:
            metrics.FAULTS.labels(name).set(len(info.faults))
        slot = state.slots.get(name)
        if slot is None:
            continue
        faulty = int(state.faulty[slot]).bit_count()
        unusable = faulty + int(state.gpu_count[slot]) if info.unusable_gpus is not None else faulty
        if unusable:
            metrics.UNUSABLE_GPUS.labels(name).set(unusable)
    partial_gpus_by_model: dict[str, float] = {}
    for node, held in partial_gpus.by_node(cache).items():
        model = cache.tables.model_of(node)
        partial_gpus_by_model[model] = (
            partial_gpus_by_model.get(model, 0.0) + sum(part.milli for _, part in held) / MILLI_PER_GPU
        )
    _clear_gauges(metrics.GPUS, metrics.GPUS_ALLOCATED)
    for number, model in enumerate(state.models):
        total = int(state.gpu_count[state.model == number].sum())
        metrics.GPUS.labels(model).set(total)
        free = int(state.model_free[number]) / MILLI_PER_GPU - partial_gpus_by_model.get(model, 0.0)
        metrics.GPUS_ALLOCATED.labels(model).set(total - free)
    pools = usage.pools(cache, measure)
    _clear_gauges(metrics.POOL_GPUS, metrics.POOL_ALLOCATED, metrics.POOL_FRAGMENTED, metrics.POOL_WHOLE)
    for pool in pools:
        metrics.POOL_GPUS.labels(pool.name, pool.model).set(pool.gpus)
        metrics.POOL_ALLOCATED.labels(pool.name, pool.model).set(pool.used)
        metrics.POOL_WHOLE.labels(pool.name, pool.model).set(pool.whole)
        if pool.lost is not None:
            metrics.POOL_FRAGMENTED.labels(pool.name, pool.model).set(pool.lost)
    counts = usage.Counts(cache)
    for number, pod in enumerate(list(cache.tables.pods.values())):
        counts.add(pod)
        if number % CHUNK_PODS == CHUNK_PODS - 1:
            await asyncio.sleep(0)
    _clear_gauges(
        metrics.TEAM_GPUS,
        metrics.TEAM_BORROWED,
        metrics.TEAM_GUARANTEED,
        metrics.TEAM_RECLAIMABLE,
        metrics.TEAM_WAITING,
    )
    for team in counts.teams():
        metrics.TEAM_GPUS.labels(team.name, team.model).set(team.used)
        metrics.TEAM_WAITING.labels(team.name, team.model).set(team.waiting)
        if team.guaranteed is not None:
            metrics.TEAM_GUARANTEED.labels(team.name, team.model).set(team.guaranteed)
            metrics.TEAM_BORROWED.labels(team.name, team.model).set(team.borrowed)
            metrics.TEAM_RECLAIMABLE.labels(team.name, team.model).set(team.reclaimable)


def _clear_gauges(*gauges: Gauge) -> None:
    for gauge in gauges:
        gauge.clear()
