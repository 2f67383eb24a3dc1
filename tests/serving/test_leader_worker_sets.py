"""Rollouts of groups of pods by the real controller of LeaderWorkerSets; kwok plays the machines.

Of services with prefill and decode pods, the tests play the gateway and the pickers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.definitions import define_pools, define_routes, define_scaling
from tests.kinds.compiling import compiled
from tests.serving.group_world import (
    API,
    CANARY,
    KIND,
    MEASURED,
    GroupWorld,
    RolesWorld,
    add_machines,
    begin,
    fail_job,
    killed,
)
from tests.serving.test_validation import end, job
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
        define_pools(kube)
        add_machines(kube)
        yield plane


@pytest.fixture
def world(groups_plane: ControlPlane, tmp_path: Path) -> Iterator[GroupWorld]:
    with groups_plane.client() as kube:
        world = GroupWorld(groups_plane, kube, f"team-{uuid.uuid4().hex[:8]}", tmp_path)
        world.options = ["--groups"]
        yield world
        _clear(world)


@pytest.fixture
def roles(groups_plane: ControlPlane, tmp_path: Path) -> Iterator[RolesWorld]:
    with groups_plane.client() as kube:
        world = RolesWorld(groups_plane, kube, f"team-{uuid.uuid4().hex[:8]}", tmp_path)
        world.options = ["--groups", "--pools"]
        yield world
        _clear(world)


def _clear(world: GroupWorld) -> None:
    world.stop()
    for each in world.kube.list(API, KIND, world.team):
        world.kube.delete(API, KIND, each["metadata"]["name"], world.team)
    world.kube.delete("v1", "Namespace", world.team)


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


def test_the_only_group_is_replaced_with_a_surge(world: GroupWorld) -> None:
    """The controller before 0.9 waited for ever: its group of the surge was not counted."""
    only = "replicas: 1"
    world.deploy(world.service(1, "{rolling: {}}", only))
    world.until(lambda: world.ready() == {"1": 1})
    world.deploy(world.service(2, "{rolling: {}}", only))
    world.until(lambda: world.ready() == {"2": 1} and len(world.leaders()) == 1)


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


def _follow(world: RolesWorld, version: str) -> set[int]:
    """Wait until a version has taken over, and return its shares; requests go where each role has a ready group."""
    seen = set()

    def done() -> bool:
        weights, ready = world.weights_and_ready("HTTPRoute")
        assert all(ready.get(each) for found in weights for each, weight in found.items() if weight), (weights, ready)
        seen.add(weights[0].get(version, 0))
        return world.settled(version)

    world.until(done)
    return seen


def test_prefill_and_decode_are_rolled_out_together(roles: RolesWorld) -> None:
    begin(roles)
    roles.deploy(roles.service(2, CANARY))
    assert {0, 25, 50, 100} <= _follow(roles, "2")
    roles.until(lambda: roles.condition()[:2] == ("True", "Stable"))
    assert roles.reasons()[-1] == "RolloutPromoted"
    roles.until(lambda: set(roles.pools().values()) == {"2"})
    with roles.plane.client(roles.plane.service_account_token("avactl-system", "avactl-serving", 600)) as daemon:
        for name in ("web", "web-prefill"):
            body = {"apiVersion": API, "kind": KIND, "metadata": {"name": name, "namespace": roles.team}}
            with pytest.raises(ApiError, match="groups"):
                daemon.patch({**body, "spec": {"replicas": 9}})


def test_a_version_of_roles_that_fails_its_job_is_rolled_back(roles: RolesWorld) -> None:
    begin(roles, MEASURED)
    roles.deploy(roles.service(2, MEASURED))
    found = job(roles)
    env = {each["name"]: each["value"] for each in found["spec"]["template"]["spec"]["containers"][0]["env"]}
    (service,) = [
        each
        for each in roles.kube.list("v1", "Service", roles.team)
        if env["AVACTL_NEW_URL"] == f"http://{each['metadata']['name']}.{roles.team}:8000"
    ]
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/name"] == "web"  # of the decode pods
    end(roles, found, "Failed", 1)
    roles.until(lambda: roles.state().get("outcome") == "rolledBack")
    roles.until(lambda: roles.condition()[:2] == ("False", "RolledBack"))
    assert set(roles.ready()) == {"1"}
    assert roles.weights() == {"1": 100}
    roles.deploy(roles.service(1, MEASURED))
    roles.until(lambda: roles.settled("1"))


def test_roles_killed_at_every_step(roles: RolesWorld) -> None:
    """The daemon is killed after each change that it makes."""
    begin(roles)
    roles.deploy(roles.service(2, CANARY))
    before, kills = "", 0
    while not roles.settled("2"):
        weights, ready = roles.weights_and_ready("HTTPRoute")
        assert all(ready.get(each) for found in weights for each, weight in found.items() if weight), (weights, ready)
        written = roles.written()
        if written != before:
            before, kills = written, kills + 1
            roles.kill()
            roles.start()
    assert kills > 8


def test_roles_are_scaled_during_a_rollout(roles: RolesWorld) -> None:
    """By `kubectl scale`, or by an autoscaler of each role."""
    slow = CANARY.replace("pause: 1s}, ", "pause: 1h}, ")
    begin(roles)
    roles.deploy(roles.service(2, slow))
    roles.until(lambda: roles.weights().get("2") == 25)
    roles.scale_role("web", 5)
    roles.scale_role("web-prefill", 3)
    roles.until(
        lambda: roles.groups() == {("web", "1"): 4, ("web", "2"): 2, ("web-prefill", "1"): 3, ("web-prefill", "2"): 1}
    )
    assert roles.weights() == {"1": 75, "2": 25}
    roles.prefill = 3
    roles.deploy(roles.service(2, CANARY, "replicas: 5"))
    _follow(roles, "2")


def test_a_service_whose_roles_are_rolling_again_has_one_pool(roles: RolesWorld) -> None:
    begin(roles)
    assert roles.pools()["web"] == "1"
    specs = roles.service(1, "{rolling: {}}")
    roles.deploy(specs)
    for name in ("web", "web-prefill"):
        roles.kube.delete(API, KIND, name, roles.team)
    roles.until(lambda: roles.pools()["web"] == "")
