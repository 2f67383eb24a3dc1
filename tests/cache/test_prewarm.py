"""Prewarming with a real Alluxio over a real S3 endpoint."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from avactl.daemons.cache import loading
from tests.cache.world import World, content
from tools.alluxio.tiers import MIB
from tools.objectstore import Faults, ObjectStore

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("cache")]
SIZE = 1_300_000  # bytes: two blocks


def upload(store: ObjectStore, name: str, files: int) -> None:
    client = store.client()
    for number in range(files):
        key = f"{name}/v1/{number % 3}/{number}"
        client.put_object(Bucket="cache-datasets", Key=key, Body=content(key, SIZE))


def entry(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.status().get("datasets", {}).get(f"team/{name}/v1", {})
    return found


def test_a_version_is_loaded_once_pinned_and_told(world: World, object_store: ObjectStore) -> None:
    upload(object_store, "once", 12)
    world.tier()
    world.dataset("once", "/datasets/once/v1", {"pin": True, "when": "once", "throttle": None})
    world.dataset("absent", "/datasets/absent/v1", {"pin": False, "when": "once", "throttle": None})
    world.start()
    world.wait(lambda: "warmed" in entry(world, "once"))
    found = entry(world, "once")
    assert (found["percent"], found["files"], found["bytes"]) == (100, 12, 12 * SIZE)
    assert sum(found["holders"].values()) == pytest.approx(1, abs=0.001)
    assert len(found["holders"]) == 2  # both workers took part
    world.wait(lambda: entry(world, "absent").get("error") == "/datasets/absent/v1 is not in the under-store")
    (event,) = world.events("Prewarmed")
    assert event["note"].startswith("team/once version v1: 12 files")

    async def reread(engine: Any) -> bytes:
        file = await engine.status("/datasets/once/v1/1/1")
        assert file.pinned
        return b"".join([chunk async for chunk in engine.read(file)])

    def served(key: str) -> int:
        return int(world.status()["tiers"]["tier"].get(key, 0))

    def counted() -> bool:
        # Read again: a worker whose heartbeat fails never reports what it had counted for it.
        assert world.engine(reread) == content("once/v1/1/1", SIZE)
        return served("readBytes") >= before + SIZE // 2

    world.wait(lambda: world.status()["tiers"]["tier"].get("readBytes") is not None)
    before = served("readBytes")
    object_store.reset()
    world.wait(counted)
    assert object_store.traffic.sent == 0  # the second read comes from memory

    world.stop()
    world.start()
    world.wait(lambda: entry(world, "absent").get("error"))
    assert len(world.events("Prewarmed")) == 1  # not again


def test_a_load_goes_on_after_a_kill(world: World, object_store: ObjectStore) -> None:
    upload(object_store, "killed", 12)
    world.tier()
    prewarm = {"pin": False, "when": "once", "throttle": 3_000_000}
    world.dataset("killed", "/datasets/killed/v1", prewarm)
    daemon = world.start()
    world.wait(lambda: entry(world, "killed").get("percent", 0) > 40)
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    loaded = entry(world, "killed")["bytes"]
    object_store.reset()
    world.dataset("killed", "/datasets/killed/v1", prewarm | {"throttle": None})
    world.start()
    world.wait(lambda: "warmed" in entry(world, "killed"))
    # What was there is not read again, but for the four requests that were under way.
    assert object_store.traffic.sent <= 12 * SIZE - loaded + 4 * MIB


def test_a_limit_holds_for_all_streams_together(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(loading, "monotonic", lambda: 100.0)
    monkeypatch.setattr("avactl.daemons.cache.loading.asyncio.sleep", sleep)

    async def run() -> None:
        pacer = loading.Pacer(1000)
        for _ in range(4):
            await pacer.take(500)
        await loading.Pacer(0).take(10**9)

    asyncio.run(run())
    assert slept == [0, 0.5, 1.0, 1.5]


def test_only_a_namespace_with_a_claim_admits(world: World, object_store: ObjectStore) -> None:
    upload(object_store, "admitted", 2)
    world.tier()
    prewarm = {"pin": False, "when": "admitted", "throttle": None}
    world.dataset("mine", "/datasets/admitted/v1", prewarm, claims=[world.namespace])
    world.dataset("theirs", "/datasets/admitted/v1/1", prewarm, claims=["somebody-else"])
    world.start()
    world.wait(lambda: entry(world, "mine").get("totalFiles") == 2 and entry(world, "theirs"))
    assert entry(world, "mine")["percent"] == 0
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    world.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "job", "namespace": world.namespace},
            "spec": {"containers": [{"name": "main", "image": "none"}], "volumes": [claim]},
        }
    )
    world.wait(lambda: "warmed" in entry(world, "mine"))
    assert "warmed" not in entry(world, "theirs")
    assert "loading" not in entry(world, "theirs")


def test_a_store_that_fails_is_told_and_tried_again(world: World, object_store: ObjectStore) -> None:
    upload(object_store, "flaky", 4)
    world.tier()
    world.dataset("flaky", "/datasets/flaky/v1")
    world.start()
    world.wait(lambda: entry(world, "flaky").get("totalFiles") == 4)
    object_store.faults = Faults(errors=1.0, methods=frozenset({"GET"}))
    world.dataset("flaky", "/datasets/flaky/v1", {"pin": False, "when": "once", "throttle": None})
    event = world.wait(lambda: world.events("PrewarmIncomplete"))[0]
    assert "blocks failed" in event["note"]
    object_store.faults = Faults()
    world.wait(lambda: "warmed" in entry(world, "flaky"))
    assert "error" not in entry(world, "flaky")
