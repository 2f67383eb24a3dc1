"""A rollout of groups on a real API server and StatefulSet controller; the test plays the controller of groups."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.definitions import define_groups
from tests.kinds.compiling import compiled
from tests.serving.group_world import (
    API,
    CANARY,
    HOLD,
    KIND,
    GroupWorld,
    add_machines,
    begin,
    fail_job,
    killed,
    remove_machines,
)
from tools.controlplane import ApiError, ControlPlane

_LWS = "leaderworkerset.sigs.k8s.io"
pytestmark = pytest.mark.controlplane


@pytest.fixture
def world(serving_plane: ControlPlane, tmp_path: Path) -> Iterator[GroupWorld]:
    with serving_plane.client() as kube:
        define_groups(kube)
        add_machines(kube)
        world = GroupWorld(serving_plane, kube, f"team-{uuid.uuid4().hex[:8]}", tmp_path)
        world.options = ["--groups"]
        ending = threading.Event()
        played = threading.Thread(target=_play, args=(world, ending))
        played.start()
        yield world
        ending.set()
        played.join()
        world.stop()
        world.kube.delete("v1", "Namespace", world.team)
        remove_machines(kube)  # other tests of the plane have machines of their own


def _play(world: GroupWorld, ending: threading.Event) -> None:
    """Do what the controller of LeaderWorkerSets does, without workers and one group at a time."""
    with world.plane.client() as kube:
        while not ending.wait(0.2):
            groups = kube.find(API, KIND, "web", world.team)
            if groups is None:
                continue
            spec = groups["spec"]
            template = json.loads(json.dumps(spec["leaderWorkerTemplate"]["leaderTemplate"]))
            key = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
            labels = {f"{_LWS}/name": "web", f"{_LWS}/worker-index": "0"}
            template["metadata"]["labels"] |= {**labels, f"{_LWS}/template-revision-hash": key}
            rolling = spec["rolloutStrategy"]["rollingUpdateConfiguration"]
            leaders = world.leaders().values()
            outdated = any(revision != key or not up for _, revision, up in leaders)
            owner = {"apiVersion": API, "kind": KIND, "name": "web", "uid": groups["metadata"]["uid"]}
            body = {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "metadata": {
                    "name": "web",
                    "namespace": world.team,
                    "labels": {f"{_LWS}/name": "web", f"{_LWS}/template-revision-hash": key},
                    "ownerReferences": [{**owner, "controller": True}],
                },
                "spec": {
                    "replicas": spec["replicas"] + (1 if outdated and leaders else 0),
                    "serviceName": "web",
                    "podManagementPolicy": "Parallel",
                    "selector": {"matchLabels": labels},
                    "template": template,
                    "updateStrategy": {
                        "type": "RollingUpdate",
                        "rollingUpdate": {"partition": rolling.get("partition", 0)},
                    },
                },
            }
            try:
                kube.apply(body)
                seen = {"observedGeneration": groups["metadata"]["generation"], "replicas": spec["replicas"]}
                metadata = {"name": "web", "namespace": world.team}
                kube.patch(
                    {"apiVersion": API, "kind": KIND, "metadata": metadata, "status": seen}, subresource="/status"
                )
            except ApiError as error:
                if error.status not in (403, 404, 409):
                    raise


def test_a_new_version_takes_over_in_steps(world: GroupWorld) -> None:
    world.start()
    world.deploy(world.service(1, CANARY))
    world.until(lambda: world._route("HTTPRoute"))
    world.accept()
    world.until(lambda: world.settled("1"))
    world.deploy(world.service(2, CANARY))
    world.until(lambda: world.state().get("phase") == "stepping" and world.weights().get("2") == 25)
    assert world.condition()[1] in ("Progressing", "Starting")
    world.until(lambda: world.settled("2"))
    world.until(lambda: world.condition()[:2] == ("True", "Stable"))
    assert world.reasons()[-1] == "RolloutPromoted"
    world.until(lambda: len(world.version_services()) == 1)
    with world.plane.client(world.plane.service_account_token("avactl-system", "avactl-serving", 600)) as daemon:
        body = {"apiVersion": API, "kind": KIND, "metadata": {"name": "web", "namespace": world.team}}
        with pytest.raises(ApiError, match="groups"):
            daemon.patch({**body, "spec": {"replicas": 9}})


def test_an_engine_that_applies_again_and_again_does_not_hold_it_up(world: GroupWorld) -> None:
    begin(world)
    specs = world.service(2, CANARY)
    world.deploy(specs)
    found = compiled(world.platform.replace("TEAM", world.team) + specs).manifests
    (groups,) = [each.body for each in found if each.kind == KIND]

    def settled() -> bool:
        world.kube.apply(groups, force=True)
        return world.settled("2")

    world.until(settled)


def test_a_service_that_is_rolling_again_is_applied_without_force(world: GroupWorld) -> None:
    begin(world)
    canary, rolling = (
        next(
            each.body
            for each in compiled(world.platform.replace("TEAM", world.team) + specs).manifests
            if each.kind == KIND
        )
        for specs in (world.service(1, CANARY), world.service(2, "{rolling: {}}"))
    )
    assert world.partition() == HOLD
    world.kube.apply(canary, field_manager="avactl")
    world.kube.apply(rolling, field_manager="avactl")
    metadata = {"name": "web", "namespace": world.team, "annotations": {"avactl.dev/rollout": None}}
    world.kube.patch({"apiVersion": API, "kind": KIND, "metadata": metadata})
    world.until(lambda: world.partition() == 0 and not world.state())
    world.until(lambda: set(world.ready()) == {"2"})


def test_a_version_that_fails_its_job_is_rolled_back(world: GroupWorld) -> None:
    fail_job(world)


def test_killed_at_a_few_points(world: GroupWorld) -> None:
    killed(world, kills=6, seed=7)
