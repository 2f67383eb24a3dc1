"""The API server goes away while files are pushed, for longer than a lease holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cache.test_prewarm import upload
from tests.cache.test_writeback import CEPH, NEVER, facts, listed, stored, write
from tests.cache.world import World
from tools.alluxio import Alluxio
from tools.controlplane import ControlPlane
from tools.objectstore import Faults, ObjectStore

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("cache")]


@pytest.fixture
def plane(new_plane: Callable[..., ControlPlane]) -> ControlPlane:
    return new_plane()


@pytest.fixture
def world(plane: ControlPlane, tier_cluster: Alluxio, object_store: ObjectStore, tmp_path: Path) -> Iterator[World]:
    """A world on a plane of its own."""
    with plane.client() as kube:
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cache"}})
        world = World(plane, kube, "cache", tier_cluster, tmp_path)
        yield world
        world.stop()
        object_store.faults = Faults()


def test_the_daemon_outlives_the_api_server(
    world: World, plane: ControlPlane, object_store: ObjectStore, tmp_path: Path
) -> None:
    upload(object_store, "outage", 3)
    world.tier(role="write", writeBack={**CEPH, "push": {**NEVER, "delaySeconds": 0}})
    world.dataset("outage", "/datasets/outage/v1", {"pin": False, "when": "once", "throttle": 0})
    daemon = world.start("--lease", "avactl-cache")
    key = "team/outage/v1"
    warmed = world.wait(lambda: world.status().get("datasets", {}).get(key, {}).get("warmed"))
    object_store.faults = Faults(errors=1.0, methods=frozenset({"PUT"}))
    files = write(world, tmp_path, "/ceph/outage", [1_300_000, 20, 0, 500_000], "CACHE_THROUGH")
    world.wait(lambda: facts(world).get("dirtyFiles") == 4 and "pushError" in facts(world))
    plane.kill("kube-apiserver")
    world.wait_for_log("lease lost")
    object_store.faults = Faults()
    assert daemon.poll() is None
    plane.start("kube-apiserver")
    world.wait(lambda: facts(world).get("dirtyFiles") == 0)
    assert stored(object_store, "outage") == files
    assert len(listed(world, "/ceph/outage")) == 4
    assert daemon.poll() is None
    # The new leader goes by what the last one wrote: nothing is loaded again, and told once.
    assert world.status()["datasets"][key]["warmed"] == warmed
    assert len(world.events("Prewarmed")) == 1
