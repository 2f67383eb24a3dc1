"""Gang placement: all members or none, close together, in the tightest domain to keep large domains free."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from avactl.hardware.placement.allocation import ABSENT, MILLI_PER_GPU, AllocationState, Booking
from avactl.hardware.placement.fragmentation import Ints
from avactl.hardware.placement.gang_search import SearchResult, assign_gpus, search_counts
from avactl.hardware.placement.links import SearchLimitError
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer

MAX_DOMAINS_TRIED = 8
"""Maximum number of domains of one level that are tried. One is enough for one role, whose capacity is exact; several
roles can compete."""
MAX_DOMAINS_SEARCHED, MAX_NODES_SEARCHED = 64, 1024
"""Maximum number of domains that are searched where none of those tried holds the gang, and of nodes in all of them."""


@dataclass(frozen=True, slots=True)
class GangRole:
    """Members of a gang with equal requests."""

    name: str
    request: Request
    least: int
    """Minimum number of members."""


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that start together."""

    roles: tuple[GangRole, ...]
    within: str | None = None
    """Level of which one domain must hold all members; None: as close as possible."""


class GangMember(NamedTuple):
    """Placement of one gang member."""

    role: str
    number: int
    node: int
    gpus: int
    """GPU mask."""


def count_fitting(
    state: AllocationState, request: Request, slots: Ints, feasible: Mask | None = None, empty: bool = False
) -> Ints:
    """Return the number of such pods that fit on each node, with `empty` on each empty node. Exact."""
    most = np.iinfo(np.int32).max
    free = np.maximum((state.capacity if empty else state.free)[slots], 0)
    room = np.full(len(slots), most, np.int64)
    for column, amount in enumerate(request.amounts):
        if amount:
            np.minimum(room, free[:, column] // amount, out=room)
    if request.gpus:
        gpus = state.gpu_free[slots, : state.width]
        if empty:
            # Faulty GPUs will be repaired: what lacks only them does not lack them for ever.
            gpus = np.where(state.present_gpus(slots)[:, : state.width], MILLI_PER_GPU, ABSENT)
        np.minimum(room, _count_fitting_by_gpus(state, request, slots, gpus), out=room)
        if request.models:
            wanted = np.array([model in request.models for model in state.models], np.bool_)
            room *= wanted[state.model[slots]]
    fits = state.capacity[slots, 0] != ABSENT
    if request.nodes is not None:
        fits &= state.allowed[request.nodes][slots]
    if feasible is not None:
        fits &= feasible[slots]
    room *= fits
    return room


def _count_fitting_by_gpus(
    state: AllocationState, request: Request, slots: Ints, gpus: npt.NDArray[np.integer]
) -> Ints:
    if request.milli < MILLI_PER_GPU:
        shares: Ints = (np.maximum(gpus, 0) // request.milli).sum(1).astype(np.int64)
        return shares
    whole = gpus == MILLI_PER_GPU
    if not request.required or request.gpus == 1:
        counts: Ints = whole.sum(1) // request.gpus
        return counts
    masks = (whole << np.arange(state.width)).sum(1)
    pairs, inverse = np.unique(state.kind[slots].astype(np.int64) << 32 | masks, return_inverse=True)
    counts_by_pair = [
        state.kinds[pair >> 32].room(pair & 0xFFFF, request.gpus, request.link, True) for pair in pairs.tolist()
    ]
    result: Ints = np.array(counts_by_pair, np.int64)[inverse]
    return result


def place_gang(scorer: Scorer, key: Hashable, gang: Gang, feasible: Mask | None = None) -> list[GangMember] | None:
    """Book the minimum members of every role under `(key, role, number)`; None, and no booking, if they do not fit.

    A single node is best, then one domain of the narrowest level that holds the gang, the one with least spare capacity
    (ties: the parent with least); without such a domain, as few of the widest level as possible. Where this order finds
    no place for several roles, a bounded search follows; see `is_impossible`.
    """
    state = scorer.state
    every = np.arange(state.size)
    roles = _roles_by_size(gang)
    if not roles:
        return []
    if len(roles) == 1 and roles[0].least == 1 and gang.within is None:
        return _place_single_pod(scorer, key, roles[0], feasible)
    # Roles can compete for nodes: the one with most GPUs goes first, or else the one with the largest members.
    largest_first = sorted(roles, key=_member_size, reverse=True)
    orders = [roles] if largest_first == roles else [roles, largest_first]
    room = [count_fitting(state, role.request, every, feasible) for role in roles]
    for level, domain in _domains_by_level(state, gang.within):
        for slots in _tightest_domains(scorer, roles, level, domain, room):
            for order in orders:
                mark = state.mark()
                placed = _place_roles(scorer, key, order, slots, level, feasible)
                if placed is not None:
                    state.keep(mark)
                    return placed
                state.rollback(mark)
    return _search_place(scorer, key, gang, roles, room) if len(roles) > 1 else None


def is_impossible(scorer: Scorer, gang: Gang, feasible: Mask | None = None) -> bool:
    """Return True if it is proven that the gang does not fit: its pods exceed a capacity, or all ways were compared."""
    state = scorer.state
    every = np.arange(state.size)
    roles = _roles_by_size(gang)
    room = [count_fitting(state, role.request, every, feasible) for role in roles]
    domains = list(islice(_widest_domains(scorer, gang, roles, room, None), MAX_DOMAINS_SEARCHED + 1))
    if not roles or len(domains) > MAX_DOMAINS_SEARCHED:
        return False
    results = [*_searches(state, roles, domains, room)]
    return len(results) == len(domains) and all(each.counts is None and each.exhaustive for _, each in results)


def _roles_by_size(gang: Gang) -> list[GangRole]:
    return sorted((role for role in gang.roles if role.least), key=lambda role: -role.request.total_milli * role.least)


def _widest_domains(
    scorer: Scorer, gang: Gang, roles: list[GangRole], room: list[Ints], most: int | None = MAX_DOMAINS_SEARCHED
) -> Iterator[Ints]:
    """Yield the slots of each domain that may hold the gang and is in no other one, the tightest first."""
    *_, (level, domain) = _domains_by_level(scorer.state, gang.within)
    return _tightest_domains(scorer, roles, level, domain, room, most)


def _searches(
    state: AllocationState, roles: list[GangRole], domains: Iterable[Ints], room: list[Ints]
) -> Iterator[tuple[Ints, SearchResult]]:
    """Search the domains one after the other, until one holds the gang or too many nodes were searched."""
    requests, least, nodes = [role.request for role in roles], [role.least for role in roles], 0
    for slots in domains:
        if nodes >= MAX_NODES_SEARCHED:
            return
        result = search_counts(state, requests, least, slots, room)
        yield slots, result
        if result.counts is not None:
            return
        nodes += result.nodes


def _search_place(
    scorer: Scorer, key: Hashable, gang: Gang, roles: list[GangRole], room: list[Ints]
) -> list[GangMember] | None:
    """Search the widest domains first, which shows most often that there is no place, then narrower ones inside."""
    state = scorer.state
    searches = [*_searches(state, roles, _widest_domains(scorer, gang, roles, room), room)]
    if not searches or (counts := searches[-1][1].counts) is None:
        return None
    inside = np.isin(np.arange(state.size), searches[-1][0])
    room_inside = [np.where(inside, pods, 0) for pods in room]
    for level, domain in [*_domains_by_level(state, gang.within)][1:-1]:
        domains = _tightest_domains(scorer, roles, level, domain, room_inside)
        found = [result.counts for _, result in _searches(state, roles, domains, room_inside)]
        if found and found[-1] is not None:
            counts = found[-1]
            break
    return _book_counts(scorer, key, roles, counts)


def _book_counts(
    scorer: Scorer, key: Hashable, roles: list[GangRole], counts: dict[int, tuple[int, ...]]
) -> list[GangMember] | None:
    state = scorer.state
    nodes = [list(counts)[position] for position in contiguous(state, list(counts))]
    gpus: dict[int, list[list[int]]] = {}
    try:
        for node in nodes:
            free = state.gpu_free[node, : state.width].tolist()
            wanted = [(role.request, count) for role, count in zip(roles, counts[node], strict=True)]
            masks = assign_gpus(state.kinds[state.kind[node]], free, wanted)
            if masks is None:
                return None
            gpus[node] = masks
    except SearchLimitError:
        return None
    placed: list[GangMember] = []
    for index, role in enumerate(roles):
        placed += _book_role(state, key, role, [(node, mask) for node in nodes for mask in gpus[node][index]])
    return placed


def _member_size(role: GangRole) -> tuple[int, ...]:
    return role.request.total_milli, *role.request.amounts


def _place_single_pod(scorer: Scorer, key: Hashable, role: GangRole, feasible: Mask | None) -> list[GangMember] | None:
    choice = scorer.choose(role.request, feasible)
    if choice is None:
        return None
    scorer.state.book((key, role.name, 0), choice.booking(role.request))
    return [GangMember(role.name, 0, choice.node, choice.gpus)]


def _domains_by_level(state: AllocationState, within: str | None) -> Iterator[tuple[int, Ints]]:
    """Yield levels from single nodes up to the whole cluster or the required level: number, and domain by slot.

    A node outside of a level's domains is its own domain.
    """
    slots = np.arange(state.size)
    depth = len(state.levels)
    widest = 0 if within is None else state.levels.index(within)
    yield depth, slots
    for level in range(depth - 1, widest - 1, -1):
        domain = state.domains[: state.size, level].astype(np.int64)
        yield level, np.where(domain == ABSENT, -1 - slots, domain)
    if within is None:
        yield -1, np.zeros(state.size, np.int64)


def _tightest_domains(
    scorer: Scorer,
    roles: list[GangRole],
    level: int,
    domain: Ints,
    room: list[Ints],
    most: int | None = MAX_DOMAINS_TRIED,
) -> Iterator[Ints]:
    """Yield the slots of each domain with capacity for every role, the tightest first; at most so many are compared."""
    state = scorer.state
    names, first, inverse = np.unique(domain, return_index=True, return_inverse=True)
    sums = [_sum_by_group(inverse, counts, len(names)) for counts in room]
    fits = np.logical_and.reduce([have >= role.least for have, role in zip(sums, roles, strict=True)])
    fitting = np.flatnonzero(fits)
    if not fitting.size:
        return
    ties = np.zeros(len(fitting))
    if level == len(state.levels):
        ties = scorer.scores(roles[0].request)[first[fitting]]
    elif level > 0:
        above = state.domains[: state.size, level - 1].astype(np.int64)
        parents = len(state.domain_names[level - 1])
        above = np.where(above == ABSENT, parents, above)
        ties = _sum_by_group(above, room[0], parents + 1)[above[first[fitting]]].astype(np.float64)
    gpus, amounts = _total_demand(roles)
    for index in fitting[np.lexsort((ties, sums[0][fitting]))][:most].tolist():
        slots = np.flatnonzero(inverse == index)
        if len(roles) == 1 or _has_enough_in_total(state, slots, gpus, amounts):
            yield slots


def _total_demand(roles: Sequence[GangRole]) -> tuple[int, Ints]:
    """Return the demand of the minimum members of all roles: GPU milli, and the amount of each resource."""
    amounts: Ints = np.array([[role.least * amount for amount in role.request.amounts] for role in roles], np.int64)
    return sum(role.least * role.request.total_milli for role in roles), amounts.sum(0)


def _has_enough_in_total(state: AllocationState, slots: Ints, gpus: int, amounts: Ints) -> bool:
    """Return True if nodes have enough in total: a cheap necessary condition."""
    free = np.maximum(state.free[slots], 0).sum(0)
    return bool((free >= amounts).all()) and int(np.maximum(state.gpu_free[slots], 0).sum()) >= gpus


def _sum_by_group(groups: Ints, amounts: Ints, count: int) -> Ints:
    result: Ints = np.bincount(groups, amounts, count).astype(np.int64)
    return result


def _place_roles(
    scorer: Scorer, key: Hashable, roles: list[GangRole], slots: Ints, level: int, feasible: Mask | None
) -> list[GangMember] | None:
    placed: list[GangMember] = []
    for role in roles:
        room = count_fitting(scorer.state, role.request, slots, feasible)
        if int(room.sum()) < role.least:
            return None
        counts = _distribute(scorer, role.request, slots, room, role.least, level + 1)
        placed += _book_members(scorer, key, role, counts)
    return placed


def _distribute(
    scorer: Scorer, request: Request, slots: Ints, room: Ints, need: int, level: int
) -> list[tuple[int, int]]:
    """Return nodes with the number of pods each takes, if no domain of `level` or below holds all of them.

    If one wider domain suffices, take the tightest one; otherwise take the largest ones whole and repeat for the rest.
    """
    state = scorer.state
    slots, room = slots[room > 0], room[room > 0]
    if level >= len(state.levels):
        return _fewest_nodes(scorer, request, slots, room, need)
    domain = state.domains[slots, level].astype(np.int64)
    names, inverse = np.unique(np.where(domain == ABSENT, -1 - slots, domain), return_inverse=True)
    sums = _sum_by_group(inverse, room, len(names))
    if int(sums.max()) >= need:
        tightest = int(np.where(sums >= need, sums, np.iinfo(np.int64).max).argmin())
        inside = inverse == tightest
        return _distribute(scorer, request, slots[inside], room[inside], need, level + 1)
    order = np.argsort(-sums, kind="stable")
    whole = int(np.searchsorted(np.cumsum(sums[order]), need))
    inside = np.isin(inverse, order[:whole])
    taken = list(zip(slots[inside].tolist(), room[inside].tolist(), strict=True))
    rest = need - int(room[inside].sum())
    return taken + _distribute(scorer, request, slots[~inside], room[~inside], rest, level)


def _fewest_nodes(scorer: Scorer, request: Request, slots: Ints, room: Ints, need: int) -> list[tuple[int, int]]:
    """Return the fewest nodes; ties go to those that cost the expected workload least."""
    scores = scorer.scores(request)[slots]
    order = np.lexsort((slots, scores, -room))
    slots, room, scores = slots[order], room[order], scores[order]
    whole = int(np.searchsorted(np.cumsum(room), need))
    taken = list(zip(slots[:whole].tolist(), room[:whole].tolist(), strict=True))
    rest = need - int(room[:whole].sum())
    if rest:
        last = whole + np.flatnonzero(room[whole:] >= rest)
        tightest = last[np.lexsort((scores[last], room[last]))[0]]
        taken.append((int(slots[tightest]), rest))
    return taken


def _book_members(scorer: Scorer, key: Hashable, role: GangRole, counts: list[tuple[int, int]]) -> list[GangMember]:
    state = scorer.state
    in_order = (counts[index] for index in contiguous(state, [node for node, _ in counts]))
    gpus = [(node, mask) for node, count in in_order for mask in _choose_gpus(state, role.request, node, count)]
    return _book_role(state, key, role, gpus)


def _book_role(
    state: AllocationState, key: Hashable, role: GangRole, places: Sequence[tuple[int, int]]
) -> list[GangMember]:
    """Book the members of a role at nodes with GPU masks."""
    placed = [GangMember(role.name, number, node, gpus) for number, (node, gpus) in enumerate(places)]
    for member in placed:
        booking = Booking(member.node, role.request.amounts, member.gpus, role.request.milli)
        state.book((key, role.name, member.number), booking)
    return placed


def contiguous(state: AllocationState, nodes: Sequence[int]) -> list[int]:
    """Return the order of nodes, as indexes, in which those of one domain are neighbours at every topology level.

    A ring over the nodes in this order enters each domain once. Domains keep the order of their first nodes.
    """
    seen: dict[tuple[int, ...], int] = {}
    paths = []
    for node in nodes:
        path = (*state.domains[node].tolist(), node)
        paths.append([seen.setdefault(path[:depth], len(seen)) for depth in range(1, len(path) + 1)])
    return sorted(range(len(nodes)), key=paths.__getitem__)


def _choose_gpus(state: AllocationState, request: Request, node: int, count: int) -> list[int]:
    """Return the GPUs of each pod on a node: the best links one after the other; shares on the fullest fitting GPU."""
    if not request.gpus:
        return [0] * count
    if request.milli == MILLI_PER_GPU:
        kind, free = state.kinds[state.kind[node]], int(state.whole[node])
        if request.required:
            sets: list[int] = kind.sets_of(free, request.gpus, request.link, count, request.rdma)
            return sets
        taken = []
        for _ in range(count):
            taken.append(kind.best(free, request.gpus, request.link, request.required, request.rdma))
            free ^= taken[-1]
        return taken
    left = state.gpu_free[node, : state.width].tolist()
    shares = []
    for _ in range(count):
        gpu = min((gpu for gpu in range(len(left)) if left[gpu] >= request.milli), key=lambda gpu: (left[gpu], gpu))
        left[gpu] -= request.milli
        shares.append(1 << gpu)
    return shares
