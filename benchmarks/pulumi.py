"""`avactl up` of a stack of 1,000 objects beside `kubectl apply --server-side` of the same, with the real engine.

Each contestant has an API server of its own that has only the team's namespace, and applies twice; nothing has changed
for the second time. Then one job changes. Figures are of whole processes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.table import Table

from avactl.compiler import compile_tree
from avactl.program.manifest import Manifest
from avactl.spec.repository.tree import DirTree
from benchmarks.measure import Bar, bar, console
from benchmarks.reconcile import timed
from tools.controlplane import ControlPlane, UnavailableError, build_binaries
from tools.pulumi import find_engine

FIRST_SECONDS, SECOND_SECONDS = 30.0, 10.0
"""At most, for 1,000 objects on four cores."""
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
  suspended: true
"""
"""Suspended, so that applying is measured, not the controllers."""


def write_specs(directory: Path, objects: int) -> list[Manifest]:
    """Write a repository whose team has at least this number of objects; return them."""
    (directory / "platform.yaml").write_text(_SPECS)
    count = objects
    while True:
        (directory / "jobs.yaml").write_text("---\n".join(_JOB.format(number=number) for number in range(count)))
        compilation = compile_tree(DirTree(directory))
        if not compilation.ok:
            raise SystemExit("\n".join(d.message for d in compilation.diagnostics))
        manifests = [manifest for manifest in compilation.manifests if manifest.item.team]
        if len(manifests) - objects < 10:
            return manifests
        count = -(-count * objects // len(manifests))


def apply_each(commands: Sequence[Sequence[str]], manifests: Sequence[Manifest]) -> list[tuple[float, float]]:
    """Return wall and CPU seconds of each command, on a new API server, from an empty state store."""
    with (
        tempfile.TemporaryDirectory(prefix="avactl-bench-") as store,
        ControlPlane(controller_manager=True) as plane,
        plane.client() as kube,
    ):
        os.environ |= {
            "PULUMI_BACKEND_URL": Path(store).as_uri(),
            "PULUMI_HOME": store,
            "KUBECONFIG": str(plane.kubeconfig),
        }
        for name in sorted({manifest.namespace for manifest in manifests if manifest.namespace}):
            if kube.find("v1", "Namespace", name) is None:
                kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return [timed(command) for command in commands]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=1000)
    objects = parser.parse_args().objects
    try:
        kubectl = str(build_binaries(["kubectl"])["kubectl"])
        path = find_engine()
    except UnavailableError as reason:
        console.print(f"skipped: {reason}")
        return
    os.environ |= {"PATH": path, "PULUMI_CONFIG_PASSPHRASE": "bench", "PULUMI_SKIP_UPDATE_CHECK": "true"}
    with tempfile.TemporaryDirectory(prefix="avactl-bench-") as place:
        specs, changed, rendered = (Path(place, name) for name in ("specs", "changed", "objects.yaml"))
        specs.mkdir()
        manifests = write_specs(specs, objects)
        rendered.write_text(yaml.dump_all([m.body for m in manifests], Dumper=yaml.CSafeDumper))
        shutil.copytree(specs, changed)
        jobs = changed / "jobs.yaml"
        jobs.write_text(jobs.read_text().replace("train:1", "train:2", 1))
        kubectl_apply = [kubectl, "apply", "--server-side", "--filename", str(rendered)]
        up = [sys.executable, "-m", "avactl.cli.main", "up", "--yes", "--stack", "main.vision"]
        load = os.getloadavg()[0]
        peer = apply_each([kubectl_apply] * 2, manifests)  # it refuses to change a Job
        own = apply_each([[*up, str(specs)], [*up, str(specs)], [*up, str(changed)]], manifests)
    title = f"{len(manifests)} objects, load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    table = Table("", "avactl up, s", "CPU s", "kubectl apply --server-side, s", "CPU s", "ratio", title=title)
    for name, (wall, cpu), (other, other_cpu) in zip(("first", "unchanged"), own, peer, strict=False):
        table.add_row(name, f"{wall:.1f}", f"{cpu:.1f}", f"{other:.1f}", f"{other_cpu:.1f}", f"{wall / other:.2f}")
    wall, cpu = own[2]
    table.add_row("one job changed", f"{wall:.1f}", f"{cpu:.1f}", "", "", "")
    console.print(table)
    scale = 1000 / len(manifests)
    bar(Bar("pulumi-first-up", own[0][0] * scale, FIRST_SECONDS, " s", 1))
    bar(Bar("pulumi-second-up", own[1][0] * scale, SECOND_SECONDS, " s", 1))


if __name__ == "__main__":
    main()
