"""The cluster that tests of reconciling share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reconcile.world import World
from tools.controlplane import ControlPlane


@pytest.fixture(scope="package")
def _plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    with ControlPlane(controller_manager=True) as plane:
        yield plane


@pytest.fixture
def world(_plane: ControlPlane, tmp_path: Path) -> Iterator[World]:
    """A repository of the test's own, and the cluster without what tests before have put there."""
    with _plane.client() as kube:
        world = World(_plane, kube, tmp_path)
        yield world
        world.end()
