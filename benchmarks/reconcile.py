"""avactl reconcile against kubectl on a real API server: apply a thousand objects, and a run without changes.

Both sides apply the same objects in one run, each to its own API server with the controller manager running. All
figures are wall time of the whole process.

Lower bounds are reported too: the CPU time of the control plane for each side's requests, and the time of a bare loop
of the same applies on a third control plane, without start-up, compile, comparison and inventory. No client that sends
one apply per object is faster than that loop, or than all CPU time divided by the number of cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks import measure
from benchmarks.measure import Bar
from tools.controlplane import ControlPlane, UnavailableError, build_binaries

OBJECTS = 1000
_CLUSTER = """\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: bench}
spec: {reconcile: {mode: builtin}}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: a10}
spec: {cluster: bench, machineType: a10, count: 64}
"""
_TEAM = """\
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: TEAM}
spec: {members: {groups: [TEAM]}}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {name: gpus, team: TEAM}
spec: {gpus: [{gpu: A10, guaranteed: 2}]}
"""
_JOB = """\
---
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: job-NUMBER, team: TEAM}
spec:
  strategy: allReduce
  image: docker.io/pytorch/pytorch:2.8.0-cuda12.9-cudnn9-runtime
  command: [python, train.py, --lr, "0.NUMBER"]
  workers: {replicas: 2, gpus: 1, cpu: "4", memory: 16Gi}
  suspended: true
"""
_JOBS = 10
"""One team's jobs. They are suspended, so that applying is measured, not the controllers."""


def write_specs(directory: Path, objects: int) -> int:
    """Write a repository that compiles to about `objects` objects; return the exact number."""
    from avactl.compiler import compile_tree
    from avactl.spec.repository.tree import DirTree

    (directory / "platform.yaml").write_text(_CLUSTER)
    count = team = 0
    while count < objects:
        text = _TEAM.replace("TEAM", f"team-{team}")
        for number in range(_JOBS):
            text += _JOB.replace("NUMBER", str(number)).replace("TEAM", f"team-{team}")
        (directory / f"team-{team}.yaml").write_text(text)
        team += 1
        compilation = compile_tree(DirTree(directory))
        assert compilation.ok, compilation.diagnostics[:3]
        count = len(compilation.manifests)
    return count


def timed(command: Sequence[str], allowed: Sequence[int] = (0,)) -> tuple[float, float]:
    """Return wall time and CPU time of the process in seconds. Raises CommandError."""
    before = os.times()
    began = time.perf_counter()
    # An installed package includes its bytecode.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    seconds = time.perf_counter() - began
    after = os.times()
    if done.returncode not in allowed:
        raise measure.CommandError(
            f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return seconds, sum(after[2:4]) - sum(before[2:4])


def plane_cpu(plane: ControlPlane) -> float:
    """Return the CPU time of a control plane so far, in seconds."""
    components = ("etcd", "kube-apiserver", "kube-controller-manager")
    return sum(measure.cpu_seconds(plane.pid(component)) for component in components)


def bare(specs: Path, kubeconfig: Path) -> float:
    """Return the seconds for the same applies by a bare loop."""
    from avactl.apply.reconcile.desired import wanted_of
    from avactl.base.object_identity import Gvk
    from avactl.compiler import compile_tree
    from avactl.kube.access import from_kubeconfig
    from avactl.kube.client import Client
    from avactl.kube.object_client import ObjectClient
    from avactl.spec.repository.tree import DirTree

    wanted = [each for each in wanted_of(compile_tree(DirTree(specs)), "bench", "bench") if not each.manifest.patch]
    first, last = ("Namespace", "PriorityClass"), ("RoleBinding", "ClusterRoleBinding")

    def order(kind: str) -> int:
        return 0 if kind in first else 2 if kind in last else 1

    async def go() -> float:
        async with Client(from_kubeconfig(kubeconfig)) as client:
            api = ObjectClient(client)
            await api.find_kinds({Gvk.of(each.body) for each in wanted})
            began = time.perf_counter()
            for turn in range(3):
                bodies = (each.body for each in wanted if order(each.gvk.kind) == turn)
                await asyncio.gather(*map(api.apply, bodies))
            return time.perf_counter() - began

    return asyncio.run(go())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=OBJECTS, help=f"about how many; default {OBJECTS}")
    parser.add_argument("--repeats", type=int, default=3, help="of all runs; the medians count")
    options = parser.parse_args()
    try:
        kubectl = str(build_binaries(["kubectl"])["kubectl"])
    except UnavailableError as reason:
        print(reason)
        return
    with tempfile.TemporaryDirectory(prefix="avactl-bench-") as folder:
        run(Path(folder), kubectl, options.objects, options.repeats)


