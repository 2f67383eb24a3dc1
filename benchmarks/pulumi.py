"""`avactl up` of a fresh stack of 1,000 resources, with the real engine on the test control plane.

    python -m benchmarks.pulumi [--resources 1000]

The engine's defaults write the stack's whole state after every step; `--fast` writes it once, at the end. Both runs
start with an empty cluster and an empty state store. Needs `pulumi` and its Kubernetes plugin on PATH.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from rich.table import Table

from avactl.apply.pulumi.engine import EngineOptions, Session, StackName
from avactl.compiler import Compilation, compile_tree
from avactl.spec.repository.tree import MemoryTree
from benchmarks.measure import Bar, bar, console
from tools.controlplane import ControlPlane, KubeClient

MOST_SECONDS = 30.0
"""For 1,000 resources on four cores."""
_SPECS = """apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: a10}
spec: {cluster: main, machineType: a10, count: 2000}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec: {members: {groups: [vision]}}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {name: gpus, team: vision}
spec: {gpus: [{gpu: A10, guaranteed: 2000}]}
"""
_JOB = """apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{name: job-{number}, team: vision}}
spec:
  strategy: allReduce
  image: registry.example.com/train:1
  command: [python, train.py]
  workers: {{replicas: 2, gpus: 1, cpu: 4, memory: 8Gi}}
"""


def compiled(resources: int) -> Compilation:
    """Compile a team with at least `resources` objects."""
    count = resources
    while True:
        jobs = "---\n".join(_JOB.format(number=number) for number in range(count))
        compilation = compile_tree(MemoryTree({"platform.yaml": _SPECS, "jobs.yaml": jobs}))
        if not compilation.ok:
            raise SystemExit("\n".join(d.message for d in compilation.diagnostics))
        found = sum(1 for manifest in compilation.manifests if manifest.item.team)
        if found - resources < 10:
            return compilation
        count = -(-count * resources // found)


def measure(compilation: Compilation, *, fast: bool) -> tuple[int, float]:
    """Return resources and seconds of one `up` on an empty cluster, without the platform's stack."""
    with (
        tempfile.TemporaryDirectory(prefix="avactl-bench-") as place,
        ControlPlane(controller_manager=True) as plane,
        plane.client() as kube,
    ):
        os.environ["PULUMI_BACKEND_URL"] = Path(place).as_uri()
        options = EngineOptions(Path(place), plane.kubeconfig, {"main": "avactl"}, fast=fast)
        _namespaces(compilation, kube)
        session = Session(compilation, StackName("main", "vision"), options)
        began = time.perf_counter()
        report = session.up()
        return report.counts["new"], time.perf_counter() - began


def _namespaces(compilation: Compilation, kube: KubeClient) -> None:
    for manifest in compilation.manifests:
        if manifest.kind == "Namespace":
            kube.create(manifest.body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resources", type=int, default=1000)
    resources = parser.parse_args().resources
    missing = [tool for tool in ("pulumi", "pulumi-resource-kubernetes") if shutil.which(tool) is None]
    if missing:
        console.print(f"skipped: not on PATH: {', '.join(missing)}")
        return
    os.environ |= {"PULUMI_CONFIG_PASSPHRASE": "bench", "PULUMI_SKIP_UPDATE_CHECK": "true"}
    compilation = compiled(resources)
    count, fast = measure(compilation, fast=True)
    _, safe = measure(compilation, fast=False)
    load = os.getloadavg()[0]
    table = Table(
        "state is written", "seconds", "resources/s", title=f"A fresh stack of {count} resources, load {load:.1f}"
    )
    for name, seconds in (("after every step", safe), ("once: --fast", fast)):
        table.add_row(name, f"{seconds:.1f}", f"{count / seconds:.0f}")
    console.print(table)
    bar(Bar("pulumi-fresh-stack", fast * 1000 / count, MOST_SECONDS, " s", 1))


if __name__ == "__main__":
    main()
