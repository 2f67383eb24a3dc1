"""A pipeline on one cluster and its service on another: two control planes that have only git and a store in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery.test_killed import ANALYSED
from tests.delivery.world import DATASET, PIPELINE, PLATFORM, World
from tests.serving.prometheus import Prometheus
from tests.serving.world import node
from tools.controlplane import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("delivery")]
DAEMONS = "daemons: {serving: true, delivery: true}"
CLUSTER, TEAM = PLATFORM.split("---\n")
FILES = {
    "train.yaml": CLUSTER.replace("name: main", "name: train").replace(DAEMONS, "daemons: {delivery: true}"),
    "serve.yaml": CLUSTER.replace("name: main", "name: serve"),
    "team.yaml": TEAM,
    "dataset.yaml": DATASET,
    "web.yaml": ANALYSED.replace("spec:\n", "spec:\n  cluster: serve\n", 1),
    "digits.yaml": PIPELINE.replace("spec:\n", "spec:\n  cluster: train\n", 1),
}
ROLL_BACKS = ("web: roll back to the version that runs", "web: roll digits back to version 2")


@pytest.fixture(scope="module")
def other_plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    """A plane beside that of the other tests."""
    users = {"member": ("tenants",)}
    with ControlPlane(controller_manager=True, scheduler=True, kwok=True, users=users) as plane:
        with plane.client() as kube:
            node(kube, "node-0")
        yield plane


@pytest.fixture
def serve(world: World, other_plane: ControlPlane, tmp_path: Path, s3: str) -> Iterator[World]:
    """The cluster that serves, beside `world`, which trains."""
    (tmp_path / "serve").mkdir()
    with other_plane.client() as kube:
        made = World(other_plane, kube, world.team, tmp_path / "serve", s3, "serve", world.remote)
        yield made
        made.stop()


def test_trained_here_and_served_there(world: World, serve: World) -> None:
    prometheus, world.cluster = Prometheus(), "train"
    serve.serving_options = ["--prometheus", prometheus.url]
    world.kubelet.instead = lambda pod: (0, '{"accuracy": 0.9}')
    world.commit(FILES)
    world.launch("delivery")
    serve.launch("serving", "delivery")
    world.until(lambda: world.state().primed)
    serve.until(lambda: serve.runs() == {"1": 4})
    world.new_version("v2")
    world.until(lambda: world.ended(1))  # it publishes the version that is served
    assert world.state().reason == "Deployed"
    # The service runs the new version, but nothing has recorded that yet: the pipeline does not claim it.
    serve.kill("delivery")
    world.new_version("v3")
    serve.until(lambda: serve.runs() == {"2": 4})
    assert (world.served(), world.state().phase) == ("2", "rolling")
    serve.start("delivery")
    world.until(lambda: world.ended(2))
    assert world.state().reason == "Deployed"
    # A version that the canary rejects: git is set back once, whichever daemon is the first.
    prometheus.other = 5.0
    world.new_version("v4")
    world.until(lambda: world.ended(3))
    assert world.state().reason == "RolledBack"
    world.until(lambda: world.served() == "2")
    assert sum(world.log_of_git().count(each) for each in ROLL_BACKS) == 1
    assert serve.runs() == {"2": 4}
    # Nothing of the service is on the cluster that trains, and nothing of the training on the other one.
    assert world.kube.list("apps/v1", "Deployment", world.team) == []
    assert serve.kube.list("batch/v1", "CronJob", world.team) == []
    prometheus.close()
