"""Rollouts of groups of pods by the real controller of LeaderWorkerSets; kwok plays the machines."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.definitions import define_routes, define_scaling
from tests.kinds.compiling import compiled
from tests.serving.group_world import API, CANARY, KIND, GroupWorld, add_machines, begin, fail_job, killed
from tools.controlplane import ApiError, ControlPlane
from tools.leaderworkerset import LeaderWorkerSets
from tools.programs import require_programs

# Its controller takes three minutes to build: too long for the first run of `make test`.
pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("leaderworkerset")]


@pytest.fixture(scope="module")
def groups_plane(control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    require_programs("openssl", purpose="webhooks of LeaderWorkerSets")
    users = {"member": ("tenants",)}
    with (
        ControlPlane(controller_manager=True, scheduler=True, kwok=True, users=users) as plane,
        plane.client() as kube,
        LeaderWorkerSets(plane, kube, tmp_path_factory.mktemp("groups")),
    ):
        define_routes(kube)
        define_scaling(kube)
        add_machines(kube)
        yield plane


@pytest.fixture
def world(groups_plane: ControlPlane, tmp_path: Path) -> Iterator[GroupWorld]:
    with groups_plane.client() as kube:
        world = GroupWorld(groups_plane, kube, f"team-{uuid.uuid4().hex[:8]}", tmp_path)
        world.options = ["--groups"]
        yield world
        world.stop()
        for each in kube.list(API, KIND, world.team):
            kube.delete(API, KIND, each["metadata"]["name"], world.team)
        kube.delete("v1", "Namespace", world.team)


def test_a_new_version_takes_over_in_steps(world: GroupWorld) -> None:
    begin(world)
    before = world.route_version()
    world.deploy(world.service(2, CANARY))

    def promoted() -> bool:
        weights, ready = world.weights_and_ready("HTTPRoute")
        assert all(ready.get(each) for found in weights for each, weight in found.items() if weight), (weights, ready)
        assert sum(ready.values()) >= 3
        return world.settled("2")

    world.until(promoted)
    # Steps of a second pass between two looks at a route on a busy machine: the API server tells them all.
    assert {0, 25, 50} <= set(world.weights_since(before, "2"))
    world.until(lambda: world.condition()[:2] == ("True", "Stable"))
    assert world.reasons()[-1] == "RolloutPromoted"
    world.until(lambda: len(world.version_services()) == 1)
    # Rolling again, and back, replaces no group.
    leaders = world.leaders()
    found = compiled(world.platform.replace("TEAM", world.team) + world.service(2, "{rolling: {}}")).manifests
    (groups,) = [each.body for each in found if each.kind == KIND]
    world.kube.apply(groups, field_manager="avactl")
    metadata = {"name": "web", "namespace": world.team, "annotations": {"avactl.dev/rollout": None}}
    world.kube.patch({"apiVersion": API, "kind": KIND, "metadata": metadata})
    world.until(lambda: not world.version_services() and not world.state())
    assert (world.partition(), world.leaders()) == (0, leaders)


def test_a_version_that_fails_its_job_is_rolled_back(world: GroupWorld) -> None:
    fail_job(world)


def test_killed_at_a_few_points(world: GroupWorld) -> None:
    killed(world, kills=8, seed=7)


def test_of_pods_the_daemon_deletes_leaders_only(world: GroupWorld) -> None:
    begin(world)
    pods = [each["metadata"]["name"] for each in world.kube.list("v1", "Pod", world.team)]
    worker = next(name for name in pods if name not in world.leaders())
    with world.plane.client(world.plane.service_account_token("avactl-system", "avactl-serving", 600)) as daemon:
        with pytest.raises(ApiError, match="deletions"):
            daemon.delete("v1", "Pod", worker, world.team)
        body = {"apiVersion": API, "kind": KIND, "metadata": {"name": "web", "namespace": world.team}}
        with pytest.raises(ApiError, match="groups"):
            daemon.patch({**body, "spec": {"replicas": 9}})
