"""Gangs of several roles against an enumeration of all placements: none that fits is missed, and none is impossible."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from typing import Any

import pytest

from avactl.hardware.machine import Machine, Nvlink, NvlinkPair, PcieSwitch
from avactl.hardware.placement import gang_search
from avactl.hardware.placement.allocation import MILLI_PER_GPU, AllocationState, Booking, Node
from avactl.hardware.placement.diagnosis import fits_empty
from avactl.hardware.placement.gang import MAX_NODES_SEARCHED, Gang, GangRole, is_impossible, place_gang
from avactl.hardware.placement.gang_search import MAX_NODES, _pack
from avactl.hardware.placement.links import Links
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer
from avactl.hardware.topology import LEVELS, Topology, gpus_in_mask, satisfies
from tests.kinds.test_hardware import mask, of

SWITCHES = (PcieSwitch(0, (0, 1)), PcieSwitch(0, (2,)), PcieSwitch(1, (3,)))
CHAIN = Nvlink(25.0, (NvlinkPair(0, 1, 1), NvlinkPair(1, 2, 2), NvlinkPair(2, 3, 1)))
"""The fastest pair is the one in the middle: who takes it, leaves no other."""
LINKED = Machine("V100", 4, 2**34, 8.0, 2**36, SWITCHES, CHAIN, (), 3.0, 8.0, 12.0)


def has_link(gpus: int, wanted: str) -> bool:
    topology = Topology(LINKED)
    if wanted == "socket" and len({topology.switch(gpu).socket for gpu in gpus_in_mask(gpus)}) > 1:
        return False
    return satisfies(topology.subset_level(gpus), wanted)


class Fleet:
    """Random nodes with pods, and roles of a gang."""

    def __init__(self, rng: random.Random) -> None:
        self.intricate = rng.random() < 0.35
        self.state = AllocationState(("cpu", "memory"), ("block", "rack"))
        machine = LINKED if self.intricate else None
        nodes = rng.randint(2, 3 if self.intricate else 6)
        for index in range(nodes):
            gpus = rng.choice((0, 4, 4)) if self.intricate else rng.choice((0, 2, 4, 8))
            block = rng.choice(("a", "b"))
            domains = (block, block + rng.choice("12")) if rng.random() < 0.8 else ()
            amounts = (rng.randint(3, 14), rng.choice((6, 12, 100)))
            self.state.put_node(Node(f"n{index}", amounts, gpus, "V100", machine if gpus else None, domains))
        for index in range(nodes):
            for gpu in range(int(self.state.gpu_count[index])):
                if rng.random() < 0.15:
                    milli = rng.choice((300, 600, MILLI_PER_GPU)) if self.intricate else MILLI_PER_GPU
                    self.state.book((index, gpu), Booking(index, (0, 0), 1 << gpu, milli))
        self.state.allow("some", [index for index in range(nodes) if rng.random() < 0.7])
        roles = [self._role(rng, number) for number in range(rng.choice((2, 2, 3)))]
        self.gang = Gang(tuple(roles), rng.choice((None, None, "block", "rack")))

    def _role(self, rng: random.Random, number: int) -> GangRole:
        gpus = rng.choice((0, 0, 1, 1, 2, 4))
        milli, link, required = MILLI_PER_GPU, "any", False
        if self.intricate and gpus == 1 and rng.random() < 0.7:
            milli = rng.choice((300, 400, 500, 700))
        elif self.intricate and gpus > 1:
            link, required = rng.choice(LEVELS), rng.random() < 0.7
        nodes = "some" if rng.random() < 0.15 else None
        amounts = (rng.randint(1, 5), rng.choice((0, 1, 3)))
        request = Request(amounts, gpus, milli, nodes=nodes, link=link, required=required)
        return GangRole(f"role{number}", request, rng.randint(1, 2 if self.intricate else 4))

    def feasible(self) -> bool:
        """Compare all placements."""
        return any(self._fits(domain) for domain in self._domains())

    def _domains(self) -> list[list[int]]:
        every = list(range(self.state.size))
        if self.gang.within is None:
            return [every]
        level = self.state.levels.index(self.gang.within)
        numbers = self.state.domains[: self.state.size, level].tolist()
        alone = [[slot] for slot in every if numbers[slot] < 0]
        return alone + [[slot for slot in every if numbers[slot] == number] for number in set(numbers) if number >= 0]

    def _fits(self, slots: list[int]) -> bool:
        pods = [role.request for role in self.gang.roles for _ in range(role.least)]
        pods.sort(key=lambda request: (request.required, request.total_milli, request.amounts), reverse=True)
        seen = set()

        def place(number: int, nodes: tuple[tuple[int, int, int, tuple[int, ...]], ...]) -> bool:
            if number == len(pods):
                return True
            if (number, nodes) in seen:
                return False
            seen.add((number, nodes))
            request = pods[number]
            for index, (slot, cpu, memory, gpus) in enumerate(nodes):
                if request.nodes is not None and not self.state.allowed[request.nodes][slot]:
                    continue
                if request.amounts[0] > cpu or request.amounts[1] > memory:
                    continue
                for after in self._gpu_choices(request, gpus):
                    left = slot, cpu - request.amounts[0], memory - request.amounts[1], after
                    if place(number + 1, (*nodes[:index], left, *nodes[index + 1 :])):
                        return True
            return False

        free = self.state.free[: self.state.size].tolist()
        gpus = self.state.gpu_free[: self.state.size, : max(1, self.state.width)].tolist()
        return place(0, tuple((slot, *free[slot], tuple(gpus[slot])) for slot in slots))

    def _gpu_choices(self, request: Request, gpus: tuple[int, ...]) -> set[tuple[int, ...]]:
        """Return what may be left of the GPUs of a node beside a pod."""
        if not request.gpus:
            return {gpus}
        fitting = [gpu for gpu, milli in enumerate(gpus) if milli >= request.milli]
        if not self.intricate:
            fitting = fitting[: request.gpus]
        results = set()
        for chosen in combinations(fitting, request.gpus):
            if not (self.intricate and request.required) or has_link(mask(*chosen), request.link):
                results.add(tuple(milli - request.milli * (gpu in chosen) for gpu, milli in enumerate(gpus)))
        return results


def compare(seed: int) -> bool:
    """Place a random gang; return if it fits."""
    fleet = Fleet(random.Random(seed))
    state, gang, scorer = fleet.state, fleet.gang, Scorer(fleet.state)
    before, feasible = dict(state.bookings), fleet.feasible()
    placed = place_gang(scorer, "x", gang)
    assert (placed is not None) == feasible, seed
    if placed is None:
        assert state.bookings == before
        assert is_impossible(scorer, gang), f"{seed}: few nodes and roles are compared exhaustively"
        return False
    # Booking has checked amounts and GPUs.
    assert {("x", member.role, member.number) for member in placed} == set(state.bookings) - set(before)
    assert Counter(member.role for member in placed) == {role.name: role.least for role in gang.roles}
    requests = {role.name: role.request for role in gang.roles}
    for member in placed:
        request = requests[member.role]
        assert len(gpus_in_mask(member.gpus)) == request.gpus
        assert request.nodes is None or state.allowed[request.nodes][member.node]
        if request.required and request.gpus > 1:
            assert has_link(member.gpus, request.link)
    if gang.within is not None:
        assert any({member.node for member in placed} <= set(domain) for domain in fleet._domains())
    return True


def test_random_gangs_are_placed_if_they_fit() -> None:
    assert sum(map(compare, range(400))) > 100


@pytest.mark.slow
def test_thousands_of_random_gangs_are_placed_if_they_fit() -> None:
    assert sum(map(compare, range(1000, 7000))) >= 2000


def machines(*cpus: int, gpus: int = 4) -> AllocationState:
    state = AllocationState(("cpu",), ("rack",))
    for index, cpu in enumerate(cpus):
        state.put_node(Node(f"n{index}", (cpu,), gpus, "V100", domains=("r",)))
    return state


def gang(*roles: tuple[int, int, int]) -> Gang:
    """Roles as CPU, GPUs and number of pods."""
    made = (GangRole(str(number), Request((cpu,), gpus), least) for number, (cpu, gpus, least) in enumerate(roles))
    return Gang(tuple(made))


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        pytest.param(machines(48, 48), gang((14, 1, 2), (28, 0, 2)), id="a worker and a server on each machine"),
        pytest.param(machines(3, 5), gang((3, 0, 2), (1, 0, 2)), id="one resource is enough"),
        pytest.param(machines(10, 10, 10), gang((6, 1, 3), (4, 0, 3)), id="launchers beside workers"),
    ],
)
def test_roles_share_machines_if_need_be(state: AllocationState, wanted: Gang) -> None:
    assert fits_empty(state, wanted) is True
    assert place_gang(Scorer(state), "x", wanted) is not None


def test_pairs_of_linked_gpus_are_not_broken_up() -> None:
    """The best pair is in the middle of a chain, and leaves no other: two pods take the outer ones."""
    table = Links(Topology(LINKED))
    assert table.best(0b1111, 2, "nvlink", required=True) == 0b0110
    assert table.room(0b1111, 2, "nvlink", required=True) == 2
    assert table.sets_of(0b1111, 2, "nvlink", 2) == [0b0011, 0b1100]
    assert table.room(0b1110, 2, "nvlink", required=True) == 1
    state = AllocationState(("cpu",))
    state.put_node(Node("n", (64,), 4, "V100", LINKED))
    pair = Request((1,), 2, link="nvlink", required=True)
    assert place_gang(Scorer(state), "x", Gang((GangRole("w", pair, 2),))) is not None


def test_a_dgx_has_all_its_pairs() -> None:
    table = Links(of("dgx1-v100"))
    assert [table.room(0xFF, count, "nvlink", required=True) for count in (2, 3, 4)] == [4, 2, 2]


def test_what_is_too_large_to_compare_is_not_called_impossible() -> None:
    """Sixty roles on a few nodes: no placement is found, and none is ruled out."""
    roles = [(100 + 3 * number % 47, 0, 1) for number in range(60)]
    total = sum(cpu for cpu, _, _ in roles)
    state = machines(*[-(-total // 12)] * 12)
    wanted = gang(*roles)
    placed = place_gang(Scorer(state), "x", wanted)
    assert placed is not None or not is_impossible(Scorer(state), wanted)
    assert is_impossible(Scorer(machines(*[total // 12 - 1] * 12)), wanted), "the sum is a proof"


def test_a_gang_that_waits_is_searched_again_only_for_what_matters_to_it() -> None:
    state, wanted = machines(40, 40), gang((14, 1, 2), (28, 0, 2))
    assert place_gang(Scorer(state), "x", wanted) is None
    searched = _pack.cache_info().misses
    state.put_node(Node("small", (13,), 4, "V100", domains=("r",)))
    state.book("other", Booking(0, (1,), 1))
    assert place_gang(Scorer(state), "x", wanted) is None
    assert is_impossible(Scorer(state), wanted)
    assert _pack.cache_info().misses == searched, "a node takes the same pods as before"
    state.put_node(Node("more", (28,), 0, domains=("r",)))
    assert place_gang(Scorer(state), "x", wanted) is not None


def test_what_many_kinds_of_pods_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node takes any 6 of 13 pods in 1716 ways: on 256 nodes, and cached, they would fill the memory."""
    searched: list[int] = []

    def pack(nodes: Any, *_: Any) -> tuple[None, bool]:
        searched.append(sum(count for _, count in nodes))
        assert sum(len(patterns) * len(patterns[0]) for patterns, _ in nodes) <= 512 * len(nodes)
        return None, True

    monkeypatch.setattr(gang_search, "_pack", pack)
    state = AllocationState(("cpu", "memory"), ("rack",))
    for index in range(8):
        state.put_node(Node(f"n{index}", (100_000 + index, 2**40), 0, "", None, ("r",)))
    large = GangRole("large", Request((90_000, 1), 0, MILLI_PER_GPU), 6)
    small = [GangRole(str(role), Request((14_290 + role, 1), 0, MILLI_PER_GPU), 1) for role in range(13)]
    gang = Gang((large, *small))
    assert place_gang(Scorer(state), "gang", gang) is None
    assert not is_impossible(Scorer(state), gang), "not all ways were compared"
    assert searched


def test_what_many_racks_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def pack(nodes: Any, *_: Any) -> tuple[None, bool]:
        searched.append(sum(count for _, count in nodes))
        return None, True

    monkeypatch.setattr(gang_search, "_pack", pack)
    state = AllocationState(("cpu", "memory"), ("rack",))
    for index in range(60 * 40):
        state.put_node(Node(f"n{index}", (100, 100), 0, "", None, (f"r{index // 40}",)))
    first = GangRole("a", Request((60, 1), 0, MILLI_PER_GPU), 39)
    second = GangRole("b", Request((55, 1), 0, MILLI_PER_GPU), 2)
    gang = Gang((first, second), "rack")
    assert place_gang(Scorer(state), "gang", gang) is None
    assert 0 < sum(searched) <= MAX_NODES_SEARCHED + MAX_NODES
    assert not is_impossible(Scorer(state), gang), "some racks were not searched"
