"""Scores of nodes: against the formulas written out, and renewed wherever something changed."""

from __future__ import annotations

import random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.hardware.placement.allocation import MILLI_PER_GPU, AllocationState, Booking, Node
from avactl.hardware.placement.expected_workload import Workload, distance
from avactl.hardware.placement.fragmentation import Measure
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Objective, Scorer, place
from avactl.hardware.topology import gpus_in_mask
from tests.kinds.test_hardware import mask, of

MODELS = ("V100", "T4")

requests = st.builds(
    lambda cpu, memory, kind, models: Request(
        (cpu, memory), kind[0], kind[1], frozenset(models) if kind[0] else frozenset()
    ),
    st.sampled_from([1000, 2000, 6000]),
    st.sampled_from([1, 8, 20]),
    st.sampled_from(
        [(0, MILLI_PER_GPU), (1, 250), (1, 500), (1, 700), (1, MILLI_PER_GPU), (2, MILLI_PER_GPU), (4, MILLI_PER_GPU)]
    ),
    st.sets(st.sampled_from(MODELS), max_size=1),
)


def fleet() -> AllocationState:
    state = AllocationState(("cpu", "memory"))
    for index, (cpu, gpus, model) in enumerate([(16000, 4, "V100"), (8000, 2, "T4"), (12000, 0, ""), (6000, 4, "T4")]):
        state.put_node(Node(f"n{index}", (cpu, 40), gpus, model))
    return state


def cost(shares: dict[Request, float], cpu: int, memory: int, gpus: list[int], model: str) -> float:
    """FGD's definition (its equations 1 to 4), and what the mean workload leaves stranded, pod by pod."""
    asking = {request: share for request, share in shares.items() if request.gpus}
    if not asking:
        return 0.0
    everything = sum(asking.values())
    lost = 0.0
    for request, share in asking.items():
        fits = cpu >= request.amounts[0] and memory >= request.amounts[1]
        fits = fits and (not request.models or model in request.models)
        large = [free for free in gpus if free >= request.milli]
        fits = fits and len(large) >= request.gpus
        lost += share / everything * (sum(gpus) - (sum(large) if fits else 0))
    milli = sum(share * request.total_milli for request, share in asking.items())
    need = {request: share if request.gpus else share / 4 for request, share in shares.items()}
    usable = min(
        have / (sum(share * request.amounts[index] for request, share in need.items()) / milli)
        for index, have in enumerate((cpu, memory))
    )
    return lost + max(0.0, sum(gpus) - usable)


def node_cost(
    state: AllocationState, shares: dict[Request, float], slot: int, request: Request | None, gpus: int
) -> float:
    free = state.free[slot].tolist()
    millis = [max(0, int(each)) for each in state.gpu_free[slot]]
    if request is not None:
        free = [have - amount for have, amount in zip(free, request.amounts, strict=True)]
        for gpu in gpus_in_mask(gpus):
            millis[gpu] -= request.milli
    return cost(shares, free[0], free[1], millis, state.models[state.model[slot]])


@given(st.lists(requests, min_size=1, max_size=8), st.lists(requests, max_size=12), requests)
@settings(max_examples=150, deadline=None)
def test_scores_are_the_formula(typical: list[Request], before: list[Request], request: Request) -> None:
    state = fleet()
    workload = Workload.declared(typical)
    shares = workload.shares()
    scorer = Scorer(state, workload)
    for index, each in enumerate(before):
        place(scorer, index, each)
    scores = scorer.scores(request)
    pressure = scorer.measure.pressure(state) if scorer.measure.constrained else np.zeros(len(state.models))
    for slot in range(state.size):
        free = [int(each) for each in state.gpu_free[slot]]
        large = [gpu for gpu in range(len(free)) if free[gpu] >= request.milli]
        fits = (state.free[slot] >= np.array(request.amounts)).all() and len(large) >= request.gpus
        if request.gpus and request.models:
            fits = fits and state.models[state.model[slot]] in request.models
        if not fits:
            assert scores[slot] == np.inf
            continue
        now = node_cost(state, shares, slot, None, 0)
        if request.milli < MILLI_PER_GPU:
            after = min(node_cost(state, shares, slot, request, 1 << gpu) for gpu in large)
        else:
            after = node_cost(state, shares, slot, request, mask(*large[: request.gpus]))
        price = float(pressure[state.model[slot]]) * request.total_milli
        # Ties between equals are worth less than three milli.
        assert after - now + price - 0.01 <= scores[slot] <= after - now + price + 3
        if request.milli < MILLI_PER_GPU:
            chosen = scorer.gpus(request, slot)
            assert node_cost(state, shares, slot, request, chosen) == pytest.approx(after, abs=0.01)


