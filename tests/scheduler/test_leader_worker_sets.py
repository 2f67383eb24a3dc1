"""Services whose replicas have several machines, by the real controller of LeaderWorkerSets and avactl's scheduler."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from avactl import names
from avactl.kinds.manifest import Manifest
from avactl.plan.snapshot.loader import strip
from avactl.plan.workloads import Maker, WorkloadId, surroundings, workloads
from avactl.reconcile.health import State, health
from tests.cluster_fixtures import unavailable
from tests.kinds.compiling import DIGEST, apply, compiled
from tests.scheduler.world import SPECS, World
from tools.controlplane import ControlPlane, UnavailableError
from tools.leaderworkerset import LeaderWorkerSets

# Its controller takes three minutes to build: too long for the first run of `make test`.
pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("leaderworkerset")]
TEAM = """
---
kind: Team
metadata: {name: vision}
spec: {members: {groups: [vision]}}
"""
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


def specs(text: str) -> list[Manifest]:
    platform = SPECS.replace("daemons: {scheduler: true}\n", "daemons: {scheduler: true}\n  leaderWorkerSet: {}\n")
    return [each for each in compiled(platform + TEAM + text).manifests if not each.patch]


@pytest.fixture(scope="module")
def groups(control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A team's namespace on a plane of its own, with the controller."""
    if shutil.which("openssl") is None:
        unavailable(UnavailableError("the webhooks of LeaderWorkerSets are unavailable: openssl is not on PATH"))
    folder = tmp_path_factory.mktemp("groups")
    with ControlPlane(controller_manager=True, kwok=True) as plane, plane.client() as kube:
        world = World(plane, kube, folder)
        try:
            controller = LeaderWorkerSets(plane, kube, folder).__enter__()
        except UnavailableError as reason:
            unavailable(reason)
        with controller:
            world.namespace = "vision"
            yield world
            for process in world.running:
                process.kill()
                process.wait()


def uids(world: World) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in world.pods().items()}


def state(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.kube.get(API, KIND, "chat", "vision")
    return found


def test_the_life_of_a_service(groups: World) -> None:
    """Groups start whole or wait, serve, start again as a whole, and are replaced by a new version."""
    world = groups
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
    assert health(state(world)).state is State.progressing
    world.node("n3")
    assert len(set(world.bound().values())) == 4
    world.wait(lambda: health(state(world)).state is State.ready)
    _is_wired(world)
    _plans_make_the_same_pods(world)
    _starts_again_as_a_whole(world)
    before = uids(world)
    apply(world.kube, specs(service("2")))
    world.wait(
        lambda: not set(before.values()) & set(uids(world).values()) and health(state(world)).state is State.ready,
        timeout=120,
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
    slices = world.kube.list("discovery.k8s.io/v1", "EndpointSlice", "vision")

    def behind(service: str) -> set[str]:
        own = [each for each in slices if each["metadata"]["labels"]["kubernetes.io/service-name"] == service]
        return {endpoint["targetRef"]["name"] for each in own for endpoint in each.get("endpoints") or ()}

    assert behind("chat") == behind("chat-headless") == {"chat-0", "chat-1"}
    assert behind("chat-0") == {"chat-0", "chat-0-1"}
    world.wait(lambda: _budget(world).get("currentHealthy") == 4)
    assert (_budget(world)["expectedPods"], _budget(world)["disruptionsAllowed"]) == (4, 1)


def _plans_make_the_same_pods(world: World) -> None:
    """What plans make of the set is what its controller makes, as far as the scheduler reads it."""
    manifests = specs(service())
    work = workloads(manifests, "main")[WorkloadId(KIND, "vision", "chat")]
    maker = Maker(surroundings(manifests, "main"), "", "x")
    mine = [made.pod for made in maker.pods(work, range(work.count()))]

    def seen(pods: Iterable[dict[str, Any]]) -> dict[tuple[str, ...], Any]:
        found: dict[tuple[str, ...], Any] = {}
        for pod in strip({"pods": list(pods)})["pods"]:
            labels, spec = pod["metadata"]["labels"], dict(pod["spec"])
            spec.pop("nodeName", None)
            spec.pop("terminationGracePeriodSeconds")  # 30 s by default
            spec["tolerations"] = sorted(spec["tolerations"], key=str)
            role = {key: labels[key] for key in (names.LWS_NAME, "app.kubernetes.io/component")}
            size, owner = pod["metadata"]["annotations"][names.GANG_SIZE], pod["metadata"]["ownerReferences"][0]["kind"]
            found[labels[names.LWS_GROUP_INDEX], labels[names.LWS_INDEX]] = (role, size, owner, spec)
        return found

    assert len(seen(mine)) == 4
    assert seen(mine) == seen(world.pods().values())


def _budget(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.kube.get("policy/v1", "PodDisruptionBudget", "chat", "vision").get("status") or {}
    return found


def _starts_again_as_a_whole(world: World) -> None:
    before = uids(world)
    world.kube.delete("v1", "Pod", "chat-1-1", "vision")
    stopped = {before["chat-1"], before["chat-1-1"]}
    world.wait(lambda: len(uids(world)) == 4 and not stopped & set(uids(world).values()))
    world.bound()
    world.wait(lambda: health(state(world)).state is State.ready)
    after = uids(world)
    assert (after["chat-0"], after["chat-0-1"]) == (before["chat-0"], before["chat-0-1"])
