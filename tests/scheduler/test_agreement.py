"""Where kube-scheduler finds no node neither do we, and the node that we choose passes its filters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.agreement import compare
from benchmarks.clusters import running
from tools.controlplane import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]


@pytest.mark.parametrize(("seed", "sets"), [(7, 100), pytest.param(2026, 2000, marks=pytest.mark.slow)])
def test_random_sets(new_plane: Callable[..., ControlPlane], seed: int, sets: int) -> None:
    plane = new_plane()
    with running(plane, "kube-scheduler"), running(plane, "avactl"):
        found = compare(plane, seed, sets)
    assert not found.differences
    # Both answers must be frequent, and few sets of no use.
    assert min(found.outcomes["a node"], found.outcomes["no node"]) > sets // 4
    assert found.outcomes["refused by the API server"] < sets // 20
