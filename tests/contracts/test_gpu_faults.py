"""The message of a node condition that carries faults of GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avactl.contracts.gpu_faults import MAX_FAULTS, GpuFault, parse_faults, render_faults

FAULTS = st.lists(
    st.builds(GpuFault, st.none() | st.integers(0, 15), st.booleans(), st.text(min_size=1, max_size=200)),
    min_size=1,
    max_size=MAX_FAULTS,
)


@given(FAULTS)
def test_what_is_written_is_read(faults: list[GpuFault]) -> None:
    read = parse_faults(render_faults(faults))
    assert [fault[:2] for fault in read] == [fault[:2] for fault in faults]
    assert parse_faults(render_faults(read)) == read


@pytest.mark.parametrize(
    "message", ["", "fallen off the bus", "GPU 16 NoExecute: x", "GPU 3 Evict: x", "GPU -1 NoExecute: x", "\x00" * 9999]
)
def test_what_is_not_understood_is_a_fault_of_the_machine(message: str) -> None:
    (fault,) = parse_faults(message)
    assert (fault.gpu, fault.evict) == (None, False)


@given(st.text(max_size=5000))
def test_any_text_is_read(message: str) -> None:
    assert 1 <= len(parse_faults(message)) <= MAX_FAULTS
