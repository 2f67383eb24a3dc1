"""Gangs: all or nothing, nearest, tightest; against plain counting."""

from __future__ import annotations

import random
from itertools import pairwise, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.hardware.placement.allocation import MILLI_PER_GPU, AllocationState, Booking, BookingError, Node
from avactl.hardware.placement.gang import Gang, GangMember, GangRole, count_fitting, place_gang
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer
from avactl.hardware.topology import gpus_in_mask
from tests.kinds.test_hardware import of
from tests.work import calls


def blocks(*racks: tuple[str, int], gpus: int = 8, cpu: int = 64000) -> AllocationState:
    """Racks `block/rack` with so many nodes each."""
    state = AllocationState(("cpu",), ("block", "rack"))
    for rack, nodes in racks:
        for index in range(nodes):
            state.put_node(Node(f"{rack}/{index}", (cpu,), gpus, "H100", domains=(rack.split("/")[0], rack)))
    return state


def worker(count: int, gpus: int = 8) -> GangRole:
    return GangRole("worker", Request((8000,), gpus), count)


def racks_of(state: AllocationState, placed: list[GangMember]) -> set[str]:
    return {str(state.names[member.node]).rsplit("/", 1)[0] for member in placed}


def test_the_tightest_domain_is_taken() -> None:
    state = blocks(("a/1", 4), ("a/2", 6), ("b/1", 3), ("b/2", 8))
    scorer = Scorer(state)
    placed = place_gang(scorer, "x", Gang((worker(3),)))
    assert placed is not None
    assert racks_of(state, placed) == {"b/1"}
    placed = place_gang(scorer, "y", Gang((worker(9),)))
    assert placed is not None
    assert racks_of(state, placed) == {"a/1", "a/2"}
    placed = place_gang(scorer, "z", Gang((worker(9),)))
    assert placed is not None
    assert racks_of(state, placed) == {"a/1", "b/2"}


def test_equal_racks_leave_the_larger_block_whole() -> None:
    state = blocks(("big/1", 4), ("big/2", 8), ("small/1", 4))
    placed = place_gang(Scorer(state), "x", Gang((worker(4),)))
    assert placed is not None
    assert racks_of(state, placed) == {"small/1"}


def test_one_node_is_nearest() -> None:
    state = blocks(("a/1", 3))
    state.book("x", Booking(1, (8000,), 0b1111))
    placed = place_gang(Scorer(state), "y", Gang((worker(2, 2),)))
    assert placed is not None
    assert {member.node for member in placed} == {1}


def test_a_required_level_is_kept_or_nothing_is_placed() -> None:
    state = blocks(("a/1", 4), ("a/2", 4))
    scorer = Scorer(state)
    assert place_gang(scorer, "x", Gang((worker(5),), within="rack")) is None
    assert not state.bookings
    assert place_gang(scorer, "x", Gang((worker(5),), within="block")) is not None


def test_roles_go_together() -> None:
    state = blocks(("a/1", 2), ("b/1", 3), cpu=32000)
    server = GangRole("server", Request((30000,)), 1)
    placed = place_gang(Scorer(state), "x", Gang((server, worker(2))))
    assert placed is not None
    assert racks_of(state, placed) == {"b/1"}
    assert [member.role for member in placed] == ["worker", "worker", "server"]


def test_a_role_without_room_takes_the_others_back() -> None:
    state = blocks(("a/1", 2), cpu=16000)
    servers = GangRole("server", Request((9000,)), 1)
    assert place_gang(Scorer(state), "x", Gang((worker(2), servers))) is None
    assert not state.bookings


