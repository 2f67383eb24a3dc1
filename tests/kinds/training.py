"""Compiled training jobs, as tests look at them."""

from __future__ import annotations

import re
from collections.abc import Callable
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
PS = HEAD + "  strategy: parameterServer\n  servers: {replicas: 2, cpu: 4}\n"
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
spec: {{cluster: modern, machineType: v100-pcie-8, count: 4, rdmaResource: rdma/hca, devicesChosenBy: scheduler}}
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
    role = pod(found, role)["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]
    named = [each for each in (*spec["containers"], *spec.get("initContainers", ())) if each["name"] == role]
    assert len(named) == 1
    main: dict[str, Any] = named[0]
    return main


def env(found: Objects, role: str = "worker", index: int = 0) -> dict[str, str]:
    """What the process of one pod sees.

    Values of Secrets and of fields that exist in a running pod only are left out.
    """
    running = {"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": str(index)}}}
    entries = container(found, role)["env"]
    return resolved(entries, running, lambda name, key: str(found["ConfigMap", name]["data"][key]))


def resolved(entries: list[dict[str, Any]], pod: dict[str, Any], text: Callable[[str, str], str]) -> dict[str, str]:
    """The variables of a container: `$(NAME)` is put in as the kubelet does it, from what stands above.

    `text` returns the value of a key of a ConfigMap.
    """
    seen: dict[str, str] = {}
    for entry in entries:
        source = entry.get("valueFrom", {})
        if "configMapKeyRef" in source:
            reference = source["configMapKeyRef"]
            seen[entry["name"]] = text(reference["name"], reference["key"])
        elif "fieldRef" in source:
            value = field(pod, source["fieldRef"]["fieldPath"])
            if value is not None:
                seen[entry["name"]] = value
        elif not source:
            value = entry.get("value", "")
            seen[entry["name"]] = re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda match: seen.get(match[1], match[0]), value)
    return seen


def field(pod: dict[str, Any], path: str) -> str | None:
    """A field of a pod by its path, such as `metadata.annotations['a.b/c']`; None if the pod does not have it."""
    found: Any = pod
    for dotted, quoted in re.findall(r"(\w+)|\['([^']+)'\]", path):
        found = found.get(dotted or quoted) if found is not None else None
    return None if found is None else str(found)


def host(role: str, index: int) -> str:
    return f"net-{role}-{index}.net-rendezvous.vision.svc"
