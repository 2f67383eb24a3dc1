"""Services whose prompts are read by pods of their own, by the real controller of DisaggregatedSets, avactl's scheduler
and `avactl reconcile`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from avactl.apply.reconcile import role_sets
from avactl.apply.reconcile.health import Health, HealthState, object_health
from avactl.base.object_identity import ObjectKey
from avactl.change.plan.workloads import WorkloadMaker, find_surroundings, find_workloads
from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE
from tests.kinds.compiling import DIGEST, apply
from tests.scheduler.groups import groups, seen, specs, uids
from tests.scheduler.world import World
from tools.waiting import patience

pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("leaderworkerset")]
API, KIND = "disaggregatedset.x-k8s.io/v1", "DisaggregatedSet"
GROUPS = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
ROLE, ROLES = "llm-d.ai/role", ("prefill", "decode")


def service(version: str = "1", replicas: int = 2) -> str:
    # Quantities that the controller writes in another form, and a container without resources.
    return f"""
---
kind: ServingDeployment
metadata: {{name: chat, team: vision}}
spec:
  model: {{name: chat, version: "{version}", path: /opt/chat-{version}}}
  runtime: {{name: vllm, image: "registry.example.com/vllm{DIGEST}"}}
  resources: {{gpus: 8, cpu: "8.5", memory: 64Gi}}
  replicas: {replicas}
  llm:
    prefill: {{machines: 2, router: {{image: "registry.example.com/vllm-router{DIGEST}"}}}}
  maxSurge: 0
  drain: 0s
"""


@pytest.fixture(scope="module")
def world(control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with groups(tmp_path_factory.mktemp("roles")) as found:
        yield found


def servers(world: World, role: str = "") -> dict[str, dict[str, Any]]:
    """The pods of the set; of one role, if it is given."""
    wanted = (role,) if role else ROLES
    return {name: pod for name, pod in world.pods().items() if pod["metadata"]["labels"].get(ROLE) in wanted}


def judged(world: World) -> Health:
    live: dict[str, Any] = world.kube.get(API, KIND, "chat", "vision")
    return object_health(live, role_sets.made_by(live, world.kube.list(*GROUPS, "vision")))


def test_the_life_of_a_service(world: World) -> None:
    """Both roles start, groups whole or not at all; they scale, and are replaced together by a new version."""
    for number in range(3):
        world.node(f"n{number}")
    world.ready()
    world.start()
    apply(world.kube, specs(service()))
    # On three machines: a group of two and one pod, or two pods, because no group starts in part.
    world.wait(lambda: len(servers(world)) == 4)
    world.wait(lambda: sum(1 for node in world.nodes_of().values() if node) in (3, 4))
    placed = [name for name in servers(world, "prefill") if world.nodes_of()[name]]
    assert len(placed) in (0, 2)
    assert judged(world).state is HealthState.progressing
    world.node("n3")
    assert len({node for name, node in world.bound().items() if name in servers(world)}) == 4
    world.wait(lambda: judged(world).state is HealthState.ready)
    assert {name: len(servers(world, name)) for name in ROLES} == {"prefill": 2, "decode": 2}
    _is_wired(world)
    _plans_make_the_same_pods(world)
    _scales(world)
    before = uids(world)
    apply(world.kube, specs(service("2")))
    assert judged(world) == Health(HealthState.progressing, "the controller has not observed the change yet")
    world.wait(
        lambda: (
            not {before[name] for name in before if "router" not in name} & set(uids(world).values())
            and judged(world).state is HealthState.ready
        ),
        timeout=patience(180),
    )
    assert {pod["spec"]["containers"][0]["args"][0] for pod in servers(world).values()} == {"/opt/chat-2"}
    assert len(world.kube.list(*GROUPS, "vision")) == 2
    assert world.defects() == []


def _is_wired(world: World) -> None:
    """Clients reach the router, which finds the first pod of each group, and the budget counts all."""
    (router,) = [pod for name, pod in world.pods().items() if "router" in name]
    args = router["spec"]["containers"][0]["args"]

    def selected(option: str) -> set[str]:
        start = args.index(option) + 1
        pairs = [each.partition("=") for each in args[start : start + 4]]
        want = {key: value for key, _, value in pairs}.items()
        return {name for name, pod in world.pods().items() if want <= pod["metadata"]["labels"].items()}

    (leader,) = selected("--prefill-selector")
    assert world.pods()[leader]["metadata"]["labels"][names.LWS_INDEX] == "0"
    assert selected("--decode-selector") == set(servers(world, "decode"))

    def behind() -> set[str]:
        slices = world.kube.list("discovery.k8s.io/v1", "EndpointSlice", "vision")
        own = [each for each in slices if each["metadata"]["labels"]["kubernetes.io/service-name"] == "chat"]
        return {endpoint["targetRef"]["name"] for each in own for endpoint in each.get("endpoints") or ()}

    world.wait(lambda: behind() == {router["metadata"]["name"]})
    reads, generates = (next(iter(servers(world, role).values())) for role in ROLES)
    assert reads["metadata"]["annotations"][GANG_SIZE.name] == "2"
    assert GANG_SIZE.name not in generates["metadata"]["annotations"]
    for role in ROLES:
        for pod in servers(world, role).values():
            labels = pod["metadata"]["labels"]
            assert (labels[names.DISAGGREGATED_NAME], labels[names.DISAGGREGATED_ROLE]) == ("chat", role)
    world.wait(lambda: _budget(world).get("currentHealthy") == 5)
    assert (_budget(world)["expectedPods"], _budget(world)["disruptionsAllowed"]) == (5, 1)


def _budget(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.kube.get("policy/v1", "PodDisruptionBudget", "chat", "vision").get("status") or {}
    return found


def _plans_make_the_same_pods(world: World) -> None:
    """What plans make of the roles is what their controllers make, as far as the scheduler reads it."""
    manifests = specs(service())
    maker = WorkloadMaker(find_surroundings(manifests, "main"), "", "x")
    mine = []
    for role in ROLES:
        work = find_workloads(manifests, "main")[ObjectKey("disaggregatedset.x-k8s.io", KIND, "vision", f"chat-{role}")]
        mine += [made.pod for made in maker.pods(work, range(work.count()))]
    assert len(seen(mine, names.DISAGGREGATED_ROLE)) == 4
    assert seen(mine, names.DISAGGREGATED_ROLE) == seen(servers(world).values(), names.DISAGGREGATED_ROLE)


def _scales(world: World) -> None:
    """Another number of replicas neither restarts pods nor counts as ready too early."""
    before = uids(world)
    apply(world.kube, specs(service(replicas=1)))
    world.wait(lambda: len(servers(world, "decode")) == 1 and judged(world).state is HealthState.ready)
    apply(world.kube, specs(service(replicas=2)))
    world.wait(lambda: len(servers(world, "decode")) == 2 and judged(world).state is HealthState.ready)
    assert len(set(before.values()) & set(uids(world).values())) == 4
