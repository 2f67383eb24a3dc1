"""The table of the expected workload."""

from __future__ import annotations

import numpy as np

from avactl.hardware.placement.fragmentation import Measure
from avactl.hardware.placement.request import Request


def test_many_resources_cost_no_cell_each() -> None:
    """Every kind of node brings resources of its own; a table has 8,192 cells and numpy 64 dimensions."""
    plain = Measure({Request((1000, 1 << 30, 1), 1): 1.0}, 3)
    wide = Measure({Request((1000, 1 << 30, 1, *(0,) * 130), 1): 1.0}, 133)
    free = np.array([[500, 1 << 31, 5], [4000, 1 << 31, 5]])
    more = np.concatenate([free, np.zeros((2, 130), np.int64)], 1)
    model = np.zeros(2, np.int16)
    assert plain.chances(free, model, [""]).tolist() == wide.chances(more, model, [""]).tolist() == [[0.0], [1.0]]
    asked = Measure(
        {Request(tuple(1 if each == column else 0 for each in range(90)), 1): 1.0 for column in range(90)}, 90
    )
    assert asked.chances(np.ones((1, 90), np.int64), model[:1], [""]).shape == (1, 1)
