"""Pods that wait until a dataset is cached."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from avactl.contracts.names import CACHE_NAMESPACE, CACHE_STATUS
from avactl.contracts.pod_annotations import START_WHEN_WARM
from tests.kinds.compiling import compiled
from tests.kinds.test_cluster import ALL_DAEMONS, TIER
from tests.scheduler.memory import Memory
from tests.scheduler.world import World

IMAGENET = "avactl-system/imagenet/v3"
WARM = {START_WHEN_WARM.name: json.dumps({IMAGENET: 90})}


def status(percent: float, age: float = 0, **more: Any) -> dict[str, Any]:
    updated = int(time.time() - age)
    entry = {"percent": percent, "updated": updated, "claims": ["vision"], **more}
    metadata = {"name": CACHE_STATUS, "namespace": CACHE_NAMESPACE}
    return {"metadata": metadata, "data": {"status.json": json.dumps({"datasets": {IMAGENET: entry}})}}


def told(memory: Memory, item: dict[str, Any] | None = None) -> str:
    """The message of the pod `train` after a new status; empty once it is bound."""
    if item is not None:
        memory.datasets.put(item)
    for key in sorted(memory.cache.tables.waits.woken):
        memory.queue.push(memory.queue.units[key])
    memory.cache.tables.waits.woken.clear()
    memory.settle()
    bound = "nodeName" in memory.items["vision/train"]["spec"]
    return "" if bound else memory.said["train"]


def test_a_pod_waits_until_its_dataset_is_warm_and_says_how_long() -> None:
    memory = Memory(daemon=True)
    memory.pod("vision", "train", 8, notes=WARM)
    assert told(memory) == "waits for dataset imagenet v3: the cache daemon has not reported anything yet"
    assert told(memory, status(63, etaSeconds=240)) == "waits for dataset imagenet v3: 63%, about 4 min"
    assert told(memory, status(64, age=720)) == "waits for dataset imagenet v3: 64% (as of 12 min ago)"
    # An invalid status changes nothing, and lets nothing start.
    assert told(memory, {**status(1), "data": {"status.json": "{"}}).startswith("waits for dataset imagenet v3: 64%")
    assert told(memory, {**status(1), "data": {}}).endswith("reports no such dataset for this namespace")
    assert told(memory, status(90)) == ""


def test_a_gang_waits_as_a_whole_and_others_do_not() -> None:
    memory = Memory(daemon=True)
    memory.gang("vision", "gang", 2, 4, notes=WARM)
    memory.pod("vision", "train", 8)
    assert told(memory) == ""
    assert memory.said["gang-0"].startswith("waits for dataset")


def test_without_a_daemon_nothing_starts_in_silence() -> None:
    memory = Memory(daemon=False)
    memory.pod("vision", "train", 8, notes=WARM)
    assert "runs no cache daemon" in told(memory)


def test_the_progress_of_others_is_not_told() -> None:
    memory = Memory(daemon=True)
    memory.pod("vision", "train", 8, notes=WARM)
    assert told(memory, status(95, claims=["ads"])).endswith("reports no such dataset for this namespace")


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"a/b": 90}', '{"a/b/c": 0}', '{"a/b/c": "90"}', json.dumps({f"a/b/{n}": 1 for n in range(17)})],
)
def test_an_invalid_annotation_is_the_pods_own_problem(text: str) -> None:
    memory = Memory(daemon=True)
    memory.pod("vision", "odd", 1, notes={START_WHEN_WARM.name: text})
    memory.pod("vision", "train", 8)
    assert told(memory) == ""
    assert memory.said["odd"].startswith(f"annotation {START_WHEN_WARM.name}: ")


def test_a_hostile_annotation_is_cut_off() -> None:
    memory = Memory(daemon=True)
    memory.pod("vision", "odd", 1, notes={START_WHEN_WARM.name: "9" * 200_000})
    memory.settle()
    assert len(memory.said["odd"]) < 500


def test_the_daemon_reads_the_status_with_its_role(world: World) -> None:
    result = compiled(ALL_DAEMONS + TIER)
    for manifest in result.manifests:
        if manifest.namespace == "avactl-cache" and manifest.kind in ("Role", "RoleBinding"):
            world.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "avactl-cache"}})
            world.kube.apply(manifest.body)
    policy = json.loads(world.policy.read_text())
    world.policy.write_text(json.dumps({**policy, "cacheDaemon": True}))
    world.node("n0")
    key = f"{world.namespace}/imagenet/v3"
    world.pod("train", 8, notes={START_WHEN_WARM.name: json.dumps({key: 90})})

    def report(percent: int) -> None:
        document = json.dumps({"datasets": {key: {"percent": percent, "etaSeconds": 240}}})
        meta = {"name": CACHE_STATUS, "namespace": "avactl-cache"}
        world.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"status.json": document}})

    report(63)
    world.start()
    world.waiting("train", "waits for dataset imagenet v3: 63%, about 4 min")
    report(91)
    world.bound("train")
