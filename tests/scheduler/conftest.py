"""The cluster that tests of the scheduler share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scheduler.world import World
from tools.controlplane import ControlPlane


@pytest.fixture(scope="package")
def _world(control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ControlPlane(controller_manager=True, kwok=True) as plane, plane.client() as kube:
        yield World(plane, kube, tmp_path_factory.mktemp("scheduler"))


@pytest.fixture
def world(_world: World) -> Iterator[World]:
    """Machines, pods and daemons of one test."""
    _world.begin()
    yield _world
    _world.end()
