"""The plane that the tests of plans share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plan.arena import Arena
from tools.controlplane import ControlPlane


@pytest.fixture(scope="package")
def _plane(control_plane_binaries: None) -> Iterator[tuple[ControlPlane, Arena]]:
    users = {"reader": ["readers"], "nobody": ["nobodies"]}
    with ControlPlane(controller_manager=True, kwok=True, users=users) as plane, plane.client() as kube:
        yield plane, Arena(plane, kube)


@pytest.fixture
def plane(_plane: tuple[ControlPlane, Arena]) -> ControlPlane:
    """A control plane with the users `reader` and `nobody`."""
    return _plane[0]


@pytest.fixture
def arena(_plane: tuple[ControlPlane, Arena]) -> Iterator[Arena]:
    """Teams on that plane; pods and machines are removed after each test."""
    yield _plane[1]
    _plane[1].clear()
    _plane[1].unfurnish()
