"""Why not: every node counted once, in words that a person can act on, at once."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.hardware.placement.allocation import MILLI_PER_GPU, AllocationState, Booking, Node
from avactl.hardware.placement.diagnosis import Cause, Lack, fits_empty, gang_message, pod_message, why_gang, why_pod
from avactl.hardware.placement.gang import Gang, GangRole, place_gang
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer
from tests.kinds.test_hardware import of
from tests.work import calls

H100 = frozenset({"H100"})


def fleet() -> AllocationState:
    """Block b1 with four machines of which one is busy, b2 with two, and two other nodes."""
    state = AllocationState(("cpu", "memory"), ("block",))
    for index in range(6):
        state.put_node(Node(f"h{index}", (64000, 512), 8, "H100", domains=("b1" if index < 4 else "b2",)))
    state.put_node(Node("v", (64000, 512), 8, "V100", of("v100-pcie-8").machine))
    state.put_node(Node("cpu", (64000, 512)))
    state.book("busy", Booking(0, (8000, 64), 0b11111))
    return state


def words(state: AllocationState, request: Request) -> str:
    return pod_message(why_pod(state, request))


def test_a_gang_is_told_which_block_comes_nearest() -> None:
    state = fleet()
    gang = Gang((GangRole("worker", Request((32000, 64), 8, models=H100), 4),), within="block")
    reason = why_gang(state, gang)
    assert reason is not None
    assert reason.ever
    assert [(each.name, each.room) for each in reason.domains] == [("b1", 3), ("b2", 2)]
    assert gang_message(reason) == "needs 4 machines with 8 free H100 in one block; block b1 has 3, block b2 has 2"


def test_a_gang_that_can_never_fit_is_told_so() -> None:
    reason = why_gang(fleet(), Gang((GangRole("worker", Request((1000, 1), 2, models=H100), 30),)))
    assert reason is not None
    assert gang_message(reason) == (
        "needs capacity for 30 pods with 2 free H100; only 21 available; "
        "the cluster is too small for it even if it is empty"
    )
    assert why_gang(fleet(), Gang((GangRole("worker", Request((1000, 1), 2, models=H100), 21),))) is None


def test_servers_without_gpus_have_reasons_too() -> None:
    gang = Gang((GangRole("worker", Request((1000, 1), 1), 1), GangRole("server", Request((60000, 1)), 9)))
    reason = why_gang(fleet(), gang)
    assert reason is not None
    assert gang_message(reason).startswith("needs capacity for 9 pods; only 7 available; the cluster is too small")


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            Request((70000, 1)),
            "fits on none of 8 nodes: 8 are too small (too little cpu); no node is large enough even if it is empty",
        ),
        (
            Request((1000, 1), 1, models=frozenset({"A100"})),
            "fits on none of 8 nodes: 8 have no A100; no node is suitable even if it is empty",
        ),
        (
            Request((1000, 1), 9),
            "fits on none of 8 nodes: 8 are too small (at most 8 GPUs); no node is large enough even if it is empty",
        ),
        (Request((60000, 1), 8, models=H100), "fits on 5 of 8 nodes"),
    ],
)
def test_words(request_: Request, text: str) -> None:
    assert words(fleet(), request_) == text


def test_every_lack_has_its_words() -> None:
    state = fleet()
    for index in range(1, 6):
        state.book(index, Booking(index, (62000, 64), 0b1))
    for gpu in (0, 1, 2, 4, 5):
        state.book(("v", gpu), Booking(6, (0, 0), 1 << gpu, 600))
    state.allow("tolerated", [0, 1, 6])
    assert words(state, Request((3000, 1), 4, models=H100)) == (
        "fits on none of 8 nodes: 5 have too little cpu left, 2 have no H100, 1 has fewer than 4 free H100 (at most 3)"
    )
    assert words(state, Request((3000, 1), 3, link="socket", required=True, nodes="tolerated")) == (
        "fits on none of 8 nodes: 5 are excluded (selector, affinity, taints, cordon), "
        "2 have no 3 GPUs that are known to have link socket, 1 has no 3 free GPUs with link socket"
    )
    assert words(state, Request((3000, 1), 3, models=frozenset({"V100"}), link="socket", required=True)) == (
        "fits on none of 8 nodes: 7 have no V100, 1 has no 3 free V100 with link socket"
    )
    for gpu in (3, 6, 7):
        state.book(("v", gpu), Booking(6, (0, 0), 1 << gpu, 600))
    assert words(state, Request((0, 0), 1, 500, frozenset({"V100"}))) == (
        "fits on none of 8 nodes: 7 have no V100, 1 has no V100 with 0.5 free"
    )
    assert words(state, Request((0, 600), 1, nodes="tolerated")) == (
        "fits on none of 8 nodes: 5 are excluded (selector, affinity, taints, cordon), "
        "3 are too small (too little memory); no node is large enough even if it is empty"
    )


def test_links_that_no_machine_has_are_not_called_a_lack_of_size() -> None:
    state = AllocationState(("cpu",))
    state.put_node(Node("v", (64000,), 8, "V100", of("v100-pcie-8").machine))
    state.put_node(Node("nobody-knows-its-links", (64000,), 8, "V100"))
    state.put_node(Node("cpu", (64000,)))
    assert words(state, Request((1,), 6, link="socket", required=True)) == (
        "fits on none of 3 nodes: 2 have no 6 GPUs that are known to have link socket, 1 has no GPUs; "
        "no node is suitable even if it is empty"
    )
    gang = Gang((GangRole("w", Request((1,), 2, link="pcieSwitch", required=True), 4),))
    assert why_gang(state, gang) is None
    state.book("one", Booking(0, (0,), 1))
    reason = why_gang(state, gang)
    assert reason is not None
    assert gang_message(reason) == "needs capacity for 4 pods with 2 free GPUs and link pcieSwitch; only 3 available"


def test_a_node_in_no_rack_is_not_called_a_rack() -> None:
    state = AllocationState(("cpu",), ("example.com/rack",))
    state.put_node(Node("a", (4,), 8, domains=("r1",)))
    state.put_node(Node("b", (4,), 8))
    reason = why_gang(state, Gang((GangRole("w", Request((1,), 8), 2),), within="example.com/rack"))
    assert reason is not None
    assert "in one rack; b (without label example.com/rack) has 1, rack r1 has 1" in gang_message(reason)


def test_roles_that_fit_in_no_domain_together() -> None:
    state = AllocationState(("cpu",), ("example.com/rack",))
    state.put_node(Node("a", (4,), 8, domains=("r1",)))
    state.put_node(Node("b", (40,)))
    roles = GangRole("worker", Request((1,), 8), 1), GangRole("server", Request((32,)), 1)
    reason = why_gang(state, Gang(roles, within="example.com/rack"))
    assert reason is not None
    assert gang_message(reason) == (
        "needs capacity for 1 pods in one rack; b (without label example.com/rack) has 1, where the gang's other pods "
        "do not fit; no rack takes all of them even if it is empty"
    )
    # Room that others use now.
    state.put_node(Node("a", (64,), 8, domains=("r1",)))
    state.book("other", Booking(0, (40,), 0))
    reason = why_gang(state, Gang(roles, within="example.com/rack"))
    assert reason is not None
    assert gang_message(reason).endswith("has 1, where the gang's other pods do not fit")


def test_roles_that_are_too_much_together() -> None:
    """Each role alone has room; whether they ever do together, the empty fleet says."""
    state = AllocationState(("cpu",))
    for name in ("a", "b"):
        state.put_node(Node(name, (4,), 8))
    state.book("runs", Booking(1, (1,), 1))
    roles = GangRole("worker", Request((1,), 8), 1), GangRole("server", Request((1,), 4), 3)
    assert why_gang(state, Gang(roles)) is None
    assert place_gang(Scorer(state), "x", Gang(roles)) is None
    assert fits_empty(state, Gang(roles)) is False
    fewer = Gang((roles[0], GangRole("server", Request((1,), 4), 2)))
    assert place_gang(Scorer(state), "x", fewer) is None
    assert fits_empty(state, fewer) is True
    assert list(state.bookings) == ["runs"]


def test_shares_where_there_are_no_gpus() -> None:
    state = AllocationState(("cpu",))
    state.put_node(Node("cpu", (4,)))
    assert words(state, Request((1,), 1, 500)) == (
        "fits on none of 1 node: 1 has no GPUs; no node is suitable even if it is empty"
    )


def test_an_empty_fleet_has_an_answer() -> None:
    state = AllocationState(("cpu",))
    assert pod_message(why_pod(state, Request((1,), 1))) == "there are no nodes"
    reason = why_gang(state, Gang((GangRole("w", Request((1,), 1), 1),)))
    assert reason is not None
    assert "only 0 available" in gang_message(reason)
    assert Scorer(state).choose(Request((1,), 1)) is None


@given(st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_counts_are_whole_and_agree_with_the_choice(seed: int) -> None:
    rng = random.Random(seed)
    state = fleet()
    for slot in range(7):
        for gpu in range(8):
            if state.gpu_free[slot, gpu] == MILLI_PER_GPU and rng.random() < 0.7:
                state.book(
                    (slot, gpu), Booking(slot, (rng.randrange(7000), 1), 1 << gpu, rng.choice([300, MILLI_PER_GPU]))
                )
    state.allow("some", [slot for slot in range(8) if rng.random() < 0.5])
    gpus, milli = rng.choice([(0, MILLI_PER_GPU), (1, 800), (1, MILLI_PER_GPU), (2, MILLI_PER_GPU), (3, MILLI_PER_GPU)])
    request = Request(
        (rng.choice([1000, 40000]), 1),
        gpus,
        milli,
        rng.choice([frozenset(), H100]),
        rng.choice([None, "some"]),
        "socket",
        rng.random() < 0.5,
    )
    reason = why_pod(state, request)
    scores = Scorer(state).scores(request)
    assert reason.fitting == int(np.isfinite(scores).sum())
    assert reason.fitting + sum(cause.nodes for cause in reason.causes) == reason.nodes == 8
    gang = Gang((GangRole("w", request, rng.randrange(1, 9)),), rng.choice([None, "block"]))
    assert (why_gang(state, gang) is None) == (place_gang(Scorer(state), "x", gang) is not None)


def test_reasons_are_quick() -> None:
    """5,000 nodes are looked at as arrays, not one by one."""
    state = AllocationState(("cpu",), ("block",))
    for index in range(5000):
        slot = state.put_node(Node(f"n{index}", (64000,), 8, "H100", domains=(index // 100,)))
        state.book(index, Booking(slot, (1000,), 1))
    gang = Gang((GangRole("w", Request((1000,), 8), 10),), within="block")
    assert calls(lambda: why_gang(state, gang)) < 1000
    reason = why_gang(state, gang)
    assert reason is not None
    assert reason.pod.causes == (Cause(Lack.GPUS, 5000, 7),)
