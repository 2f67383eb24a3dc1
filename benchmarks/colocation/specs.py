"""The platform, its services and its training job as specs, and the objects that they compile to."""

from __future__ import annotations

from typing import Any, NamedTuple

from avactl.compiler import Compilation, compile_tree
from avactl.diagnostics.text import render_text
from avactl.spec.repository.tree import MemoryTree

TEAM, SYSTEM, CLUSTER = "product", "avactl-system", "main"
GPUS, CPUS = 8, 64
"""Of each machine."""
_DIGEST = "sha256:" + "0" * 64
_PLATFORM = f"""\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {{name: {CLUSTER}}}
spec:
  daemons: {{scheduler: true}}
  images: {{avactl: "example.com/avactl@{_DIGEST}", kubectl: "example.com/kubectl@{_DIGEST}"}}
---
apiVersion: avactl.dev/v1
kind: MachineType
metadata: {{name: a100}}
spec: {{gpus: {{model: A100, count: {GPUS}, memory: 80Gi}}, cpu: {CPUS}, memory: 512Gi}}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {{name: {TEAM}}}
spec: {{members: {{groups: [{TEAM}]}}}}
"""
_POOL = """\
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {{name: {name}}}
spec: {{cluster: main, machineType: a100, count: {nodes}}}
"""
_JOB = """\
---
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{name: train, team: {team}}}
spec:
  strategy: elastic
  framework: custom
  image: example.com/train:1
  command: [python, train.py]
  workers: {{min: 1, max: {most}, gpus: 1, cpu: 2, memory: 8Gi{pool}}}
  master: {{cpu: 50m, memory: 256Mi}}
"""
_SERVICE = """\
---
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: {name}, team: {team}}}
spec:
  model: {{name: {name}, version: "1"}}
  runtime: {{name: custom, image: "example.com/server@{digest}", port: 8080}}
  probe: {{path: /health}}
  resourceClass: {kind}
  resources: {{cpu: {cpu}, memory: 8Gi{gpus}{pool}}}
  replicas: {{min: {least}, max: {most}}}
"""


class Service(NamedTuple):
    """A service whose pods follow a wave over the day."""

    name: str
    kind: str
    """Its resource class."""
    gpus: int
    cpu: int
    least: int
    most: int
    noon: float
    """When it has most pods, as a part of the day."""


SERVICES = (
    Service("chat", "gpu", 1, 4, 4, 18, 0.45),
    Service("vision", "gpu", 2, 4, 2, 6, 0.7),
    Service("rank", "cpu", 0, 8, 4, 14, 0.5),
    Service("features", "io", 0, 2, 4, 10, 0.5),
)


def compiled(machines: dict[str, int], serving: str, training: str) -> Compilation:
    """Return the objects for pools of `machines`; services and training are bound to pools, where these are named.

    Raises RuntimeError if the specs have errors.
    """

    def pool(name: str) -> str:
        return f", pool: {name}" if name else ""

    text = _PLATFORM + "".join(_POOL.format(name=name, nodes=nodes) for name, nodes in machines.items())
    gpus = GPUS * (machines[training] if training else sum(machines.values()))
    text += _JOB.format(team=TEAM, most=gpus, pool=pool(training))
    for each in SERVICES:
        text += _SERVICE.format(
            **{**each._asdict(), "gpus": f", gpus: {each.gpus}" if each.gpus else ""},
            team=TEAM,
            digest=_DIGEST,
            pool=pool(serving) if each.gpus else "",
        )
    result = compile_tree(MemoryTree({"platform.yaml": text.encode()}))
    errors = [each for each in result.diagnostics if each.severity == "error"]
    if errors:
        raise RuntimeError(render_text(errors, lambda path: text))
    return result


def node(pool: str, number: int) -> dict[str, Any]:
    """Return a machine of a pool."""
    name = f"{pool}-{number}"
    amounts = {
        "cpu": str(CPUS),
        "memory": "512Gi",
        "pods": "110",
        "ephemeral-storage": "1Ti",
        "nvidia.com/gpu": str(GPUS),
    }
    labels = {"kubernetes.io/hostname": name, "avactl.dev/pool": pool, "avactl.dev/gpu": "A100"}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}
