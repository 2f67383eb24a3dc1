"""Drains of workers that hold data which is nowhere else, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cache.test_writeback import ASYNC, NEVER, facts, listed, stored, write
from tests.cache.world import World
from tests.kinds.compiling import compiled
from tests.kinds.test_cache_daemon import ASYNC as ASYNC_TIER
from tests.kinds.test_cache_daemon import CLUSTER
from tools.controlplane import ApiError
from tools.objectstore import Faults, ObjectStore

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("cache")]
HOSTS = ("127.0.0.11", "127.0.0.12")


@pytest.fixture
def workers(world: World) -> Iterator[dict[str, str]]:
    """Nodes and pods for the cluster's two workers: the pod's name by host; the node has the pod's name."""
    found = {}
    labels = {"app.kubernetes.io/instance": "tier", "app.kubernetes.io/component": "worker"}
    for index, host in enumerate(HOSTS):
        found[host] = name = f"{world.namespace}-{index}"
        world.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        pod = {"apiVersion": "v1", "kind": "Pod"}
        metadata = {"name": name, "namespace": world.namespace}
        spec = {"nodeName": name, "containers": [{"name": "main", "image": "none"}]}
        world.kube.create({**pod, "metadata": {**metadata, "labels": labels}, "spec": spec})
        condition = {"type": "Ready", "status": "True"}
        address = {"podIP": host, "podIPs": [{"ip": host}], "hostIP": host, "hostIPs": [{"ip": host}]}
        status = {"phase": "Running", "conditions": [condition], **address}
        world.kube.patch({**pod, "metadata": metadata, "status": status}, subresource="/status")
    yield found
    for name in found.values():
        world.kube.delete("v1", "Node", name)


def budget(namespace: str) -> dict[str, Any]:
    """The compiled budget of such a tier's workers, in the test's namespace and of its pods."""
    manifest = next(
        m
        for m in compiled(CLUSTER + ASYNC_TIER).manifests
        if (m.kind, m.name) == ("PodDisruptionBudget", "write-worker")
    )
    labels = {"app.kubernetes.io/instance": "tier", "app.kubernetes.io/component": "worker"}
    spec = {**manifest.body["spec"], "selector": {**manifest.body["spec"]["selector"], "matchLabels": labels}}
    return {**manifest.body, "metadata": {"name": "write-worker", "namespace": namespace}, "spec": spec}


def evicted(world: World, name: str) -> bool:
    """Ask for the eviction of a pod, as `kubectl drain` does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": world.namespace}}
    try:
        world.kube.request("POST", f"/api/v1/namespaces/{world.namespace}/pods/{name}/eviction", body=body)
    except ApiError as error:
        if error.status != 429:
            raise
        return False
    return True


def cordon(world: World, name: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    world.kube.patch({**node, "spec": {"unschedulable": True}})


def test_a_drain_waits_for_data_that_is_nowhere_else(
    world: World, workers: dict[str, str], object_store: ObjectStore, tmp_path: Path
) -> None:
    files = write(world, tmp_path, "/results/drained", [1_000_000, 900_000], "ASYNC_THROUGH")
    both = {
        holder.rpartition(":")[0] for file in listed(world, "/results/drained") for holder in file.blocks[0].holders
    }
    assert both == set(HOSTS)
    object_store.faults = Faults(errors=1.0, methods=frozenset({"PUT"}))
    world.tier(role="write", writeBack={**ASYNC, "push": NEVER})
    world.kube.create(budget(world.namespace))
    world.start()
    world.wait(lambda: facts(world).get("dirtyFiles") == 2)
    first, second = workers.values()
    assert not evicted(world, first)  # its node is not cordoned
    cordon(world, first)
    # The other worker has all data too.
    world.wait(lambda: evicted(world, first))
    # Then the other is alone: the first one's node stays cordoned.
    cordon(world, second)
    event = world.wait(lambda: world.events("DrainHeldBack"))[0]
    assert event["regarding"]["name"] in (first, second)
    assert not evicted(world, second)
    object_store.faults = Faults()
    world.wait(lambda: evicted(world, second))
    assert stored(object_store, "drained") == files
