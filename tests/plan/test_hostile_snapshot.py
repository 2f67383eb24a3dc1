"""Snapshots that somebody wrote: what no API server gives is refused in a line, at its place."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest

from avactl.change.plan.cluster_state import configured_objects, declared_machines
from avactl.change.plan.planner import make_plan
from avactl.change.plan.snapshot import loader
from avactl.change.plan.snapshot.loader import SnapshotError, read, write
from avactl.compiler import Compilation, compile_tree
from avactl.contracts.document import load
from avactl.contracts.names import POLICY
from avactl.contracts.scheduling import PlacementPolicy
from avactl.spec.repository.tree import MemoryTree
from tests.test_invalid import BASE

JOB = f"""
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{name: new, team: vision}}
spec:
  image: registry.example.com/t@sha256:{"1" * 64}
  command: [x]
  workers: {{replicas: 1, gpus: 1, gpu: V100, cpu: 4, memory: 16Gi}}
"""


@pytest.fixture(scope="module")
def compiled() -> Compilation:
    found = compile_tree(MemoryTree({**BASE, "job.yaml": JOB}))
    assert found.ok
    return found


@pytest.fixture(scope="module")
def whole(compiled: Compilation) -> bytes:
    """A snapshot of the declared machines, with a pod and what pods ask for."""
    manifests = list(compiled.manifests)
    policy = next(each for each in manifests if each.name == POLICY).body["data"]["policy.json"]
    objects: dict[str, list[dict[str, Any]]] = {
        **configured_objects(manifests, "main"),
        **declared_machines(compiled.program, "main"),
    }
    node = objects["nodes"][0]["metadata"]["name"]
    resources = {"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}}
    objects["pods"] = [
        {
            "metadata": {"name": "p", "namespace": "vision", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"schedulerName": "avactl", "containers": [{"resources": resources}], "nodeName": node},
            "status": {"phase": "Running"},
        }
    ]
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "s", "resources": {"requests": {"storage": "1Gi"}}}
    objects["persistentvolumeclaims"] = [{"metadata": {"name": "c", "namespace": "vision", "uid": "c"}, "spec": claim}]
    asked = [{"name": "g", "exactly": {"deviceClassName": "gpu", "count": 1}}]
    objects["resourceclaims"] = [
        {"metadata": {"name": "r", "namespace": "vision", "uid": "r"}, "spec": {"devices": {"requests": asked}}}
    ]
    objects["csistoragecapacities"] = [
        {"metadata": {"name": "k", "namespace": "vision"}, "storageClassName": "s", "capacity": "1Gi"}
    ]
    return write(load(PlacementPolicy, policy), objects, "2026-01-01T00:00:00Z")


def plan(compiled: Compilation, text: bytes) -> None:
    make_plan(None, compiled, "main", read(text, "state.json"))


def test_it_is_one(compiled: Compilation, whole: bytes) -> None:
    plan(compiled, whole)


AMOUNTS = (
    ("nodes", 0, "status", "allocatable", "cpu"),
    ("podSpecs", 0, "containers", 0, "resources", "requests", "memory"),
    ("persistentvolumeclaims", 0, "spec", "resources", "requests", "storage"),
    ("csistoragecapacities", 0, "capacity"),
)


def with_value(whole: bytes, path: tuple[str | int, ...], value: Any) -> bytes:
    data = orjson.loads(whole)
    inner = data["objects"]
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return orjson.dumps(data)


@pytest.mark.parametrize("path", AMOUNTS, ids=lambda path: path[0])
@pytest.mark.parametrize("amount", ["9" * 5000, "1e-99999999", "1e99999999", True, 1e308, "", "16EB", 2**63], ids=repr)
def test_amounts(compiled: Compilation, whole: bytes, path: tuple[str | int, ...], amount: Any) -> None:
    with pytest.raises(SnapshotError, match="the snapshot is damaged") as refused:
        plan(compiled, with_value(whole, path, amount))
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("nodes", 0, "status", "allocatable", "cpu"), 10**18),
        (("resourceclaims", 0, "spec", "devices", "requests"), True),
        (("podSpecs", 0, "tolerations"), [{"key": "x" * 2_000_000}]),
    ],
)
def test_objects_that_are_none(compiled: Compilation, whole: bytes, path: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(SnapshotError, match="the snapshot is damaged") as refused:
        plan(compiled, with_value(whole, path, value))
    assert len(str(refused.value)) < 800


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("resourceclaims", 0, "spec", "devices", "requests"), ["x"]),
        (("pods", 0, "metadata", "creationTimestamp"), "yesterday"),
        (("persistentvolumeclaims", 0, "spec"), {}),
    ],
)
def test_objects_that_only_they_suffer_from(
    compiled: Compilation, whole: bytes, path: tuple[str | int, ...], value: Any
) -> None:
    plan(compiled, with_value(whole, path, value))


def test_no_machines(compiled: Compilation, whole: bytes) -> None:
    plan(compiled, with_value(with_value(whole, ("nodes",), []), ("pods",), []))


def test_nesting_and_repeats(compiled: Compilation, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(SnapshotError, match="nested deeper than 32 levels"):
        plan(compiled, with_value(whole, ("podSpecs", 0, "affinity"), deep))
    data = orjson.loads(whole)
    data["objects"]["nodes"].append(copy.deepcopy(data["objects"]["nodes"][0]))
    with pytest.raises(SnapshotError, match="is a duplicate"):
        plan(compiled, orjson.dumps(data))
    monkeypatch.setattr(loader, "MAX_BYTES", 10)
    with pytest.raises(SnapshotError, match="larger than 0 MiB"):
        read(whole, "state.json")


def test_a_label_may_be_called_capacity(compiled: Compilation, whole: bytes) -> None:
    plan(compiled, with_value(whole, ("pods", 0, "metadata", "labels"), {"capacity": "large", "requests": "many"}))
