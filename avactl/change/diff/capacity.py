"""GPU consequences of a change: capacity of the pools and usage of the team's quota.

Computed from the specs alone, without the live cluster: a check, not a reservation.
"""

from __future__ import annotations

from typing import NamedTuple

from avactl.change.diff.model import Consequence
from avactl.kinds.quota.limits import DeclaredLimit, gpu_limits, quota_of
from avactl.program.capacity.capacity import gpu_demand, gpu_model, running_roles
from avactl.program.program import Item, Program, pool_size
from avactl.spec.platform.node_pool import NodePoolSpec

Amount = int | float
Key = tuple[str, str]
"""Cluster and GPU model."""


Sum = tuple[Amount, Amount]
"""GPUs that specs need to start, and that they use at their largest."""


def _quota_limit(program: Program, team: str, key: Key) -> DeclaredLimit | None:
    """Return the quota limit of a team; None if it has no quota on the cluster and so no limit."""
    quota = quota_of(program, team, key[0])
    return None if quota is None else gpu_limits(quota.spec).get(key[1], DeclaredLimit(0, 0))


def _sum_requests(program: Program) -> dict[tuple[str, Key], Sum]:
    """Sum the requested GPUs by team."""

    def find() -> dict[tuple[str, Key], Sum]:
        found: dict[tuple[str, Key], Sum] = {}
        for item in program.items:
            if item.team:
                least = gpu_demand(item, program, least=True)
                for key, most in gpu_demand(item, program).items():
                    had = found.get((item.team, key), (0, 0))
                    found[item.team, key] = (had[0] + least.get(key, 0), had[1] + most)
        return found

    return program.memo("diff: asked", find)


_NOT_ALL_AT_ONCE = "not all can run at once"
"""Which of them waits depends on priorities and on what runs; only a plan knows."""


class _Wish(NamedTuple):
    """The GPUs that the pods of one role need to start."""

    cluster: str
    gpu: str
    pools: frozenset[str]
    """Pools it may run in."""
    gpus: Amount


def _gang_requests(item: Item, program: Program) -> list[_Wish]:
    found = []
    for role in running_roles(item):
        gpu = gpu_model(program, item.cluster, role.compute)
        if gpu is not None:
            pools = program.candidate_pools(item.cluster, gpu, role.compute.pool, role.compute.tolerates)
            found.append(
                _Wish(item.cluster, gpu, frozenset(pool.name for pool in pools), role.compute.gpus * role.least)
            )
    return found


def _all_wishes(program: Program) -> list[_Wish]:
    return program.memo(
        "diff: wishes", lambda: [wish for item in program.items for wish in _gang_requests(item, program)]
    )


def _pool_gpus(program: Program, cluster: str, pools: frozenset[str]) -> int:
    """Return the number of GPUs in these pools at their largest size."""
    return sum(
        pool_size(pool) * program.machine(pool).gpu_count for pool in program.pools(cluster) if pool.name in pools
    )


def capacity_consequences(old: Item | None, base: Program, new: Item | None, head: Program) -> list[Consequence]:
    """Return the capacity and quota consequences of a spec, if the change affects them."""
    found: list[Consequence] = []
    if new is not None and (old is None or _gang_requests(old, base) != _gang_requests(new, head)):
        found += _fit_consequences(new, head)
    pool = head.find_pool(new.spec_name) if new is not None else None
    if pool is not None and pool is new:
        found += _pool_consequences(old, base, pool, head)
    item = new or old
    if item is not None and item.team:
        found += _quota_consequences(item.team, old, base, new, head)
    return found


def _fit_consequences(item: Item, program: Program) -> list[Consequence]:
    """Return whether the eligible pools can hold a spec beside everything else that can only run there."""
    found = []
    for cluster, gpu, pools in dict.fromkeys((w.cluster, w.gpu, w.pools) for w in _gang_requests(item, program)):
        have = _pool_gpus(program, cluster, pools)
        want = sum(w.gpus for w in _all_wishes(program) if w.cluster == cluster and w.pools <= pools)
        where = f"pool {min(pools)}" if len(pools) == 1 else f"pools {', '.join(sorted(pools))}"
        count = f"specs request {want:g} of {have} {gpu}"
        if want <= have:
            found.append(Consequence("capacity", f"fits {where} ({count})"))
        else:
            found.append(Consequence("capacity", f"exceeds {where} ({count}): {_NOT_ALL_AT_ONCE}", "warning"))
    return found


def _pool_consequences(old: Item | None, base: Program, new: Item[NodePoolSpec], head: Program) -> list[Consequence]:
    """Return whether a changed pool can still hold the specs that can only run in it."""
    pools = frozenset({new.name})
    have = _pool_gpus(head, new.cluster, pools)
    want = sum(w.gpus for w in _all_wishes(head) if w.cluster == new.cluster and w.pools <= pools)
    if old is None or have >= _pool_gpus(base, old.cluster, pools):
        return []
    gpu = head.machine(new).gpu_model
    if want <= have:
        return [Consequence("capacity", f"fits: specs that can only run here request {want:g} of {have} {gpu}")]
    text = f"specs that can only run here request {want:g} of {have} {gpu}: {_NOT_ALL_AT_ONCE}"
    return [Consequence("capacity", text, "warning")]


def _quota_consequences(
    team: str, old: Item | None, base: Program, new: Item | None, head: Program
) -> list[Consequence]:
    """Return the team's usage before and after, for GPU models whose usage or limit this spec changes."""
    before = gpu_demand(old, base) if old is not None and old.team == team else {}
    after = gpu_demand(new, head) if new is not None else {}
    moved = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    for quota in (*base.quotas(), *head.quotas()):
        if quota in (old, new):
            moved |= {(quota.cluster, gpu) for gpu in gpu_limits(quota.spec)}
    found = []
    for key in sorted(moved):
        was, now = _quota_limit(base, team, key), _quota_limit(head, team, key)
        had, want = _sum_requests(base).get((team, key), (0, 0)), _sum_requests(head).get((team, key), (0, 0))
        if (was or now) and (had, was) != (want, now) and (now or any(want)):
            found.append(_describe_quota(team, key[1], (had[1], was), (want, now)))
    return found


def _describe_quota(
    team: str, gpu: str, before: tuple[Amount, DeclaredLimit | None], after: tuple[Sum, DeclaredLimit | None]
) -> Consequence:
    (had, was), ((least, most), now) = before, after
    of = now.total if now is not None else "unlimited"
    if was is None or was == now:
        move = f"{had:g} → {most:g}" if had != most else f"{most:g}"
        text = f"quota {team} {move} of {of} {gpu}"
    else:
        text = f"quota {team} {had:g} of {was.total} → {most:g} of {of} {gpu}"
    if now is not None and least > now.total:
        return Consequence("quota", f"{text}: {_NOT_ALL_AT_ONCE}", "warning")
    if now is not None and most > now.total:
        return Consequence("quota", f"{text}: exceeds the quota at its largest size", "warning")
    if now is not None and most > now.guaranteed:
        text += f", {most - now.guaranteed:g} borrowed"
    return Consequence("quota", text)
