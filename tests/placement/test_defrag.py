"""Moves that make room: as few as an enumeration finds, and they can be done."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.hardware.placement.allocation import AllocationState, Booking, Node
from avactl.hardware.placement.defrag import GangMove, make_whole
from avactl.hardware.placement.gang import Gang, GangRole, place_gang
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer
from avactl.hardware.topology import gpus_in_mask


def fleet(nodes: int, gpus: int = 4) -> AllocationState:
    state = AllocationState(("cpu",), ("block",))
    for index in range(nodes):
        state.put_node(Node(f"n{index}", (64000,), gpus, "V100", domains=(f"b{index // 2}",)))
    return state


def fill(state: AllocationState, *pods: tuple[int, int]) -> dict[Hashable, Request]:
    """Pods `(node, GPUs)`, and what they ask for."""
    asked: dict[Hashable, Request] = {}
    for index, (node, gpus) in enumerate(pods):
        taken = sum(1 << gpu for gpu in gpus_in_mask(int(state.whole[node]))[:gpus])
        state.book(index, Booking(node, (1000,), taken))
        asked[index] = Request((1000,), gpus)
    return asked


def gang(count: int, gpus: int, within: str | None = None) -> Gang:
    return Gang((GangRole("w", Request((1000,), gpus), count),), within)


def test_the_node_with_fewest_pods_is_cleared() -> None:
    state = fleet(3)
    movable = fill(state, (0, 1), (0, 1), (1, 2), (2, 1))
    assert make_whole(Scorer(state), "x", gang(1, 4), movable) == [GangMove(2, 1, 0, 0b1100)]
    assert make_whole(Scorer(state), "x", gang(1, 3), movable) == []
    assert sorted(state.bookings, key=str) == [0, 1, 2, 3]


def test_only_what_may_move_moves() -> None:
    state = fleet(2)
    movable = fill(state, (0, 1), (1, 1))
    del movable[0]
    assert make_whole(Scorer(state), "x", gang(1, 4), movable) == [GangMove(1, 1, 0, 0b0010)]
    assert make_whole(Scorer(state), "x", gang(1, 4), {}) is None
    assert make_whole(Scorer(state), "x", gang(2, 4), movable) is None


def test_machines_that_many_pods_share_are_cleared_too() -> None:
    state = fleet(3, 8)
    half = Request((1000,), 1, 500)
    movable: dict[Hashable, Request] = {}
    for number in range(16):
        key = f"half-{number * 7 % 16}"
        state.book(key, Booking(0, (1000,), 1 << number // 2, 500))
        movable[key] = half
    for node in (1, 2):
        state.book(f"stays-{node}", Booking(node, (1000,), 1))
    for gpus, count in ((8, 16), (5, 0)):
        moves = make_whole(Scorer(state), "x", gang(1, gpus), movable)
        assert moves is not None
        assert len(moves) == count
    for node in (1, 2):
        state.book(f"stay-{node}", Booking(node, (1000,), 0b1110))
    moves = make_whole(Scorer(state), "x", gang(1, 5), movable)
    assert moves is not None
    assert len(moves) == 10
    assert all(move.source == 0 for move in moves)


def test_a_required_domain_is_kept() -> None:
    state = fleet(4)
    movable = fill(state, (0, 1), (2, 1), (2, 1), (3, 1))
    plan = make_whole(Scorer(state), "x", gang(2, 4, "block"), movable)
    assert plan is not None
    assert [(move.key, move.source) for move in plan] == [(0, 0)]
    assert plan[0].target in (2, 3)


def test_a_node_whose_pods_find_no_place_is_left() -> None:
    state = fleet(3)
    movable = fill(state, (0, 3), (1, 1), (1, 1), (2, 2))
    # One move would clear node 0 or 2, but three GPUs are free nowhere else.
    plan = make_whole(Scorer(state), "x", gang(1, 4), movable)
    assert plan is not None
    assert [(move.key, move.source, move.target) for move in plan] == [(3, 2, 1)]


@given(st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_as_few_as_an_enumeration_finds(seed: int) -> None:
    rng = random.Random(seed)
    state = fleet(4)
    movable: dict[Hashable, Request] = {}
    for index in range(rng.randrange(4, 10)):
        gpus = rng.choice([1, 1, 2, 3])
        nodes = [node for node in range(4) if int(state.whole[node]).bit_count() >= gpus]
        if nodes:
            node = rng.choice(nodes)
            taken = sum(1 << gpu for gpu in gpus_in_mask(int(state.whole[node]))[:gpus])
            state.book(index, Booking(node, (1000,), taken))
            if rng.random() < 0.8:
                movable[index] = Request((1000,), gpus)
    before = dict(state.bookings)
    scorer, wanted = Scorer(state), gang(1, rng.choice([2, 3, 4]))
    plan = make_whole(scorer, "x", wanted, movable)
    assert state.bookings == before
    fewest = next((count for count in range(len(movable) + 1) if _possible(state, movable, wanted, count)), None)
    if plan is None:
        assert fewest is None
        return
    assert len(plan) == fewest
    for move in plan:
        assert state.release(move.key).node == move.source
    for move in plan:
        state.book(move.key, Booking(move.target, (1000,), move.gpus))
    assert place_gang(Scorer(state), "x", wanted) is not None


def _possible(state: AllocationState, movable: dict[Hashable, Request], wanted: Gang, count: int) -> bool:
    """Whether moving so many pods of one node, whichever, makes room there: by trying all nodes for all of them."""
    gpus = wanted.roles[0].request.gpus
    free = [int(state.whole[node]).bit_count() for node in range(state.size)]
    for node in range(state.size):
        here = [key for key in movable if state.bookings[key].node == node]
        for keys in combinations(here, count):
            left = list(free)
            left[node] += sum(movable[key].gpus for key in keys) - gpus
            if left[node] >= 0 and any(_packs(left, [movable[key].gpus for key in keys])):
                return True
    return False


def _packs(left: list[int], sizes: list[int]) -> Iterator[bool]:
    if not sizes:
        yield True
        return
    for node in range(len(left)):
        if left[node] >= sizes[0]:
            yield from _packs([each - sizes[0] if i == node else each for i, each in enumerate(left)], sizes[1:])