@given(st.integers(0, 10_000), st.sampled_from(get_args(Objective)))
@settings(max_examples=25, deadline=None)
def test_caches_follow_the_fleet(seed: int, objective: Objective) -> None:
    """After any changes, the scores are those of a scorer that starts anew."""
    rng = random.Random(seed)
    state = fleet()
    state.allow("set", [0, 1])
    workload = Workload.declared([Request((2000, 8), 1, 500), Request((6000, 8), 2), Request((1000, 1), 1)])
    scorer = Scorer(state, workload, objective)
    asked = [Request((1000, 1), 1, 250), Request((2000, 8), 2), Request((1000, 8)), Request((1000, 1), 1, nodes="set")]
    for step in range(60):
        what = rng.random()
        if what < 0.6:
            place(scorer, step, rng.choice(asked))
        elif what < 0.85 and state.bookings:
            state.release(rng.choice(sorted(state.bookings, key=str)))
        elif what < 0.9:
            state.allow("set", {rng.randrange(4): rng.random() < 0.5})
        elif what < 0.95:
            state.drop_node(rng.choice(sorted(state.slots)))
            state.put_node(Node(f"new{step}", (rng.choice([4000, 16000]), 40), rng.choice([0, 2, 4]), "V100"))
        request = rng.choice(asked)
        anew = Scorer(state, workload, objective)
        assert scorer.scores(request).tolist() == anew.scores(request).tolist()
        assert scorer.choose(request) == anew.choose(request)


def test_whole_machines_stay_whole() -> None:
    state = AllocationState(("cpu",))
    for index in range(4):
        state.put_node(Node(f"n{index}", (64000,), 8, "V100", of("v100-pcie-8").machine))
    small, large = Request((4000,), 1), Request((32000,), 8)
    scorer = Scorer(state, Workload.declared([small, small, large]))
    for index in range(6):
        place(scorer, index, small)
    assert sum(state.whole[:4] == 0xFF) == 3
    for index in range(3):
        assert place(scorer, ("large", index), large) is not None
    assert scorer.choose(large) is None


def test_gpus_are_not_left_without_cpu() -> None:
    """Pods without GPUs go where CPU is to spare, though FGD's measure sees no difference between the nodes."""
    state = AllocationState(("cpu",))
    state.put_node(Node("lean", (16000,), 4, "V100"))
    state.put_node(Node("rich", (64000,), 4, "V100"))
    scorer = Scorer(state, Workload.declared([Request((4000,), 1)]))
    choice = scorer.choose(Request((4000,)))
    assert choice is not None
    assert state.names[choice.node] == "rich"


def test_scarce_models_are_kept_for_those_that_need_them() -> None:
    state = AllocationState(("cpu",))
    state.put_node(Node("a", (64000,), 4, "T4"))
    state.put_node(Node("b", (64000,), 4, "V100"))
    constrained = Request((1000,), 1, models=frozenset({"T4"}))
    scorer = Scorer(state, Workload.declared([constrained, Request((1000,), 1)]))
    for index in range(4):
        choice = place(scorer, index, Request((1000,), 1))
        assert choice is not None
        assert choice.node == 1


def test_links_decide_among_nodes() -> None:
    state = AllocationState(("cpu",))
    for name in ("a", "b"):
        state.put_node(Node(name, (64000,), 8, "V100", of("v100-pcie-8").machine))
    scorer = Scorer(state)
    taken = {"a": mask(2, 3, 6, 7), "b": mask(4, 5, 6, 7)}
    for name, gpus in taken.items():
        for gpu in gpus_in_mask(gpus):
            state.book((name, gpu), Booking(state.slots[name], (1000,), 1 << gpu))
    preferred = scorer.choose(Request((1000,), 4, link="pcieSwitch"))
    assert preferred is not None
    assert (preferred.node, preferred.gpus) == (1, mask(0, 1, 2, 3))
    state.book("x", preferred.booking(Request((1000,), 4)))
    worse = scorer.choose(Request((1000,), 4, link="pcieSwitch"))
    assert worse is not None
    assert worse.node == 0
    assert scorer.choose(Request((1000,), 4, link="pcieSwitch", required=True)) is None


