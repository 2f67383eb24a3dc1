"""Machines without GPUs: types, pools, capacity, and what plan and pictures make of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from avactl.change.plan.planner import declared_cluster
from avactl.contracts.document import load
from avactl.contracts.scheduling import PoolFacts
from avactl.program import registry
from avactl.scheduler.inspection import usage
from avactl.scheduler.inspection.pool_svg import draw
from avactl.workbench.graph import draw as draw_graph
from tests.kinds.compiling import DIGEST, codes, compiled, unchecked

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/kubectl{DIGEST}}}
  daemons: {{scheduler: true}}
---
kind: Team
metadata: {{name: vision}}
---
kind: MachineType
metadata: {{name: cpu-32}}
spec: {{cpu: 30, memory: 100Gi}}
---
kind: NodePool
metadata: {{name: cpu}}
spec: {{cluster: main, machineType: cpu-32, count: 2POOL}}
"""
GPUS = """
---
kind: NodePool
metadata: {name: t4}
spec: {cluster: main, machineType: t4, count: 2, taints: [{key: nvidia.com/gpu}]}
"""
JOB = """
---
kind: TrainingJob
metadata: {name: etl, team: vision}
spec:
  image: registry.example.com/m:1
  command: [./train]
  checkpoint: {path: s3://vision/etl}
  strategy: STRATEGY
  workers: WORKERS
"""


def platform(pool: str = "", workers: str = "") -> str:
    job = JOB.replace("STRATEGY", "allReduce" if "replicas" in workers else "single").replace("WORKERS", workers)
    return PLATFORM.replace("POOL", pool) + GPUS + (job if workers else "")


def messages(text: str) -> list[str]:
    return [str(each.message) for each in unchecked(text).diagnostics]


def pool_facts(text: str) -> dict[str, Any]:
    (body,) = (each.body for each in compiled(text).manifests if each.name == "avactl-pool-cpu")
    found: dict[str, Any] = json.loads(body["data"]["pool.json"])
    assert load(PoolFacts, body["data"]["pool.json"]).machine.gpus is None
    return found


def test_a_pool_says_nothing_of_gpus() -> None:
    found = pool_facts(platform())
    assert "gpus" not in found["machine"]
    assert (found["machine"]["cpu"], found["machine"]["switches"]) == (30.0, [])
    assert found["allocation"] == {"method": "devicePlugin"}
    assert found["nodeLabels"] == {"avactl.dev/pool": "cpu"}
    result = compiled(platform())
    (pool,) = (item for item in result.program.pools() if item.name == "cpu")
    facts = registry.get_kind("NodePool").facts(pool, result.program)
    assert (facts["machines"], facts["GPUs"], facts["allocation"]) == (2, None, None)
    assert result.program.gpu_models("main") == ["T4"]


@pytest.mark.parametrize(
    "key", ["switches: [{gpus: [0]}]", "nvlink: {generation: 4, nvswitchLinks: 18}", "bandwidth: {}"]
)
def test_connections_need_gpus(key: str) -> None:
    text = platform().replace("memory: 100Gi", f"memory: 100Gi, {key}")
    assert codes(unchecked(text)) == ([] if key == "bandwidth: {}" else ["invalid-topology"])


@pytest.mark.parametrize("key", ["allocation: dra", "resourceName: amd.com/gpu", "price: 2"])
def test_keys_about_gpus_have_no_effect(key: str) -> None:
    result = unchecked(platform(f", {key}").replace("daemons:", "prices: {currency: EUR}\n  daemons:"))
    assert codes(result) == ["without-effect"]
    assert result.ok
    assert not [each for each in result.manifests if each.kind == "DeviceClass"]


@pytest.mark.parametrize(
    ("pool", "workers", "wanted"),
    [
        ("", "{cpu: 30, memory: 100Gi, replicas: 2}", []),
        ("", "{cpu: 30, memory: 100Gi, replicas: 2, pool: cpu}", []),
        ("", "{cpu: 31}", ["pod-never-fits"]),
        ("", "{cpu: 4, memory: 101Gi}", ["pod-never-fits"]),
        ("", "{cpu: 30, replicas: 3}", ["gang-never-fits"]),
        ("", "{cpu: 31, pool: cpu}", ["pod-never-fits"]),
        ("", "{gpus: 1, pool: cpu}", ["gpu-not-in-cluster"]),
        ("", "{gpus: 1}", []),
        # Reserved machines are for those that name them, and others need not be declared.
        (", taints: [{key: example.com/etl}]", "{cpu: 64}", []),
        (", capacity: spot", "{cpu: 64}", []),
        (", taints: [{key: example.com/etl}]", "{cpu: 64, pool: cpu}", ["pod-never-fits"]),
    ],
)
def test_capacity(pool: str, workers: str, wanted: list[str]) -> None:
    assert codes(unchecked(platform(pool, workers))) == wanted


def test_machines_with_gpus_and_without_taints_hold_other_pods_too() -> None:
    text = platform("", "{cpu: 15, memory: 10Gi, replicas: 6}")
    assert messages(text) == ["6 pods cannot run at the same time: pool cpu fits 4"]
    assert codes(unchecked(text.replace(", taints: [{key: nvidia.com/gpu}]", ""))) == []


def test_gpus_of_a_cluster_without_them() -> None:
    text = platform("", "{gpus: 1}").replace(GPUS, "")
    assert messages(text) == ["cluster main has no GPUs: its node pools have CPUs only"]


def test_plan_and_pictures() -> None:
    result = compiled(platform("", "{cpu: 20, memory: 10Gi, replicas: 2}"))
    cache = declared_cluster(result, "main")
    on = {pod.key: name for name, pods in cache.tables.pods_by_node.items() for pod in pods.values()}
    assert {on["vision/etl-worker-0-base"], on["vision/etl-worker-1-base"]} == {"cpu-0000", "cpu-0001"}
    (cpu, t4) = usage.pools(cache)
    assert (cpu.name, cpu.model, cpu.machines, cpu.gpus, cpu.used) == ("cpu", "", 2, 0, 0)
    assert (t4.name, t4.gpus) == ("t4", 2)
    picture = draw(cache)
    assert "2 machines · 42 of 60 CPU cores in use" in picture  # each holds a scheduler, too
    assert "cpu-0001, 20 of 30 CPU cores: vision/etl of vision" in picture
    assert "cpu-0000" not in draw(cache, ["t4"])
    assert "60 cores" in draw_graph(result)


def test_pods_may_tolerate_a_reserved_pool_by_their_settings() -> None:
    large = """
---
kind: MachineType
metadata: {name: cpu-128}
spec: {cpu: 120, memory: 400Gi}
---
kind: NodePool
metadata: {name: large}
spec: {cluster: main, machineType: cpu-128, count: 1, taints: [{key: large}]}
"""
    text = platform(workers="{cpu: 100, memory: 10Gi}") + "  pod: {tolerations: [{key: large, effect: NoSchedule}]}"
    assert codes(unchecked(text + large)) == []
    assert codes(unchecked(text.replace("cpu: 100", "cpu: 200") + large)) == ["pod-never-fits"]
    assert codes(unchecked(platform(workers="{cpu: 100, memory: 10Gi}") + large)) == ["pod-never-fits"]
