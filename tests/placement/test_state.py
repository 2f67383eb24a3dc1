"""Bookings: never twice, always back to where it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.hardware.placement.allocation import MAX_GPUS, MILLI_PER_GPU, AllocationState, Booking, BookingError, Node
from avactl.hardware.placement.request import Request

ARRAYS = ("free", "gpu_free", "gpu_total", "whole", "model_free")


def small() -> AllocationState:
    state = AllocationState(("cpu", "memory"), ("rack",))
    state.put_node(Node("a", (8000, 64), 4, "V100", domains=("r1",)))
    state.put_node(Node("b", (8000, 64), 2, "A100", domains=("r2",)))
    state.put_node(Node("c", (4000, 64), domains=("r1",)))
    return state


def picture(state: AllocationState) -> list[object]:
    return [getattr(state, name).tolist() for name in ARRAYS] + [
        dict(state.bookings),
        [set(keys) for keys in state.held],
    ]


@pytest.mark.parametrize(
    ("booking", "words"),
    [
        (Booking(0, (9000, 1)), "a has too little cpu"),
        (Booking(0, (1000, 65)), "a has too little memory"),
        (Booking(0, (1000, 1), 0b1), "GPU 0 of a has less than 1000 milli"),
        (Booking(0, (1000, 1), 0b10000), "GPU 4 of a has less than"),
        (Booking(2, (1000, 1), 0b1), "GPU 0 of c has less than"),
        (Booking(3, (1000, 1)), "no node in slot 3"),
        (Booking(0, (1000, 1), 0b10, 0), "0 milli"),
    ],
)
def test_nothing_is_given_twice(booking: Booking, words: str) -> None:
    state = small()
    state.book("first", Booking(0, (1000, 1), 0b1, 500))
    before = picture(state)
    with pytest.raises(BookingError, match=words):
        state.book("second", booking)
    assert picture(state) == before


def test_keys_hold_once() -> None:
    state = small()
    state.book("x", Booking(0, (1, 1)))
    with pytest.raises(BookingError, match="already booked on a"):
        state.book("x", Booking(1, (1, 1)))
    state.release("x")
    with pytest.raises(BookingError, match="has no booking"):
        state.release("x")


def test_pods_that_run_already_may_overcommit_amounts_never_gpus() -> None:
    state = small()
    state.book("static", Booking(0, (9000, 1), 0b1), forced=True)
    assert state.free[0, 0] == -1000
    with pytest.raises(BookingError):
        state.book("again", Booking(0, (0, 0), 0b1), forced=True)


def test_a_faulty_gpu_is_given_to_nobody_else() -> None:
    state = small()
    state.book("old", Booking(0, (1000, 1), 0b11))
    state.put_node(Node("a", (4000, 64), 4, "H100", faulty=0b110))
    assert (state.gpu_count[0], state.whole[0], state.gpu_total[0]) == (2, 0b1000, MILLI_PER_GPU)
    with pytest.raises(BookingError, match="GPU 2"):
        state.book("new", Booking(0, (1, 1), 0b100))
    mark = state.mark()
    state.release("old")
    assert (state.whole[0], state.gpu_total[0]) == (0b1001, 2 * MILLI_PER_GPU), "one of the two was faulty"
    state.rollback(mark)
    assert (state.whole[0], state.bookings["old"].gpus) == (0b1000, 0b11)
    assert state.emptied().whole[0] == 0b1111, "it will be repaired"
    state.put_node(Node("a", (4000, 64), 4, "H100"))
    assert (state.gpu_count[0], state.whole[0], state.gpu_total[0]) == (4, 0b1100, 2 * MILLI_PER_GPU)


def test_nodes_change_under_their_bookings() -> None:
    state = small()
    state.book("x", Booking(0, (1000, 1), 0b10))
    assert state.put_node(Node("a", (4000, 64), 4, "H100", faulty=0b1)) == 0
    assert (state.free[0, 0], state.whole[0], state.gpu_total[0]) == (3000, 0b1100, 2 * MILLI_PER_GPU)
    with pytest.raises(BookingError, match=r"GPUs \(1,\) are booked"):
        state.put_node(Node("a", (4000, 64), 1, "H100"))
    assert state.drop_node("a") == ["x"]
    assert not state.bookings
    assert state.model_free.tolist() == [0, 2 * MILLI_PER_GPU, 0, 0]
    assert state.put_node(Node("d", (1, 1), 1, "V100")) == 0


def test_slots_grow() -> None:
    state = small()
    state.allow("some", [0, 2])
    for index in range(200):
        state.put_node(Node(f"n{index}", (index + 1, 1), 1, "V100", domains=(f"r{index % 3}",)))
    assert state.size == 203
    assert state.free[202].tolist() == [200, 1]
    assert state.gpu_total.sum() == MILLI_PER_GPU * 206
    assert np.flatnonzero(state.allowed["some"]).tolist() == [0, 2]
    assert state.domains[:3, 0].tolist() == [0, 1, 0]


def test_shares_are_of_one_gpu() -> None:
    with pytest.raises(ValueError, match="shares are of one GPU"):
        Request((1,), 2, 500)


actions = st.lists(
    st.tuples(
        st.sampled_from(["book", "release", "mark", "rollback", "keep"]),
        st.integers(0, 9),
        st.integers(0, 2),
        st.integers(0, 4000),
        st.integers(0, 15),
        st.sampled_from([250, 500, 1000]),
    ),
    max_size=40,
)


@given(actions)
@settings(max_examples=200, deadline=None)
def test_the_books_always_balance(steps: list[tuple[str, int, int, int, int, int]]) -> None:
    state = small()
    marks: list[tuple[int, list[object]]] = []
    for action, key, node, cpu, gpus, milli in steps:
        if action == "mark":
            marks.append((state.mark(), picture(state)))
        elif action == "rollback" and marks:
            mark, before = marks.pop()
            state.rollback(mark)
            assert picture(state) == before
        elif action == "keep" and marks:
            state.keep(marks.pop()[0])
        try:
            if action == "book":
                state.book(key, Booking(node, (cpu, 1), gpus, milli))
            elif action == "release":
                state.release(key)
        except BookingError:
            pass
    fresh = small()
    for holder, booking in state.bookings.items():
        fresh.book(holder, booking)
    assert picture(fresh) == picture(state)
    assert ((state.gpu_free <= MILLI_PER_GPU) & (state.gpu_free >= -1)).all()
    assert state.gpu_free.shape[1] == MAX_GPUS


def test_a_copy_is_independent() -> None:
    state = small()
    other = state.copy()
    other.book("x", Booking(0, (1000, 1), 0b11))
    other.put_node(Node("d", (1, 1), 1, "H100"))
    assert picture(state) == picture(small())
    assert "H100" not in state.models
