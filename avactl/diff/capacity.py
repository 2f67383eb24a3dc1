"""What a change means for GPUs: whether the pools hold what specs ask for, and where the team stands in its quota.

Counted from the specs alone. What runs at the moment is not known here: a check, not a reservation.
"""

from __future__ import annotations

from typing import NamedTuple

from avactl.diff.model import Consequence
from avactl.kinds.capacity import demand, gpu_model, roles
from avactl.kinds.program import Item, Program, pool_size

Amount = int | float
Key = tuple[str, str]
"""Cluster and GPU model."""


class Limit(NamedTuple):
    """What a team may use of one GPU model on one cluster."""

    guaranteed: int
    most: int


def limits(program: Program) -> dict[tuple[str, str, str], Limit]:
    """By cluster, team and GPU model, summed over the team's quotas."""

    def find() -> dict[tuple[str, str, str], Limit]:
        found: dict[tuple[str, str, str], Limit] = {}
        for quota in program.of("Quota"):
            entries = [(entry.gpu, entry.guaranteed, entry.borrow) for entry in quota.spec.gpus]
            entries += [(shape.gpu, shape.machines * shape.gpus, 0) for shape in quota.spec.shapes]
            for gpu, guaranteed, borrow in entries:
                key = (quota.cluster, quota.team or "", gpu)
                had = found.get(key, Limit(0, 0))
                found[key] = Limit(had.guaranteed + guaranteed, had.most + guaranteed + borrow)
        return found

    result: dict[tuple[str, str, str], Limit] = program.memo("diff: limits", find)
    return result


def asked(program: Program) -> dict[tuple[str, str, str], Amount]:
    """GPUs that the specs of each team ask for, by cluster, team and GPU model."""

    def find() -> dict[tuple[str, str, str], Amount]:
        found: dict[tuple[str, str, str], Amount] = {}
        for item in program.items:
            if item.team:
                for (cluster, gpu), amount in demand(item, program).items():
                    key = (cluster, item.team, gpu)
                    found[key] = found.get(key, 0) + amount
        return found

    result: dict[tuple[str, str, str], Amount] = program.memo("diff: asked", find)
    return result


class _Wish(NamedTuple):
    """What the pods of one role need to start."""

    cluster: str
    gpu: str
    pools: frozenset[str]
    """Those it may run in."""
    gpus: Amount


def _wishes(item: Item, program: Program) -> list[_Wish]:
    found = []
    for role in roles(item):
        gpu = gpu_model(program, item.cluster, role.compute)
        if gpu is not None:
            pools = program.candidate_pools(item.cluster, gpu, role.compute.pool)
            found.append(
                _Wish(item.cluster, gpu, frozenset(pool.name for pool in pools), role.compute.gpus * role.least)
            )
    return found


def _all_wishes(program: Program) -> list[_Wish]:
    result: list[_Wish] = program.memo(
        "diff: wishes", lambda: [wish for item in program.items for wish in _wishes(item, program)]
    )
    return result


def _have(program: Program, cluster: str, pools: frozenset[str]) -> int:
    """GPUs of these pools, at their largest."""
    return sum(
        pool_size(pool) * int(program.machine(pool).gpus.count) for pool in program.pools(cluster) if pool.name in pools
    )


def _number(amount: Amount) -> str:
    return f"{amount:g}"


def consequences(old: Item | None, base: Program, new: Item | None, head: Program) -> list[Consequence]:
    """Where the GPUs that a spec asks for stand in its pools and in its team's quota, if the change moves them."""
    found: list[Consequence] = []
    if new is not None and (old is None or _wishes(old, base) != _wishes(new, head)):
        found += _fits(new, head)
    if new is not None and new.kind == "NodePool":
        found += _pool(old, base, new, head)
    item = new or old
    if item is not None and item.team:
        found += _quotas(item.team, old, base, new, head)
    return found


def _fits(item: Item, program: Program) -> list[Consequence]:
    """Whether the pools that a spec may run in hold it beside everything else that can only run there."""
    found = []
    for cluster, gpu, pools in dict.fromkeys((w.cluster, w.gpu, w.pools) for w in _wishes(item, program)):
        have = _have(program, cluster, pools)
        want = sum(w.gpus for w in _all_wishes(program) if w.cluster == cluster and w.pools <= pools)
        where = f"pool {min(pools)}" if len(pools) == 1 else f"pools {', '.join(sorted(pools))}"
        count = f"specs ask for {_number(want)} of its {have} {gpu}"
        if want <= have:
            found.append(Consequence("capacity", f"fits {where} ({count})"))
        else:
            found.append(Consequence("capacity", f"waits for {where} ({count})", "warning"))
    return found


def _pool(old: Item | None, base: Program, new: Item, head: Program) -> list[Consequence]:
    """Whether a pool that changed still holds what may only run in it."""
    pools = frozenset({new.name})
    have = _have(head, new.cluster, pools)
    want = sum(w.gpus for w in _all_wishes(head) if w.cluster == new.cluster and w.pools <= pools)
    if want <= have or (old is not None and have >= _have(base, old.cluster, pools)):
        return []
    gpu = head.machine(new).gpus.model
    text = f"specs that only fit here ask for {_number(want)} of its {have} {gpu}: some wait"
    return [Consequence("capacity", text, "warning")]


def _quotas(team: str, old: Item | None, base: Program, new: Item | None, head: Program) -> list[Consequence]:
    """The team's sums before and after, of the GPUs whose sum or limit this spec moves."""
    moved: set[Key] = set()
    before = demand(old, base) if old is not None and old.team == team else {}
    after = demand(new, head) if new is not None else {}
    moved |= {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    item = new or old
    if item is not None and item.kind == "Quota":
        spots = {(c, g) for c, t, g in limits(base).keys() | limits(head).keys() if t == team and c in item.clusters}
        moved |= {(c, g) for c, g in spots if limits(base).get((c, team, g)) != limits(head).get((c, team, g))}
    found = []
    for cluster, gpu in sorted(moved):
        key = (cluster, team, gpu)
        was, now = limits(base).get(key), limits(head).get(key)
        if was is None and now is None:
            continue  # the team has no quota of this model: nothing limits it
        found.append(_quota(team, gpu, (asked(base).get(key, 0), was), (asked(head).get(key, 0), now)))
    return found


def _quota(team: str, gpu: str, before: tuple[Amount, Limit | None], after: tuple[Amount, Limit | None]) -> Consequence:
    (had, was), (want, now) = before, after
    of = f"{now.most}" if now is not None else "unlimited"
    if was == now or was is None:
        move = f"{_number(had)} → {_number(want)}" if had != want else _number(want)
        text = f"quota {team} {move} of {of} {gpu}"
    else:
        text = f"quota {team} {_number(had)} of {was.most} → {_number(want)} of {of} {gpu}"
    if now is not None and want > now.most:
        return Consequence("quota", f"{text}: waits", "warning")
    if now is not None and want > now.guaranteed:
        text += f", {_number(want - now.guaranteed)} borrowed"
    return Consequence("quota", text)
