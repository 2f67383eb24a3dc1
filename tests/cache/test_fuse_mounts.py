"""Events of pods whose FUSE mount is lost and made anew, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from avactl.contracts.cache import TierConfig
from avactl.contracts.document import load
from avactl.contracts.names import MANAGED_BY, MANAGER
from tests.cache.test_writeback import facts
from tests.cache.world import World
from tests.kinds.compiling import compiled
from tests.kinds.test_cache_daemon import CLUSTER, READ, told
from tools.controlplane import ApiError

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("cache")]
POD = {"apiVersion": "v1", "kind": "Pod"}


class Machine:
    """A node with a FUSE pod, a pod that reads through it, and two that do not."""

    def __init__(self, world: World) -> None:
        self.world, self.name = world, f"{world.namespace}-fuse"
        world.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        self._volume("inside", "/mnt/avactl/.volumes/tier/digits-v1")
        self._volume("outside", "/mnt/avactl/.volumes/tier-2/digits-v1")
        for name in ("inside", "outside"):
            volume = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
            self._pod(name, volumes=[volume])
        self._pod("without")
        self._pod("fuse", labels={"app.kubernetes.io/instance": "tier", "app.kubernetes.io/component": "fuse"})

    def _volume(self, name: str, path: str) -> None:
        self.world.kube.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{self.world.namespace}-{name}", "labels": {MANAGED_BY: MANAGER}},
                "spec": {
                    "capacity": {"storage": "1Mi"},
                    "accessModes": ["ReadOnlyMany"],
                    "hostPath": {"path": path},
                    "claimRef": {"namespace": self.world.namespace, "name": name},
                },
            }
        )

    def _pod(self, name: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
        metadata = {"name": name, "namespace": self.world.namespace, "labels": labels or {}}
        spec = {"nodeName": self.name, "containers": [{"name": "main", "image": "none"}], **spec}
        self.world.kube.create({**POD, "metadata": metadata, "spec": spec})
        self.status(name)

    def status(self, name: str, ready: bool = True, restarts: int = 0) -> None:
        """Report what the kubelet reports of a pod."""
        condition = {"type": "Ready", "status": str(ready)}
        container = {
            "name": "fuse",
            "ready": ready,
            "restartCount": restarts,
            "image": "none",
            "imageID": "none",
        }
        status = {"phase": "Running", "conditions": [condition], "containerStatuses": [container]}
        metadata = {"name": name, "namespace": self.world.namespace}
        self.world.kube.patch({**POD, "metadata": metadata, "status": status}, subresource="/status")

    def told(self, reason: str) -> list[str]:
        """The pods that have an event, as often as they have it: a repetition counts up the series of the first."""
        return [
            event["regarding"]["name"]
            for event in self.world.events(reason)
            for _ in range((event.get("series") or {}).get("count", 1))
        ]

    def close(self) -> None:
        with suppress(ApiError):  # a test removed it
            self.world.kube.delete("v1", "Node", self.name)
        for name in ("inside", "outside"):
            self.world.kube.delete("v1", "PersistentVolume", f"{self.world.namespace}-{name}")


@pytest.fixture
def machine(world: World) -> Iterator[Machine]:
    machine = Machine(world)
    world.tier()
    yield machine
    machine.close()


def test_readers_are_told_when_their_mount_is_new(world: World, machine: Machine) -> None:
    world.start()
    world.wait(lambda: facts(world).get("mounts") == 1)
    machine.status("fuse", ready=False)
    world.wait(lambda: facts(world)["mountsLost"] == 1)
    machine.status("fuse", restarts=1)
    world.wait(lambda: machine.told("CacheMountRenewed"))
    assert machine.told("CacheMountRenewed") == ["inside"]
    assert machine.told("CacheMountUnavailable") == []
    machine.status("fuse", restarts=2)
    world.wait(lambda: len(machine.told("CacheMountRenewed")) == 2)
    assert set(machine.told("CacheMountRenewed")) == {"inside"}


def test_readers_are_told_when_their_mount_stays_away(world: World, machine: Machine) -> None:
    world.start()
    world.wait(lambda: facts(world).get("mounts") == 1)
    machine.status("fuse", ready=False)
    world.wait(lambda: facts(world)["mountsLost"] == 1)
    assert facts(world)["mounts"] == 0
    world.wait(lambda: machine.told("CacheMountUnavailable"))
    assert machine.told("CacheMountUnavailable") == ["inside"]
    (event,) = world.events("CacheMountUnavailable")
    assert event["type"] == "Warning"
    assert f"not mounted on node {machine.name}" in event["note"]


def test_a_node_that_leaves_the_cluster_is_no_lost_mount(world: World, machine: Machine) -> None:
    world.start()
    world.wait(lambda: facts(world).get("mounts") == 1)
    machine.status("fuse", ready=False)
    world.wait(lambda: facts(world)["mountsLost"] == 1)
    world.kube.delete("v1", "Node", machine.name)
    world.wait(lambda: facts(world)["mountsLost"] == 0)


def test_a_tier_tells_where_its_volumes_are() -> None:
    result = compiled(CLUSTER + READ)
    tier = load(TierConfig, next(m.body for m in result.manifests if m.name == "tier.read")["data"]["tier.json"])
    assert tier.volume_directory == told(result, "tier.read")["volumeDirectory"] == "/mnt/avactl/.volumes/read"