@given(st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_against_plain_counting(seed: int) -> None:
    rng = random.Random(seed)
    state = AllocationState(("cpu",), ("block", "rack"))
    machine = of("v100-pcie-8").machine
    for index in range(rng.randrange(1, 12)):
        block, rack = rng.choice(["a", "b", None]), rng.choice(["1", "2"])
        domains = (block, None if block is None else block + rack)
        slot = state.put_node(Node(f"n{index}", (rng.randrange(4, 40) * 1000,), 8, "V100", machine, domains))
        for gpu in range(8):
            if rng.random() < 0.4:
                milli = rng.choice([MILLI_PER_GPU, 500])
                state.book((index, gpu), Booking(slot, (100,), 1 << gpu, milli))
    gpus, milli = rng.choice([(0, MILLI_PER_GPU), (1, 300), (1, MILLI_PER_GPU), (2, MILLI_PER_GPU), (4, MILLI_PER_GPU)])
    link = rng.choice(["any", "socket"])
    request = Request((rng.choice([1000, 4000]),), gpus, milli, link=link, required=link != "any")
    within = rng.choice([None, "block", "rack"])
    count = rng.randrange(1, 12)
    room = [_room(state, request, slot) for slot in range(state.size)]
    assert count_fitting(state, request, np.arange(state.size)).tolist() == room
    before = dict(state.bookings)

    def groups(level: int) -> list[list[int]]:
        if level == len(state.levels):
            return [[slot] for slot in range(state.size)]
        if level < 0:
            return [list(range(state.size))]
        alone = [[slot] for slot in range(state.size) if state.domains[slot, level] < 0]
        names = range(len(state.domain_names[level]))
        return alone + [[slot for slot in range(state.size) if state.domains[slot, level] == name] for name in names]

    lowest = -1 if within is None else state.levels.index(within)
    possible = [
        (level, sum(room[slot] for slot in group))
        for level in range(lowest, len(state.levels) + 1)
        for group in groups(level)
        if sum(room[slot] for slot in group) >= count
    ]
    placed = place_gang(Scorer(state), "gang", Gang((GangRole("w", request, count),), within))
    if placed is None:
        assert not possible
        assert state.bookings == before
        return
    assert len(placed) == count
    assert {("gang", "w", member.number) for member in placed} == set(state.bookings) - set(before)
    if request.required:
        levels = [state.kinds[state.kind[member.node]].level(member.gpus) for member in placed if member.gpus]
        assert "node" not in levels
    if count == 1:
        return
    nodes = {member.node for member in placed}
    narrowest = max(level for level, _ in possible)
    inside = [group for group in groups(narrowest) if nodes <= set(group)]
    assert inside, "a nearer domain was free"
    assert sum(room[slot] for slot in inside[0]) == min(sum_ for level, sum_ in possible if level == narrowest)


def _room(state: AllocationState, request: Request, slot: int) -> int:
    """Pods that fit one after the other."""
    other, count = state.copy(), 0
    table = other.kinds[other.kind[slot]]
    while True:
        if request.gpus == 0:
            gpus = 0
        elif request.milli < MILLI_PER_GPU:
            free = other.gpu_free[slot].tolist()
            gpus = next((1 << gpu for gpu, each in enumerate(free) if each >= request.milli), 0)
        else:
            gpus = table.best(int(other.whole[slot]), request.gpus, request.link, request.required)
        if request.gpus and not gpus:
            return count
        try:
            other.book(("probe", count), Booking(slot, request.amounts, gpus, request.milli))
        except BookingError:
            return count
        count += 1


def test_large_gangs_are_quick() -> None:
    """512 pods of 8 GPUs on 1,000 nodes: a hundred calls a pod, the tables of their machines included."""
    state = blocks(*((f"{block}/{rack}", 8) for block, rack in product(range(5), range(25))))
    scorer = Scorer(state)
    placed: list[GangMember] = []
    assert calls(lambda: placed.extend(place_gang(scorer, "x", Gang((worker(512),))) or ())) < 200 * 512
    assert len(placed) == 512
    assert len({state.domains[member.node, 0] for member in placed}) == 3
    assert all(len(gpus_in_mask(member.gpus)) == 8 for member in placed)


def hops(groups: list[tuple[int, ...]]) -> int:
    """Count the neighbours of a chain of ranks that are in different domains."""
    return sum(one != other for one, other in pairwise(groups))


def test_ranks_of_a_rack_are_neighbours() -> None:
    state = AllocationState(("cpu",), ("rack",))
    for index in range(12):  # racks alternate in the order of nodes
        state.put_node(Node(f"n{index}", (64000,), 8, "H100", domains=(f"r{index % 4}",)))
    placed = place_gang(Scorer(state), "x", Gang((worker(12),)))
    assert placed is not None
    assert hops([tuple(state.domains[member.node].tolist()) for member in placed]) == 3


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=24),
    st.data(),
)
@settings(deadline=None)
def test_ranks_make_the_fewest_hops_at_every_level(places: list[tuple[int, int, int]], data: st.DataObject) -> None:
    levels = ("block", "rack", "nvlink")
    state = AllocationState(("cpu",), levels)
    for index, place in enumerate(places):
        paths = [place[: depth + 1] for depth in range(3)]
        # Not every node is in a domain of every level.
        domains = tuple(path if data.draw(st.integers(0, 5)) else None for path in paths)
        state.put_node(Node(f"n{index}", (64000,), 8, "H100", domains=domains))
    count = data.draw(st.integers(2, 2 * len(places)))
    placed = place_gang(Scorer(state), "x", Gang((worker(count, 4),)))
    assert placed is not None
    paths = [(*state.domains[member.node].tolist(), member.node) for member in placed]
    for depth in range(1, len(levels) + 2):
        groups = [path[:depth] for path in paths]
        assert hops(groups) == len(set(groups)) - 1


def test_large_members_go_first_if_many_small_ones_would_take_their_node() -> None:
    state = AllocationState(("cpu",), ("block",))
    for name, gpus, block in (("a1", 3, "a"), ("a2", 3, "a"), ("a3", 8, "a"), ("b1", 11, "b")):
        state.put_node(Node(name, (64000,), gpus, "H100", domains=(block,)))
    # More GPUs in all, but any node takes one of them.
    workers, leader = GangRole("worker", Request((0,), 1), 7), GangRole("leader", Request((0,), 5), 1)
    placed = place_gang(Scorer(state), "x", Gang((workers, leader)))
    assert placed is not None
    assert {str(state.names[member.node])[0] for member in placed} == {"a"}
    assert all(member.role == "worker" or str(state.names[member.node]) == "a3" for member in placed)


def test_large_members_without_gpus_go_first_too() -> None:
    state = AllocationState(("cpu",), ())
    for name, cpu in (("n1", 2000), ("n2", 4000), ("n3", 3000)):
        state.put_node(Node(name, (cpu,), 0, ""))
    roles = (GangRole("leader", Request((1000,)), 1), GangRole("worker", Request((2000,)), 4))
    assert place_gang(Scorer(state), "x", Gang(roles)) is not None
