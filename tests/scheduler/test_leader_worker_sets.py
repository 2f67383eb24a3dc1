"""Services whose replicas have several machines, by the real controller of LeaderWorkerSets and avactl's scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from avactl.apply.reconcile.health import HealthState, object_health
from avactl.base.object_identity import ObjectKey
from avactl.change.plan.workloads import WorkloadMaker, find_surroundings, find_workloads
from avactl.contracts import names
from tests.kinds.compiling import DIGEST, apply
from tests.scheduler.groups import groups, seen, specs, uids
from tests.scheduler.world import World
from tools.waiting import patience

# Its controller takes three minutes to build: too long for the first run of `make test`.
pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("leaderworkerset")]
API, KIND = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"


def service(version: str = "1") -> str:
    return f"""
---
kind: ServingDeployment
metadata: {{name: chat, team: vision}}
spec:
  model: {{name: chat, version: "{version}", path: /opt/chat-{version}}}
  runtime: {{name: vllm, image: "registry.example.com/vllm{DIGEST}"}}
  resources: {{gpus: 8, cpu: 8, memory: 64Gi}}
  llm: {{machines: 2}}
  replicas: 2
  maxSurge: 0
  drain: 0s
"""


@pytest.fixture(scope="module")
def world(control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with groups(tmp_path_factory.mktemp("groups")) as found:
        yield found


def state(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.kube.get(API, KIND, "chat", "vision")
    return found


def test_the_life_of_a_service(world: World) -> None:
    """Groups start whole or wait, serve, start again as a whole, and are replaced by a new version."""
    for number in range(3):
        world.node(f"n{number}")
    world.ready()
    world.start()
    apply(world.kube, specs(service()))
    # Of the machines of three pods, one group gets two, and the other none.
    world.wait(lambda: len(world.pods()) == 4)
    world.wait(lambda: sum(1 for node in world.nodes_of().values() if node) == 2)
    placed = {name for name, node in world.nodes_of().items() if node}
    assert placed in ({"chat-0", "chat-0-1"}, {"chat-1", "chat-1-1"})
    late = min(world.pods().keys() - placed)
    assert world.waiting(late, "needs").startswith("needs 2 machines with 8 free V100; only 1 available")
    assert object_health(state(world)).state is HealthState.progressing
    world.node("n3")
    assert len(set(world.bound().values())) == 4
    world.wait(lambda: object_health(state(world)).state is HealthState.ready)
    _is_wired(world)
    _plans_make_the_same_pods(world)
    _starts_again_as_a_whole(world)
    before = uids(world)
    apply(world.kube, specs(service("2")))
    world.wait(
        lambda: (
            not set(before.values()) & set(uids(world).values())
            and object_health(state(world)).state is HealthState.ready
        ),
        timeout=patience(),
    )
    assert {pod["spec"]["containers"][0]["args"][0] for pod in world.pods().values()} == {"/opt/chat-2"}
    assert world.defects() == []


def _is_wired(world: World) -> None:
    """Pods know their leader and number, clients reach leaders only, and the budget counts all."""
    pods = world.pods()
    for name, pod in pods.items():
        group, _, index = name.removeprefix("chat-").partition("-")
        env = pod["spec"]["containers"][0]["env"]
        assert [each["name"] for each in env[:3]] == ["LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"]
        assert [each["value"] for each in env[:3]] == [f"chat-{group}.chat-{group}.vision", "2", index or "0"]
        labels = pod["metadata"]["labels"]
        assert (labels[names.LWS_NAME], labels[names.LWS_GROUP_INDEX]) == ("chat", group)
        assert {names.LWS_GROUP, names.LWS_REVISION, names.LWS_INDEX} <= labels.keys()
    assert len({pod["metadata"]["labels"][names.LWS_GROUP] for pod in pods.values()}) == 2

    def behind(service: str) -> set[str]:
        slices = world.kube.list("discovery.k8s.io/v1", "EndpointSlice", "vision")
        own = [each for each in slices if each["metadata"]["labels"]["kubernetes.io/service-name"] == service]
        return {endpoint["targetRef"]["name"] for each in own for endpoint in each.get("endpoints") or ()}

    # Their controller writes them a moment after the pods are ready.
    world.wait(lambda: behind("chat") == behind("chat-headless") == {"chat-0", "chat-1"})
    world.wait(lambda: behind("chat-0") == {"chat-0", "chat-0-1"})
    world.wait(lambda: _budget(world).get("currentHealthy") == 4)
    assert (_budget(world)["expectedPods"], _budget(world)["disruptionsAllowed"]) == (4, 1)


def _plans_make_the_same_pods(world: World) -> None:
    """What plans make of the set is what its controller makes, as far as the scheduler reads it."""
    manifests = specs(service())
    work = find_workloads(manifests, "main")[ObjectKey("leaderworkerset.x-k8s.io", KIND, "vision", "chat")]
    maker = WorkloadMaker(find_surroundings(manifests, "main"), "", "x")
    mine = [made.pod for made in maker.pods(work, range(work.count()))]
    assert len(seen(mine, names.LWS_NAME)) == 4
    assert seen(mine, names.LWS_NAME) == seen(world.pods().values(), names.LWS_NAME)


def _budget(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.kube.get("policy/v1", "PodDisruptionBudget", "chat", "vision").get("status") or {}
    return found


def _starts_again_as_a_whole(world: World) -> None:
    before = uids(world)
    world.kube.delete("v1", "Pod", "chat-1-1", "vision")
    stopped = {before["chat-1"], before["chat-1-1"]}
    world.wait(lambda: len(uids(world)) == 4 and not stopped & set(uids(world).values()))
    world.bound()
    world.wait(lambda: object_health(state(world)).state is HealthState.ready)
    after = uids(world)
    assert (after["chat-0"], after["chat-0-1"]) == (before["chat-0"], before["chat-0-1"])
