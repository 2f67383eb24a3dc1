"""A small repository with a spec of every kind, and hands to change it."""

from __future__ import annotations

from avactl.compiler import Compilation, compile_tree
from avactl.spec.repository.tree import MemoryTree

_DIGEST = "@sha256:" + "a" * 64

PLATFORM = f"""
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {{name: main}}
spec:
  images:
    avactl: registry.example.com/avactl{_DIGEST}
    alluxio: registry.example.com/alluxio{_DIGEST}
    git: registry.example.com/git{_DIGEST}
    tensorboard: registry.example.com/tensorboard{_DIGEST}
    fetch: registry.example.com/rclone{_DIGEST}
---
apiVersion: avactl.dev/v1
kind: MachineType
metadata: {{name: eight}}
spec:
  gpus: {{model: V100, count: 8, memory: 32Gi}}
  cpu: 96
  memory: 768Gi
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: v100-pcie-8, nodes: [gpu-a, gpu-b]}}
---
apiVersion: avactl.dev/v1
kind: CacheTier
metadata: {{name: read}}
spec:
  cluster: main
  role: read
  workers: {{tiers: [{{medium: MEM, quota: 64Gi}}]}}
  underStores: [{{mount: /imagenet, url: "s3://imagenet", secret: imagenet-s3}}]
---
apiVersion: avactl.dev/v1
kind: Dataset
metadata: {{name: imagenet}}
spec:
  tier: read
  size: 150Gi
  versions: [{{name: v1, url: "s3://imagenet/v1"}}]
"""

TEAM = """
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec:
  members: {groups: [vision]}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {name: gpus, team: vision}
spec:
  gpus: [{gpu: V100, guaranteed: 16}]
"""

WORK = f"""
apiVersion: avactl.dev/v1
kind: Workspace
metadata: {{name: anna, team: vision}}
spec: {{user: anna@example.com, image: "registry.example.com/jupyter{_DIGEST}", storage: 20Gi}}
---
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{name: resnet, team: vision}}
spec:
  strategy: allReduce
  image: registry.example.com/train{_DIGEST}
  command: [python, train.py]
  workers: {{replicas: 2, gpus: 1}}
  datasets: [{{name: imagenet, mount: /data}}]
  checkpoint: {{volume: 50Gi}}
---
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: detector, team: vision}}
spec:
  model: {{name: detector, version: "3", url: "s3://models/detector/3", secret: models-s3}}
  runtime: {{name: triton, image: "registry.example.com/triton{_DIGEST}"}}
  replicas: {{min: 1, max: 3}}
"""

FILES = {"platform.yaml": PLATFORM, "team.yaml": TEAM, "work.yaml": WORK}


def files(*replace: tuple[str, str], team: str = "vision") -> dict[str, str]:
    """The repository's files with some text replaced, each of which must be there; `team` is the team's name."""
    result = dict(FILES)
    for old, new in replace:
        assert any(old in text for text in result.values()), old
        result = {path: text.replace(old, new) for path, text in result.items()}
    return {path: text.replace("vision", team) for path, text in result.items()}


def compiled(*replace: tuple[str, str]) -> Compilation:
    """The repository compiled; without problems."""
    compilation = compile_tree(MemoryTree(files(*replace)))
    assert compilation.ok, [f"{d.span} {d.message}" for d in compilation.diagnostics]
    return compilation
