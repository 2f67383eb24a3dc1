"""The FUSE pod of a cache tier and a job that reads its dataset through it, both as compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from avactl.compiler import Compilation
from tests.e2e.pods import TIMEOUT, is_ready
from tests.kinds.compiling import body, compiled
from tools import image
from tools.controlplane import KubeClient
from tools.fuse import require_fuse
from tools.realnode import RealNode
from tools.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.short, pytest.mark.xdist_group("real-nodes")]

# Its name is that of `platform.py`, on the same nodes: a run is refused where another Cluster is carried.
SPECS = """
kind: Cluster
metadata: {name: lab}
spec:
  images: {alluxio: "FUSE"}
---
kind: CacheTier
metadata: {name: read}
spec:
  cluster: lab
  role: read
  workers: {tiers: [{medium: MEM, quota: 2Gi}]}
  fuse: {cpu: 50m, memory: 1Gi}
  underStores: [{mount: /datasets, url: "s3://datasets", secret: datasets-s3}]
---
kind: Team
metadata: {name: vision}
spec: {}
---
kind: Dataset
metadata: {name: digits, team: vision}
spec: {tier: read, size: 1Gi, versions: [{name: v1, url: "s3://datasets/digits/v1"}]}
---
kind: TrainingJob
metadata: {name: count, team: vision}
spec:
  image: "SHELL"
  command: [sh, -c, "while sleep 0.2; do cat /datasets/digits/process || echo lost; done"]
  workers: {cpu: 50m, memory: 32Mi}
  datasets: [{name: digits, mount: /datasets/digits}]
"""
SERVER = """
import errno, os, stat, sys
from fusepy import FUSE, FuseOSError, Operations

NAMES = {"/": "datasets", "/datasets": "digits", "/datasets/digits": "v1", "/datasets/digits/v1": "process"}
TEXT = b"process %d\\n" % (os.stat("/proc/1").st_ctime_ns)

class Tier(Operations):
    def getattr(self, path, handle=None):
        if path in NAMES:
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path != "/datasets/digits/v1/process":
            raise FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": len(TEXT)}

    def readdir(self, path, handle):
        return [".", "..", NAMES[path]]

    def read(self, path, size, offset, handle):
        return TEXT[offset : offset + size]

FUSE(Tier(), sys.argv[1], foreground=True, allow_other=True, direct_io=True)
"""
ENTRY = """\
#!/bin/bash
# fuse --fuse-opts=… DIRECTORY /
export FUSE_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/libfuse.so.2
exec python3 /entry/server.py "$3"
"""
NOT_HERE = {"StatefulSet", "CustomResourceDefinition", "NetworkPolicy"}
"""Masters and workers need Alluxio, which the FUSE of this test is not."""


@pytest.fixture
def tier(node: RealNode, kube: KubeClient, busybox: str) -> Iterator[Compilation]:
    """The platform, applied; what stands for Alluxio's FUSE is its entry point only."""
    require_fuse()
    fuse = node.image(image.python("python3-fusepy", "libfuse2", "fuse3", "bash"))
    result = compiled(SPECS.replace("FUSE", fuse).replace("SHELL", busybox))
    workers = ("read-worker", "read-mount")
    for manifest in result.manifests:
        if manifest.kind in NOT_HERE or manifest.name.startswith(workers) or manifest.patch:
            continue
        made = manifest.body
        if manifest.kind == "DaemonSet":
            pod = made["spec"]["template"]["spec"]
            pod["volumes"].append({"name": "entry", "configMap": {"name": "entry"}})
            (container,) = (each for each in pod["containers"] if each["name"] == "fuse")
            container["volumeMounts"] += [
                {"name": "entry", "mountPath": "/entry"},
                {"name": "entry", "mountPath": "/entrypoint.sh", "subPath": "entrypoint.sh"},
            ]
            data = {"entrypoint.sh": ENTRY, "server.py": SERVER}
            metadata = {"name": "entry", "namespace": "avactl-cache"}
            pod["volumes"][-1]["configMap"]["defaultMode"] = 0o555
            kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        kube.apply(made, field_manager="avactl")
    yield result
    kube.delete("batch/v1", "Job", "count-worker", "vision")
    kube.delete("apps/v1", "DaemonSet", "read-fuse", "avactl-cache")


def test_a_job_reads_on_after_its_fuse_pod_was_killed(node: RealNode, kube: KubeClient, tier: Compilation) -> None:
    assert body(tier, "DaemonSet", "read-fuse", "avactl-cache", cluster="lab")
    select = "app.kubernetes.io/component=fuse"
    pods = {pod["metadata"]["uid"] for pod in _await_pods(kube, "avactl-cache", select, len(node.names))}
    (reader,) = _await_pods(kube, "vision", "batch.kubernetes.io/job-name=count-worker", 1)
    name, machine = reader["metadata"]["name"], reader["spec"]["nodeName"]
    first = _line(node, name, lambda line: line.startswith("process "))
    for _ in range(2):
        node.run("pkill", "-9", "-f", "/entry/server.py", node=node.names.index(machine))
        _line(node, name, lambda line: line == "lost")
        first = _line(node, name, partial(_other, first))
    (again,) = _await_pods(kube, "vision", "batch.kubernetes.io/job-name=count-worker", 1)
    assert again["metadata"]["uid"] == reader["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] == 0
    assert {pod["metadata"]["uid"] for pod in _await_pods(kube, "avactl-cache", select, len(pods))} == pods


def _other(before: str, line: str) -> bool:
    return line.startswith("process ") and line != before


def _await_pods(kube: KubeClient, namespace: str, selector: str, count: int) -> list[dict[str, Any]]:
    def pods() -> list[dict[str, Any]]:
        return kube.list("v1", "Pod", namespace, label_selector=selector)

    def ready() -> list[dict[str, Any]]:
        found = pods()
        return found if len(found) == count and all(is_ready(pod) for pod in found) else []

    return wait_until(ready, timeout=TIMEOUT, poll=0.5, details=lambda: [pod["status"] for pod in pods()])


def _line(node: RealNode, pod: str, wanted: Callable[[str], bool]) -> str:
    """Return the last line of the job's log once it is the wanted one."""

    def last() -> str:
        lines = node.logs("vision", pod, "--tail=1").splitlines()
        return lines[-1] if lines else ""

    return wait_until(lambda: line if wanted(line := last()) else "", timeout=TIMEOUT, details=last)
