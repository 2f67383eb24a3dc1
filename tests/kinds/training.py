"""Compiled training jobs, as tests look at them."""

from __future__ import annotations

import re
from typing import Any

from tests.kinds.on_base import Objects

HEAD = """
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: net, team: vision}
spec:
  image: registry.example.com/vision/train:1
  command: [python, train.py]
"""
PLATFORM = f"""
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {{name: modern}}
spec:
  daemons: {{scheduler: true}}
  images: {{avactl: "registry.example.com/avactl@sha256:{"a" * 64}"}}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {{name: h100}}
spec:
  cluster: modern
  machineType: h100-sxm-8
  count: 4
  allocation: dra
  labels: {{example.com/fabric: ib}}
  taints: [{{key: example.com/gpu}}]
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: modern, machineType: v100-pcie-8, count: 4, rdmaResource: rdma/hca}}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {{name: vision}}
spec:
  buckets: [{{name: results, url: "s3://results/vision", secret: results-s3}}]
---
"""


def job(found: Objects, role: str = "worker") -> dict[str, Any]:
    body: dict[str, Any] = found["Job", f"net-{role}"]
    return body


def pod(found: Objects, role: str = "worker") -> dict[str, Any]:
    template: dict[str, Any] = job(found, role)["spec"]["template"]
    return template


def container(found: Objects, role: str = "worker") -> dict[str, Any]:
    """The container of user code: the main one, or the sidecar of a pod that follows another Job."""
    spec = pod(found, role)["spec"]
    named = [each for each in (*spec["containers"], *spec.get("initContainers", ())) if each["name"] == role]
    assert len(named) == 1
    main: dict[str, Any] = named[0]
    return main


def env(found: Objects, role: str = "worker", index: int = 0) -> dict[str, str]:
    """What the process of one pod sees: `$(NAME)` is put in as the kubelet does it, from what stands above.

    Values of Secrets and of fields that exist in a running pod only are left out.
    """
    seen: dict[str, str] = {}
    for entry in container(found, role)["env"]:
        source = entry.get("valueFrom", {})
        if "value" in entry:
            text = re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda match: seen.get(match[1], match[0]), entry["value"])
            seen[entry["name"]] = text
        elif "job-completion-index" in source.get("fieldRef", {}).get("fieldPath", ""):
            seen[entry["name"]] = str(index)
        elif "configMapKeyRef" in source:
            reference = source["configMapKeyRef"]
            seen[entry["name"]] = found["ConfigMap", reference["name"]]["data"][reference["key"]]
    return seen


def host(role: str, index: int) -> str:
    return f"net-{role}-{index}.net-rendezvous.vision.svc"
