"""One plane with machines for all tests of the serving daemon."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.definitions import define_routes, define_scaling
from tests.serving.world import World, node
from tools.controlplane import ControlPlane


@pytest.fixture(scope="package")
def serving_plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    """A plane with the controller manager, Kubernetes' scheduler, two machines, HTTPRoutes and ScaledObjects."""
    users = {"member": ("tenants",)}  # of every team
    with ControlPlane(controller_manager=True, scheduler=True, kwok=True, users=users) as plane:
        with plane.client() as kube:
            define_routes(kube)
            define_scaling(kube)
            for number in range(2):
                node(kube, f"node-{number}")
        yield plane


@pytest.fixture
def world(serving_plane: ControlPlane, tmp_path: Path) -> Iterator[World]:
    """A team of its own, and no daemon so far."""
    with serving_plane.client() as kube:
        world = World(serving_plane, kube, f"team-{uuid.uuid4().hex[:8]}", tmp_path)
        yield world
        world.stop()
        # The namespace stays for some seconds; the next test's daemon must not go on with a rollout in it.
        for each in kube.list("apps/v1", "Deployment", world.team):
            kube.delete("apps/v1", "Deployment", each["metadata"]["name"], world.team)
        kube.delete("v1", "Namespace", world.team)
