"""Find the fewest moves that free capacity for a gang. Proposes moves, executes none."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain, combinations, islice
from typing import NamedTuple

import numpy as np

from avactl.hardware.placement.allocation import ABSENT, AllocationState
from avactl.hardware.placement.fragmentation import Ints
from avactl.hardware.placement.gang import Gang, GangRole, count_fitting, place_gang
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer

MAX_POD_SETS = 2000
"""Maximum number of pod sets tried per node before an approximate set is used, which is irreducible but not minimal."""
MAX_PLANS = 24
"""Maximum number of plans per domain when moved pods find no new place."""


Movable = Mapping[Hashable, Request]
"""Bookings that may move, with their requests."""
Barred = set[frozenset[Hashable]]
"""Sets of pods of one node of which some found no other place."""


class GangMove(NamedTuple):
    """Move of a pod from one node to another."""

    key: Hashable
    source: int
    target: int
    gpus: int
    """GPU mask on the target."""


def make_whole(scorer: Scorer, key: Hashable, gang: Gang, movable: Movable) -> list[GangMove] | None:
    """Return moves after which the gang's minimum members fit; [] if they already fit, None if impossible.

    `movable` are the bookings that may move, with their requests: pods of jobs that checkpoint and allow it. For each
    member, choose the node that needs the fewest moves (exact if few pods share it), one member after the other. Moved
    pods go to free capacity only. The state is unchanged afterwards.
    """
    state = scorer.state
    mark = state.mark()
    try:
        if place_gang(scorer, key, gang) is not None:
            return []
    finally:
        state.rollback(mark)
    plans = (_plan_in_domain(scorer, key, gang, movable, slots) for slots in _slots_to_search(state, gang))
    feasible_plans = [plan for plan in plans if plan is not None]
    return min(feasible_plans, key=len, default=None)


def _slots_to_search(state: AllocationState, gang: Gang) -> Iterator[Ints]:
    """Yield the sets of slots in which the gang must stay."""
    if gang.within is None:
        yield np.arange(state.size)
        return
    domain = state.domains[: state.size, state.levels.index(gang.within)]
    for name in np.unique(domain[domain != ABSENT]).tolist():
        yield np.flatnonzero(domain == name)


def _plan_in_domain(scorer: Scorer, key: Hashable, gang: Gang, movable: Movable, slots: Ints) -> list[GangMove] | None:
    """Plan moves within one domain. Nodes whose pods find no other place are excluded, and planning restarts."""
    state = scorer.state
    barred: Barred = set()
    for _ in range(MAX_PLANS):
        mark = state.mark()
        try:
            freed = _remove_pods_for_gang(scorer, key, gang, movable, slots, barred)
            if freed is None:
                return None
            moves, stuck = _place_elsewhere(scorer, movable, freed)
            if stuck is None:
                return moves
            barred.add(next(keys for keys in freed.values() if stuck in keys))
        finally:
            state.rollback(mark)
    return None


Freed = dict[tuple[Hashable, int], frozenset[Hashable]]
"""Removed pods and their nodes; and the sets of pods that were removed together."""


def _remove_pods_for_gang(
    scorer: Scorer, key: Hashable, gang: Gang, movable: Movable, slots: Ints, barred: Barred
) -> Freed | None:
    """Remove pods and book the gang's members, the largest first; None if impossible."""
    state = scorer.state
    freed: Freed = {}
    for role in sorted(gang.roles, key=lambda role: -role.request.total_milli):
        for number in range(role.least):
            candidate = _node_with_fewest_moves(state, role.request, movable, slots, barred)
            if candidate is None:
                return None
            node, keys = candidate
            for pod in keys:
                freed[pod, node] = keys
                state.release(pod)
            only = np.zeros(len(state.free), np.bool_)
            only[node] = True
            single = Gang((GangRole(role.name, role.request, 1),))
            if place_gang(scorer, (key, number, role.name), single, only) is None:
                return None
    return freed


def _node_with_fewest_moves(
    state: AllocationState, request: Request, movable: Movable, slots: Ints, barred: Barred
) -> tuple[int, frozenset[Hashable]] | None:
    """Return the node on which the fewest pods must move for one more member, and these pods."""
    now = count_fitting(state, request, slots)
    if (now > 0).any():
        return int(slots[now.argmax()]), frozenset()
    able = count_fitting(state, request, slots, empty=True) > 0
    bounds = []
    for slot in slots[able].tolist():
        keys = [key for key in state.held[slot] if key in movable]
        sizes = sorted((state.bookings[key].gpus.bit_count() for key in keys), reverse=True)
        missing = request.gpus - int(state.whole[slot]).bit_count()
        bound = next((count for count in range(1, len(sizes) + 1) if sum(sizes[:count]) >= missing), None)
        if bound is not None:
            bounds.append((bound, slot, keys))
    best: tuple[int, frozenset[Hashable]] | None = None
    for bound, slot, keys in sorted(bounds, key=lambda bound: bound[:2]):
        if best is not None and bound >= len(best[1]):
            break
        most = len(keys) if best is None else len(best[1]) - 1
        pods = _fewest_pods(state, request, slot, keys, bound, most, barred)
        best = best if pods is None else (slot, pods)
    return best


def _fewest_pods(
    state: AllocationState, request: Request, slot: int, keys: list[Hashable], least: int, most: int, barred: Barred
) -> frozenset[Hashable] | None:
    """Return the fewest pods of a node to move, at most `most`; `least` is a lower bound."""
    here = np.array([slot])

    def fits_without(gone: Iterable[Hashable]) -> bool:
        mark = state.mark()
        for key in gone:
            state.release(key)
        fits = bool(count_fitting(state, request, here)[0] > 0)
        state.rollback(mark)
        return fits

    # Of sets with equal size, try the smallest pods first: they are the easiest to move.
    keys = sorted(keys, key=lambda key: (state.bookings[key].gpus.bit_count(), str(key)))
    sets = chain.from_iterable(combinations(keys, count) for count in range(least, most + 1))
    for pods in islice(sets, MAX_POD_SETS):
        chosen = frozenset(pods)
        if chosen not in barred and fits_without(pods):
            return chosen
    if next(sets, None) is None or not fits_without(keys):
        return None
    # Too many sets: drop pods one by one, small ones first, until none of them can stay.
    left = dict.fromkeys(keys)
    for key in keys:
        del left[key]
        if not fits_without(left):
            left[key] = None
    chosen = frozenset(left)
    return None if len(chosen) > most or chosen in barred else chosen


def _place_elsewhere(scorer: Scorer, movable: Movable, freed: Freed) -> tuple[list[GangMove], Hashable | None]:
    """Find new places for the removed pods, the largest first; the second value is a pod without one."""
    moves = []
    pods = sorted(freed, key=lambda pod: (-movable[pod[0]].total_milli, str(pod[0])))
    for key, source in pods:
        choice = scorer.choose(movable[key])
        if choice is None:
            return [], key
        scorer.state.book(key, choice.booking(movable[key]))
        moves.append(GangMove(key, source, choice.node, choice.gpus))
    return moves, None
