"""Bounded search for the pods of several roles on nodes: how many of each role a node takes, by dynamic programming.

A node is a set of patterns: the largest numbers of pods of each role that it takes at the same time. The search goes
through the nodes and keeps the numbers of pods that are still to be placed, without those that exceed others in every
role. It is exhaustive for few nodes and roles. Beyond its bounds it keeps the most promising ones only, and says so.

Results depend on what the gang requests and on what is left of it on the nodes alone, and are cached: a gang that waits
is searched again only when that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from avactl.hardware.placement.allocation import MILLI_PER_GPU, AllocationState
from avactl.hardware.placement.fragmentation import Ints
from avactl.hardware.placement.links import Links, SearchLimitError
from avactl.hardware.placement.request import Request

MAX_GRID, MAX_GRIDS = 16_384, 524_288
"""Maximum number of combinations of roles that are compared on one node, and roughly on all nodes of one search; beyond
it, each order of roles gives one."""
MAX_PATTERN_NUMBERS = 512
"""Maximum number of patterns of one node, times roles: they are cached, and tried for each partial placement."""
MAX_GPU_CHECKS = 512
"""Maximum number of combinations on one node for which links or shares of its GPUs are searched."""
MAX_NODES = 256
"""Maximum number of nodes of one search, the largest first."""
MAX_ROWS = 2048
"""Maximum number of partial placements that are kept in one search, over all nodes."""
MIN_ROWS_PER_NODE, MAX_ROWS_PER_NODE = 8, 256
MAX_SHARE_STATES = 2000
"""Maximum number of states when shares of GPUs are packed."""

Patterns = tuple[tuple[int, ...], ...]
"""Pods of each role that one node takes together."""


class SearchResult(NamedTuple):
    """Placement of the pods of several roles, if one was found."""

    counts: dict[int, tuple[int, ...]] | None
    """Number of pods of each role, by slot; None if no placement was found."""
    exhaustive: bool = True
    """True if a search without result proves that there is none."""
    nodes: int = 0
    """Number of nodes that were searched: what the search has cost."""


class _NodeOption(NamedTuple):
    patterns: Patterns
    exact: bool
    """True if no other pattern fits."""


def search_counts(
    state: AllocationState, requests: Sequence[Request], least: Sequence[int], slots: Ints, room: Sequence[Ints]
) -> SearchResult:
    """Search nodes for `least` pods of each request. `room`: pods of each request that fit alone, by node."""
    need = np.array(least, np.int64)
    here = np.minimum(np.stack([counts[slots] for counts in room], 1), need)
    used = here.any(1)
    slots, here = slots[used], here[used]
    weights = _weights(requests)
    amounts = np.array([request.amounts for request in requests], np.int64)
    columns = np.flatnonzero(amounts.any(0))
    free = np.clip(state.free[slots][:, columns], 0, need @ amounts[:, columns])
    gpus = np.maximum(state.gpu_free[slots], 0)
    totals = np.concatenate([here.sum(0), free.sum(0), [gpus.sum()]])
    milli = np.array([request.total_milli for request in requests], np.int64)
    if (totals < np.concatenate([need, need @ amounts[:, columns], [need @ milli]])).any():
        return SearchResult(None)
    rows = np.concatenate([here, free, _gpu_columns(state, requests, slots, int(need @ milli))], 1)
    kinds, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    role_amounts = tuple(tuple(row) for row in amounts[:, columns].tolist())
    split = len(need) + len(columns)
    nodes: list[tuple[Patterns, int]] = []
    members: list[list[int]] = []
    left, exhaustive = MAX_NODES, True
    # A power of two: options are cached.
    each = MAX_GRIDS // max(1, min(len(kinds), MAX_NODES))
    most_combinations = min(MAX_GRID, 1 << (each.bit_length() - 1))
    # Large nodes first, so that few are used.
    for kind in np.lexsort((first, -(kinds[:, : len(need)] / need).sum(1))).tolist():
        row = kinds[kind].tolist()
        members.append(slots[inverse.ravel() == kind].tolist())
        useful = min(len(members[-1]), int(need.sum()))
        exhaustive &= useful <= left
        if not left:
            break
        option = _node_option(
            tuple(requests),
            role_amounts,
            tuple(row[: len(need)]),
            tuple(row[len(need) : split]),
            tuple(row[split:]),
            state.kinds[row[-1]] if len(row) - split > 1 else None,
            most_combinations,
        )
        exhaustive &= option.exact
        nodes.append((option.patterns, min(useful, left)))
        left -= nodes[-1][1]
    taken, complete = _pack(tuple(nodes), tuple(least), weights)
    if taken is None:
        return SearchResult(None, exhaustive and complete, MAX_NODES - left)
    given = [iter(group) for group in members]
    return SearchResult({next(given[group]): pods for group, pods in taken})


def _weights(requests: Sequence[Request]) -> tuple[tuple[int, ...], ...]:
    """Return what pods of each role take of a limit: of pods of their role, of each resource, and of GPUs."""
    roles = range(len(requests))
    single = tuple(tuple(int(role == other) for other in roles) for role in roles)
    amounts = tuple(zip(*(request.amounts for request in requests), strict=True))
    gpus = tuple(request.total_milli for request in requests)
    return tuple(row for row in (*single, *amounts, gpus) if any(row))


def _gpu_columns(state: AllocationState, requests: Sequence[Request], slots: Ints, milli: int) -> Ints:
    """Return what matters of the free GPUs of nodes: their number, or those of each and the machine type."""
    whole = (state.gpu_free[slots, : state.width] == MILLI_PER_GPU).sum(1)
    if not any(_is_intricate(request) for request in requests):
        counts: Ints = np.minimum(whole, -(-milli // MILLI_PER_GPU)).astype(np.int64)[:, None]
        return counts
    gpus = state.gpu_free[slots, : state.width].astype(np.int64)
    if not any(_is_linked(request) for request in requests):
        # Which of the GPUs are shared does not matter, nor does the machine type.
        return np.concatenate([np.sort(np.maximum(gpus, 0), 1), np.zeros((len(slots), 1), np.int64)], 1)
    return np.concatenate([gpus, state.kind[slots].astype(np.int64)[:, None]], 1)


def _is_intricate(request: Request) -> bool:
    """Return True if the number of free GPUs does not say whether a request fits."""
    return _is_linked(request) or (request.gpus > 0 and request.milli < MILLI_PER_GPU)


def _is_linked(request: Request) -> bool:
    return request.required and request.gpus > 1


# -- one node --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _node_option(
    requests: tuple[Request, ...],
    role_amounts: tuple[tuple[int, ...], ...],
    room: tuple[int, ...],
    free: tuple[int, ...],
    gpus: tuple[int, ...],
    links: Links | None,
    most_combinations: int,
) -> _NodeOption:
    """Return the largest numbers of pods of each role that a node takes. `gpus`, `links`: see `_gpu_columns`."""
    inside = [role for role, count in enumerate(room) if count]
    amounts = np.array(role_amounts, np.int64)[inside]
    sizes = np.array([requests[role].gpus for role in inside], np.int64)
    limit = np.array(free, np.int64)
    most = [room[role] for role in inside]

    def fits(counts: Sequence[int]) -> bool:
        pods = np.array(counts, np.int64)
        if (pods @ amounts > limit).any():
            return False
        if links is None:
            return int(pods @ sizes) <= gpus[0]
        wanted = [(requests[role], count) for role, count in zip(inside, counts, strict=True)]
        return assign_gpus(links, gpus[:-1], wanted, preferences=False) is not None

    exact = prod(count + 1 for count in most) <= most_combinations
    found: list[list[int]] = []
    try:
        if exact:
            found = _largest_patterns(most, amounts, limit, sizes, gpus, links, fits)
    except SearchLimitError:
        exact = False
    if not exact:
        found = _greedy_patterns(most, fits)
    step = ceil(len(found) / max(1, MAX_PATTERN_NUMBERS // len(room)))
    if step > 1:
        found, exact = found[::step], False
    patterns = []
    for counts in found:
        pattern = [0] * len(room)
        for role, count in zip(inside, counts, strict=True):
            pattern[role] = count
        patterns.append(tuple(pattern))
    return _NodeOption(tuple(patterns) or ((0,) * len(room),), exact)


def _largest_patterns(
    most: list[int],
    amounts: Ints,
    limit: Ints,
    sizes: Ints,
    gpus: tuple[int, ...],
    links: Links | None,
    fits: Callable[[Sequence[int]], bool],
) -> list[list[int]]:
    """Compare all combinations. Raises SearchLimitError if too many of them need a search of GPUs."""
    shape = [count + 1 for count in most]
    grid = np.stack(np.unravel_index(np.arange(prod(shape)), shape), 1)
    good: npt.NDArray[np.bool_] = np.all(grid @ amounts <= limit, axis=1)
    if links is None:
        good &= grid @ sizes <= gpus[0]
    else:
        unknown, checks = good, 0
        good = np.zeros(len(grid), np.bool_)
        for index in np.argsort(-grid.sum(1), kind="stable").tolist():
            if unknown[index]:
                checks += 1
                if checks > MAX_GPU_CHECKS:
                    raise SearchLimitError
                if fits(grid[index].tolist()):
                    below = (grid <= grid[index]).all(1)
                    good |= below
                    unknown &= ~below
    cube = good.reshape(shape)
    largest = cube.copy()
    for axis in range(len(shape)):
        head = [slice(None)] * len(shape)
        tail = [slice(None)] * len(shape)
        head[axis], tail[axis] = slice(None, -1), slice(1, None)
        largest[tuple(head)] &= ~cube[tuple(tail)]
    result: list[list[int]] = grid[largest.ravel()].tolist()
    return result


def _greedy_patterns(most: list[int], fits: Callable[[Sequence[int]], bool]) -> list[list[int]]:
    """Return the pattern in which each role comes first once, and the others in order."""
    patterns: list[list[int]] = []
    for first in range(len(most)):
        counts = [0] * len(most)
        for role in (first, *(other for other in range(len(most)) if other != first)):
            for count in range(most[role], 0, -1):
                counts[role] = count
                try:
                    if fits(counts):
                        break
                except SearchLimitError:
                    pass
                counts[role] = 0
        patterns.append(counts)
    return patterns


def assign_gpus(
    links: Links, free: Sequence[int], wanted: Sequence[tuple[Request, int]], preferences: bool = True
) -> list[list[int]] | None:
    """Return the GPUs of each pod on a node, by request; None if they do not fit together.

    `free`: milli by GPU. `preferences`: choose the best GPUs. Raises SearchLimitError.
    """
    whole = sum(1 << gpu for gpu, milli in enumerate(free) if milli == MILLI_PER_GPU)
    result: list[list[int]] = [[0] * count for _, count in wanted]
    linked = [index for index, (request, _) in enumerate(wanted) if _is_linked(request)]
    plain = [
        index
        for index, (request, _) in enumerate(wanted)
        if request.gpus and request.milli == MILLI_PER_GPU and index not in linked
    ]
    shared = [index for index, (request, _) in enumerate(wanted) if request.gpus and request.milli < MILLI_PER_GPU]
    if whole.bit_count() < sum(wanted[index][0].gpus * wanted[index][1] for index in (*linked, *plain)):
        return None
    pods = [index for index in linked for _ in range(wanted[index][1])]
    linked_requests = [wanted[index][0] for index in pods]
    sets = _best_sets(links, whole, linked_requests) if preferences else None
    if sets is None:
        sets = links.disjoint_sets(whole, [(request.gpus, request.link) for request in linked_requests])
    if sets is None:
        return None
    for index in linked:
        result[index] = [gpus for pod, gpus in zip(pods, sets, strict=True) if pod == index]
        whole &= ~sum(result[index])
    for index in sorted(plain, key=lambda index: -wanted[index][0].gpus):
        request, count = wanted[index]
        for pod in range(count):
            if preferences:
                gpus = links.best(whole, request.gpus, request.link, False, request.rdma)
            else:
                gpus = _lowest_bits(whole, request.gpus)
            result[index][pod] = gpus
            whole ^= gpus
    bins = {
        gpu: milli
        for gpu, milli in enumerate(free)
        if 0 < milli < MILLI_PER_GPU or (milli == MILLI_PER_GPU and whole >> gpu & 1)
    }
    shares = sorted(
        ((wanted[index][0].milli, index) for index in shared for _ in range(wanted[index][1])), reverse=True
    )
    gpus_of_shares = _pack_shares(bins, [milli for milli, _ in shares])
    if gpus_of_shares is None:
        return None
    for index in shared:
        result[index] = [1 << gpu for (_, other), gpu in zip(shares, gpus_of_shares, strict=True) if other == index]
    return result


def _best_sets(links: Links, free: int, requests: Sequence[Request]) -> list[int] | None:
    """Return the best GPUs of each request one after the other; None if one of them finds none."""
    sets = []
    for request in requests:
        sets.append(links.best(free, request.gpus, request.link, True, request.rdma))
        free ^= sets[-1]
    return sets if all(sets) else None


def _lowest_bits(mask: int, count: int) -> int:
    result = 0
    for _ in range(count):
        result |= mask & ~result & -(mask & ~result)
    return result


def _pack_shares(bins: dict[int, int], shares: list[int]) -> list[int] | None:
    """Return the GPU of each share, largest shares first; None if they do not fit. Raises SearchLimitError."""
    failed: set[tuple[int, tuple[int, ...]]] = set()
    left, chosen = dict(bins), []

    def place(number: int) -> bool:
        if number == len(shares):
            return True
        state = number, tuple(sorted(left.values()))
        if state in failed or sum(left.values()) < sum(shares[number:]):
            return False
        if len(failed) >= MAX_SHARE_STATES:
            raise SearchLimitError
        tried = set()
        for gpu in sorted(left, key=lambda gpu: (left[gpu], gpu)):
            before = left[gpu]
            if before < shares[number] or before in tried:
                continue
            tried.add(before)
            left[gpu] = before - shares[number]
            chosen.append(gpu)
            if place(number + 1):
                return True
            chosen.pop()
            left[gpu] = before
        failed.add(state)
        return False

    return chosen if place(0) else None


# -- all nodes -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _pack(
    nodes: tuple[tuple[Patterns, int], ...], least: tuple[int, ...], weights: tuple[tuple[int, ...], ...]
) -> tuple[tuple[tuple[int, tuple[int, ...]], ...] | None, bool]:
    """Return the pods that nodes take, as group of equal nodes and pods of each role, and if all was compared.

    `nodes`: patterns and number of equal nodes.
    """
    groups = [group for group, (_, count) in enumerate(nodes) for _ in range(count)]
    patterns = [np.array(options, np.int64) for options, _ in nodes]
    limits = np.array(weights, np.int64)
    most = np.array([(limits @ options.T).max(1) for options in patterns]).reshape(len(nodes), len(limits))
    after = np.concatenate([np.cumsum(most[groups][::-1], 0)[::-1], np.zeros((1, len(limits)), np.int64)])
    beam = max(MIN_ROWS_PER_NODE, min(MAX_ROWS_PER_NODE, MAX_ROWS // max(1, len(groups))))
    rows, complete = np.array([least], np.int64), True
    layers: list[tuple[Ints, Ints, Ints]] = []
    if (limits @ rows[0] > after[0]).any():
        return None, True
    for number, group in enumerate(groups):
        options = patterns[group]
        left = np.maximum(rows[:, None] - options[None], 0).reshape(-1, len(least))
        possible = np.flatnonzero((left @ limits.T <= after[number + 1]).all(1))
        if not possible.size:
            return None, complete
        left, first = np.unique(left[possible], axis=0, return_index=True)
        origin = possible[first]
        best = _least_rows(left, limits, beam + 1)
        complete &= len(best) <= beam
        best = best[:beam]
        layers.append((rows, origin[best] // len(options), origin[best] % len(options)))
        rows = left[best]
        if not rows[0].any():
            return tuple(_trace(layers, groups, patterns)), True
    return None, complete


def _least_rows(rows: Ints, limits: Ints, count: int) -> npt.NDArray[np.intp]:
    """Return at most so many rows that exceed no other row in every role, those with the least demand first."""
    demand = rows @ (limits / np.maximum(limits.sum(1, keepdims=True), 1)).T
    order = np.lexsort((np.arange(len(rows)), demand.sum(1)))
    chosen: list[int] = []
    while order.size and len(chosen) < count:
        chosen.append(int(order[0]))
        order = order[(rows[order] < rows[order[0]]).any(1)]
    return np.array(chosen, np.intp)


def _trace(
    layers: list[tuple[Ints, Ints, Ints]], groups: list[int], patterns: list[Ints]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return the pods on each node of the placement that ends with the first row of the last layer."""
    taken, row = [], 0
    for number in range(len(layers) - 1, -1, -1):
        rows, parents, choices = layers[number]
        group = groups[number]
        parent, pattern = int(parents[row]), patterns[group][int(choices[row])]
        pods = np.minimum(rows[parent], pattern)
        if pods.any():
            taken.append((group, tuple(pods.tolist())))
        row = parent
    return taken[::-1]
