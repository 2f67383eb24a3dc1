"""Weights of the addresses of a headless service, by the pools of their machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from avactl.contracts.names import POOL_LABEL, WEIGHTS
from avactl.daemons.serving.weights import read_speeds
from tests.serving.world import World
from tools.controlplane import ApiError

NODES = ("node-0", "node-1")
POOLS = """
---
kind: MachineType
metadata: {name: fast}
spec: {gpus: {model: A10, count: 1, memory: 24Gi}, cpu: 64, memory: 512Gi, speed: 4}
---
kind: NodePool
metadata: {name: old}
spec: {cluster: main, machineType: a10, count: 1}
---
kind: NodePool
metadata: {name: new}
spec: {cluster: main, machineType: fast, count: 1}
"""


@pytest.fixture
def pools(world: World) -> Iterator[None]:
    """A machine in each pool."""
    _label(world, dict(zip(NODES, ("old", "new"), strict=True)))
    yield
    _label(world, dict.fromkeys(NODES))


def _label(world: World, pools: dict[str, str | None] | dict[str, str]) -> None:
    for name, pool in pools.items():
        world.kube.patch({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {POOL_LABEL: pool}}})


def service(world: World, replicas: int) -> str:
    return POOLS + world.service(1, "{rolling: {}}", f"replicas: {replicas}\n  balance: headless")


def weights(world: World) -> dict[str, float]:
    """Return what the daemon has written; {} before."""
    data = world.kube.get("v1", "ConfigMap", "web-weights", world.team).get("data") or {}
    found: dict[str, float] = json.loads(data.get("weights.json", "{}"))
    return found


def expected(world: World) -> dict[str, float]:
    """Return the weights by the machines of the pods."""
    speeds = {"node-0": 1.0, "node-1": 4.0}
    pods = world.kube.list("v1", "Pod", world.team)
    return {
        pod["status"]["podIP"]: speeds[pod["spec"]["nodeName"]]
        for pod in pods
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "server"
        and not pod["metadata"].get("deletionTimestamp")
        and pod.get("status", {}).get("podIP")
    }


@pytest.mark.usefixtures("pools")
def test_weights_follow_the_pods_and_their_machines(world: World) -> None:
    world.start()
    world.deploy(service(world, 4))
    world.until(lambda: len(weights(world)) == 4)
    assert weights(world) == expected(world)
    assert set(weights(world).values()) == {1.0, 4.0}

    world.scale(6)
    world.until(lambda: len(weights(world)) == 6)
    assert weights(world) == expected(world)

    # A machine that comes into another pool.
    _label(world, {"node-1": "old"})
    world.until(lambda: set(weights(world).values()) == {1.0})
    # The specs leave them as they are.
    world.deploy(service(world, 6))
    assert len(weights(world)) == 6


@pytest.mark.usefixtures("pools")
def test_a_daemon_that_starts_later_writes_them(world: World) -> None:
    world.deploy(service(world, 2))
    world.until(lambda: world.ready() == {"1": 2})
    assert weights(world) == {}
    world.start()
    world.until(lambda: len(weights(world)) == 2)
    assert weights(world) == expected(world)


def test_the_daemon_may_write_no_other_config_map(world: World) -> None:
    world.deploy(service(world, 1))
    token = world.plane.service_account_token("avactl-system", "avactl-serving")

    def patch(daemon: Any, name: str) -> None:
        metadata = {"name": name, "namespace": world.team}
        daemon.patch({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"weights.json": "{}"}})

    with world.plane.client(token) as daemon:
        patch(daemon, "web-weights")
        with pytest.raises(ApiError) as error:
            patch(daemon, "kube-root-ca.crt")
        assert error.value.status == 403
        with pytest.raises(ApiError) as error:
            daemon.get("v1", "ConfigMap", "web-weights", world.team)
        assert error.value.status == 403


def test_an_annotation_of_another_service_changes_nothing(world: World) -> None:
    """Members may write Services: those that no spec has made have no ConfigMap that the daemon may write."""
    world.start()
    labels = {"app.kubernetes.io/managed-by": "avactl"}
    for name, text in (("forged-headless", '{"old": 9}'), ("web", "x" * 100), ("odd-headless", '{"old": "fast"}')):
        metadata = {"name": name, "namespace": world.team, "labels": labels, "annotations": {WEIGHTS: text}}
        spec = {"clusterIP": "None", "selector": {"app": "forged"}, "ports": [{"port": 80}]}
        world.kube.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    world.deploy(service(world, 1))
    world.until(lambda: len(weights(world)) == 1)
    world.until(lambda: "forged-headless" in world.log.read_text())
    found = [each["metadata"]["name"] for each in world.kube.list("v1", "ConfigMap", world.team)]
    assert sorted(found) == ["kube-root-ca.crt", "web-weights"]


@pytest.mark.parametrize(
    ("text", "speeds"),
    [
        ('{"a": 2, "b": 0.5}', {"a": 2.0, "b": 0.5}),
        ('{"a": true, "b": "2", "c": 1e9, "d": -1, "e": 3}', {}),
        ("[1]", {}),
        ("{", {}),
        ('{"a": 1' + " " * 100_000 + "}", {}),
    ],
)
def test_only_speeds_are_read(text: str, speeds: dict[str, float]) -> None:
    assert read_speeds(text) == speeds
