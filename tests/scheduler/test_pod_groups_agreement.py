"""Of random PodGroups, avactl starts those that kube-scheduler starts, and all that can; by their conditions, too."""

from __future__ import annotations

import pytest

from benchmarks.pod_groups import both_running, compare
from tools.controlplane.build import KUBERNETES_MINOR

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.xdist_group("scheduler"),
    pytest.mark.skipif(KUBERNETES_MINOR == "1.36", reason="Kubernetes 1.36 does not serve PodGroups v1beta1"),
]


@pytest.mark.parametrize(("seed", "sets"), [(7, 50), pytest.param(2026, 500, marks=pytest.mark.slow)])
def test_random_pod_groups(control_plane_binaries: None, seed: int, sets: int) -> None:
    with both_running() as plane:
        found = compare(plane, seed, sets)
    assert not found.differences
    # Both answers must be frequent, and those rare that only one of them finds.
    assert min(found.outcomes["placed"], found.outcomes["not placed"]) > sets // 5
    assert found.outcomes["only avactl places it"] < sets // 10
