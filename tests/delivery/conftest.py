"""One plane with machines for all tests of the delivery daemon."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.datasets.conftest import bucket, environment, s3  # noqa: F401 - fixtures
from tests.delivery.world import World
from tests.serving.world import node
from tools.controlplane import ControlPlane


@pytest.fixture(scope="package")
def delivery_plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    """A plane with the controller manager, Kubernetes' scheduler, and two machines."""
    with ControlPlane(controller_manager=True, scheduler=True, kwok=True, users={"member": ("tenants",)}) as plane:
        with plane.client() as kube:
            for number in range(2):
                node(kube, f"node-{number}")
        yield plane


@pytest.fixture
def world(delivery_plane: ControlPlane, tmp_path: Path, s3: str, bucket: str) -> Iterator[World]:  # noqa: F811
    """A team of its own, and nothing that runs."""
    yield from run_world(delivery_plane, tmp_path, s3)


def run_world(plane: ControlPlane, tmp_path: Path, s3: str) -> Iterator[World]:  # noqa: F811
    """Yield a world, and remove what it leaves."""
    with plane.client() as kube:
        world = World(plane, kube, f"team-{uuid.uuid4().hex[:8]}", tmp_path, s3)
        yield world
        world.stop()
        own = ("pipeline.TEAM.digits", "pipeline-state.TEAM.digits", "rollback.TEAM.web")
        promotion = ("promotion.TEAM.web", "promotion-state.TEAM.web", "health-report.TEAM.web.target")
        for name in (each.replace("TEAM", world.team) for each in (*own, *promotion)):
            if kube.find("v1", "ConfigMap", name, "avactl-system"):
                kube.delete("v1", "ConfigMap", name, "avactl-system")
        if kube.find("v1", "Namespace", world.team):
            for each in kube.list("apps/v1", "Deployment", world.team):
                kube.delete("apps/v1", "Deployment", each["metadata"]["name"], world.team)
            kube.delete("v1", "Namespace", world.team)
