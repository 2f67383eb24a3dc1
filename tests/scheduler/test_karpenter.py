"""The real Karpenter orders machines for avactl's pods that a machine helps, and for no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from avactl.contracts import names
from tests.kinds.compiling import apply, body, compiled
from tests.scheduler.test_wait_reasons import buys_a_machine
from tests.scheduler.world import SPECS, SYSTEM, World
from tools.controlplane import ControlPlane
from tools.karpenter import Karpenter

# Karpenter takes three minutes to build: too long for `make test`, which has test_wait_reasons.py.
pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("karpenter")]
POOL = """
---
kind: NodePool
metadata: {name: grown}
spec:
  cluster: main
  machineType: twosocket
  allocation: devicePlugin
  autoscaling: {max: 3, preemptAfter: 10m}
"""
LABELS = {names.POOL_LABEL: "grown", names.GPU_LABEL: "V100"}
MACHINE = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"}
ON_GROWN: dict[str, Any] = {"nodeSelector": {names.POOL_LABEL: "grown"}}


@pytest.fixture(scope="module")
def cluster(
    control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, Karpenter]]:
    folder = tmp_path_factory.mktemp("karpenter")
    with ControlPlane(controller_manager=True, kwok=True) as plane, plane.client() as kube:
        world = World(plane, kube, folder)
        result = compiled(SPECS + POOL)
        apply(kube, result.manifests)
        world.policy.write_text(body(result, "ConfigMap", "avactl-policy", SYSTEM)["data"]["policy.json"])
        with Karpenter(plane, kube, folder, {"v100-8": MACHINE}, delay="5s") as karpenter:
            yield world, karpenter


@pytest.fixture
def world(cluster: tuple[World, Karpenter]) -> Iterator[World]:
    """A full machine of the pool, whose team may use 40 CPUs."""
    world, karpenter = cluster
    world.begin()
    karpenter.pool("grown", LABELS, most=48)
    limit(world, gpus=100, cpu=40.0)
    world.node("a", pool="grown")
    world.ready()
    world.pod("low", 8, priorityClassName="avactl-low", **ON_GROWN)
    world.start()
    world.bound("low")
    yield world
    world.kube.delete("karpenter.sh/v1", "NodePool", "grown")
    world.kube.delete("v1", "ConfigMap", "avactl-quota-vision", SYSTEM)
    world.end()
    world.wait(lambda: not karpenter.orders())


@pytest.fixture
def karpenter(cluster: tuple[World, Karpenter]) -> Karpenter:
    return cluster[1]


def limit(world: World, gpus: int, cpu: float) -> None:
    """Set the quota of the test's team."""
    mine = [{"gpu": "V100", "guaranteed": gpus, "borrow": 0, "weight": 1}]
    data = {"version": 1, "team": "vision", "namespaces": [world.namespace], "gpus": mine, "shapes": [], "cpu": cpu}
    world.config("avactl-quota-vision", "quota", data)


def test_a_machine_is_ordered_for_what_it_helps_only(world: World, karpenter: Karpenter) -> None:
    """Each of these pods fits on a new machine, and Karpenter would order one if it looked at no more than that."""
    world.gang("part", 1, size=2)
    world.waiting("part-0", "1 of 2 exist")
    world.pod("over", 8, cpu="40", **ON_GROWN)
    world.waiting("over", "quota")
    world.pod("fits", 8, **ON_GROWN)
    assert world.bound("fits")["fits"] not in ("", "a")
    assert world.devices("fits") == set(range(8))
    world.wait(lambda: all(_is_initialized(order) for order in karpenter.orders()))
    assert len(karpenter.orders()) == 1
    pods = world.pods()
    assert not any(buys_a_machine(pods[name]) for name in ("part-0", "over"))
    # Once nothing else is in their way, machines are ordered for them, too.
    limit(world, gpus=100, cpu=400.0)
    assert world.bound("over")["over"] not in ("", "a")
    assert len(karpenter.orders()) == 2
    world.gang("part", 2, first=1, size=2)
    nodes = world.bound()
    assert len({nodes[name] for name in ("low", "fits", "over", "part-0", "part-1")}) == 5
    assert len(karpenter.orders()) == 4


def test_a_preemption_waits_for_the_machine_that_comes(world: World, karpenter: Karpenter) -> None:
    world.pod("high", 8, priorityClassName="avactl-serving", **ON_GROWN)
    text = world.waiting("high", "a machine of pool grown ")
    assert "no pod is preempted for it until " in text
    assert world.bound("high", "low")["low"] == "a"
    assert len(karpenter.orders()) == 1


def test_a_gang_gets_its_machines(world: World, karpenter: Karpenter) -> None:
    world.kube.delete("v1", "Pod", "low", world.namespace)
    world.pod("stays", 1, **ON_GROWN)
    world.bound("stays")
    world.gang("pair", 2, 6)
    world.bound()
    nodes = world.nodes_of()
    assert nodes["stays"] == "a"
    assert len({nodes["pair-0"], nodes["pair-1"]}) == 2
    assert len(karpenter.orders()) == 1


def test_no_machine_is_ordered_for_claims(world: World, karpenter: Karpenter) -> None:
    """By default, Karpenter leaves pods with ResourceClaims alone: docs/scheduler.md names its option."""
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu-v100"}}
    claim = {"metadata": {"name": "gpus", "namespace": world.namespace}, "spec": {"devices": {"requests": [request]}}}
    world.kube.create({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim})
    resources = {"requests": {"cpu": "1"}, "claims": [{"name": "gpus"}]}
    claims = [{"name": "gpus", "resourceClaimName": "gpus"}]
    world.pod("claims", container={"resources": resources}, resourceClaims=claims, **ON_GROWN)
    world.waiting("claims")
    assert buys_a_machine(world.pods()["claims"])
    world.wait(lambda: any("Dynamic Resource" in str(each.get("note")) for each in world.events("FailedScheduling")))
    assert not karpenter.orders()


def _is_initialized(order: dict[str, Any]) -> bool:
    conditions = (order.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Initialized" and each["status"] == "True" for each in conditions)