def test_objectives_come_before_fragmentation() -> None:
    """One machine has a socket free and is full then; on the empty one the four GPUs of a request are joined faster."""
    typical = [Request((1000,), 8)] * 9 + [Request((1000,), 4)]
    wanted, chosen = Request((1000,), 4), {}
    for objective in get_args(Objective):
        state = AllocationState(("cpu",))
        for name, machine in (("half", "v100-pcie-8"), ("fast", "dgx1-v100"), ("idle", "v100-pcie-8")):
            state.put_node(Node(name, (64000,), 8, "V100", of(machine).machine))
        state.book("x", Booking(0, (1000,), mask(0, 1, 2, 3)))
        state.book("y", Booking(1, (1000,), mask(7)))
        choice = Scorer(state, Workload.declared(typical), objective).choose(wanted)
        assert choice is not None
        chosen[objective] = state.names[choice.node]
    assert chosen == {"pack": "half", "links": "fast", "spread": "idle"}


def test_choices_can_be_narrowed() -> None:
    state = fleet()
    state.allow("second", [1])
    scorer = Scorer(state)
    first = np.zeros(len(state.free), np.bool_)
    first[0] = True
    one = scorer.choose(Request((1000, 1), 1, nodes="second"))
    other = scorer.choose(Request((1000, 1), 1), feasible=first)
    assert one is not None
    assert other is not None
    assert (one.node, other.node) == (1, 0)
    assert scorer.choose(Request((1000, 1), 1, nodes="second"), feasible=first) is None


def test_the_workload_is_learnt_and_forgotten() -> None:
    small, large = Request((1,), 1), Request((1,), 8)
    workload = Workload(half_life=10)
    for _ in range(100):
        workload.add(small)
    for _ in range(10):
        workload.add(large)
    assert workload.shares()[large] == pytest.approx(0.5, abs=0.01)
    for _ in range(1000):
        workload.add(large)
    assert workload.shares()[large] == pytest.approx(1.0)
    assert distance({small: 1.0}, {large: 1.0}) == 1.0
    scorer = Scorer(fleet())
    assert scorer.measure.empty
    for _ in range(3):
        scorer.learn(Request((1000, 1), 1))
    assert not scorer.measure.empty


def test_various_amounts_are_rounded_up() -> None:
    """The table of amounts stays small; what it says fits does fit."""
    rng = random.Random(5)
    asked = {Request((rng.randrange(10**6), rng.randrange(10**6), 1), 1): 1 / 400 for _ in range(400)}
    measure = Measure(asked, 3)
    free = np.array([[rng.randrange(10**6), rng.randrange(10**6), 1] for _ in range(50)])
    exact = [sum(all(a <= f for a, f in zip(each.amounts, row, strict=True)) for each in asked) / 400 for row in free]
    found = measure.chances(free, np.zeros(50, np.int16), ["V100"])[:, 0]
    assert (found <= np.array(exact) + 1e-9).all()
    assert np.abs(found - exact).max() < 0.05


@pytest.mark.parametrize("objective", get_args(Objective))
def test_pods_without_cpu_and_gpus_leave_places_on_every_node(objective: Objective) -> None:
    state = AllocationState(("cpu", "memory", "pods"))
    for name, cpu in (("busy", 1000), ("idle", 4000), ("large", 8000)):
        state.put_node(Node(name, (cpu, 32, 200 if name == "large" else 100), 0, ""))
    scorer = Scorer(state, objective=objective)
    for number in range(40):
        assert place(scorer, number, Request((0, 0, 1))) is not None
    assert (state.capacity[:3, 2] - state.free[:3, 2]).tolist() == [10, 10, 20]
    for number in range(40, 48):
        assert place(scorer, number, Request((0, 4, 1))) is not None
    assert (32 - state.free[:3, 1]).tolist() == [12, 12, 8]
