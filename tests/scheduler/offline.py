"""A fleet without an API server: machines and pods as plain objects."""

from __future__ import annotations

from typing import Any

from avactl.contracts.document import load
from avactl.contracts.scheduling import POOL_KEY, PoolFacts
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.objects.config import ConfiguredPool
from tests.kinds.compiling import DIGEST, body, compiled

SPECS = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  daemons: {{scheduler: true}}
---
kind: NodePool
metadata: {{name: big}}
spec: {{cluster: main, machineType: a100-sxm-8, count: 4}}
"""
RACK = "topology.kubernetes.io/rack"


def pool(specs: str = SPECS, name: str = "big") -> ConfiguredPool:
    """The pool as the scheduler reads it."""
    config = body(compiled(specs), "ConfigMap", f"avactl-pool-{name}", "avactl-system")
    return ConfiguredPool.from_facts(load(PoolFacts, config["data"][POOL_KEY]))


def node(name: str, gpus: int = 8, rack: str = "", pool: str = "big", **spec: Any) -> dict[str, Any]:
    """A machine."""
    labels = {"avactl.dev/pool": pool, "avactl.dev/gpu": "A100", **({RACK: rack} if rack else {})}
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": amounts}}


def pod(
    name: str, gpus: int, node: str = "", devices: str = "", team: str = "vision", job: str = "", **notes: str
) -> dict[str, Any]:
    """A pod of a job of a team; it runs where it has a node."""
    labels = {"batch.kubernetes.io/job-name": job} if job else {}
    annotations = {f"avactl.dev/{key.replace('_', '-')}": value for key, value in notes.items()}
    if devices:
        annotations["avactl.dev/devices"] = devices
    amounts = {"cpu": "1", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "metadata": {
            "name": name,
            "namespace": team,
            "uid": f"{team}-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "schedulerName": "avactl",
            "containers": [{"name": "main", "resources": {"requests": amounts}}],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


def cache(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> ClusterCache:
    """All of it, accounted for."""
    made = ClusterCache((RACK,))
    made.put_pool(pool())
    for item in nodes:
        made.put_node(item)
    for item in pods:
        made.put_pod(item)
    made.rebuild()
    return made