def run(folder: Path, kubectl: str, objects: int, repeats: int) -> None:
    """Measure, and print the results."""
    specs, files = folder / "specs", folder / "files"
    specs.mkdir()
    count = write_specs(specs, objects)
    avactl = [sys.executable, "-m", "avactl.cli.main"]
    timed([*avactl, "render", str(specs), "-o", str(files)])
    timed([*avactl, "reconcile", "--help"])
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    load = os.getloadavg()[0]
    where = ["-R", "-f", str(files)]
    took: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    # Alternate, each time on new control planes, so that other load affects both sides alike.
    for _ in range(repeats):
        with ControlPlane(controller_manager=True) as one:
            ours = [*avactl, "reconcile", str(specs), "--once", "--no-wait", "--kubeconfig", str(one.kubeconfig)]
            before = plane_cpu(one)
            took["apply"].append((*timed(ours), plane_cpu(one) - before))
            took["quiet"].append(timed(ours))
        with ControlPlane(controller_manager=True) as other:
            theirs = [kubectl, "--kubeconfig", str(other.kubeconfig)]
            before = plane_cpu(other)
            applied = timed([*theirs, "apply", "--server-side", "--field-manager=bench", *where])
            took["kubectl apply"].append((*applied, plane_cpu(other) - before))
            took["kubectl diff"].append(
                timed([*theirs, "diff", "--server-side", "--field-manager=bench", *where], allowed=(0, 1))
            )
        with ControlPlane(controller_manager=True) as third:
            took["bare"].append((bare(specs, third.kubeconfig),))
    # Separate medians of wall times, of the clients' CPU times, and of the control planes'.
    middle = {name: tuple(map(statistics.median, zip(*runs, strict=True))) for name, runs in took.items()}
    (*apply, served), (*kubectl_apply, kubectl_served) = middle["apply"], middle["kubectl apply"]
    quiet, kubectl_diff, (loop,) = middle["quiet"], middle["kubectl diff"], middle["bare"]
    table = Table(title=f"{count} objects, load {load:.1f} at the start")
    for heading in ("", "avactl reconcile", "kubectl", "ratio"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, mine, peer in (
        ("apply (`apply --server-side`)", apply, kubectl_apply),
        ("no changes (`diff`)", quiet, kubectl_diff),
    ):
        table.add_row(name, f"{mine[0]:.2f} s", f"{peer[0]:.2f} s", f"{mine[0] / peer[0]:.3f}")
        table.add_row("  CPU of the client", f"{mine[1]:.2f} s", f"{peer[1]:.2f} s", f"{mine[1] / peer[1]:.3f}")
    table.add_row(
        "  CPU of the control plane, apply",
        f"{served:.2f} s",
        f"{kubectl_served:.2f} s",
        f"{served / kubectl_served:.3f}",
    )
    measure.console.print(table)
    cores = len(os.sched_getaffinity(0))
    least = (served + apply[1]) / cores
    measure.console.print(
        f"bounds of the apply: a bare loop of the same requests {loop:.2f} s ({loop / kubectl_apply[0]:.3f} of "
        f"kubectl); all CPU time on {cores} cores {least:.2f} s ({least / kubectl_apply[0]:.3f})",
        soft_wrap=True,
    )
    measure.bar(Bar("reconcile-apply", apply[0] / kubectl_apply[0], 0.25))
    measure.bar(Bar("reconcile-idle", quiet[0] / kubectl_diff[0], 0.25))


if __name__ == "__main__":
    main()
