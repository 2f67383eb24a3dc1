"""`avactl plan` over 500 jobs on a snapshot of 1,000 machines: the whole command, and the placement alone.

    python -m benchmarks.plan [--jobs 500] [--machines 1000] [--repeats 5]

All jobs change (another image), so the pods of each are stopped, recreated and placed, beside the pods of as many
unchanged jobs and services. Both sides are compiled, from git and from the work tree.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table

from avactl.change.plan.cluster_state import configured_objects, declared_machines, declared_state
from avactl.change.plan.planner import make_plan
from avactl.change.plan.rollout import place_all
from avactl.change.plan.simulator import SimulatedCluster
from avactl.change.plan.snapshot.loader import read, strip_objects, write
from avactl.change.plan.workloads import find_surroundings, find_workloads
from avactl.compiler import Compilation, compile_tree
from avactl.contracts import names
from avactl.contracts.document import load
from avactl.contracts.scheduling import PlacementPolicy
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree import DirTree
from benchmarks.generate import repository
from benchmarks.measure import Bar, bar, best, console, run

AVACTL = [sys.executable, "-m", "avactl.cli.main"]
CLUSTER = "cluster-0"
JOBS_OF_TEAM = 20
_POOLS = {"v100": 0.35, "p100": 0.30, "t4": 0.10, "a10": 0.25}
"""Fraction of the machines by pool."""
_MOST = 2.0
"""Seconds."""


def specs(jobs: int, machines_: int) -> dict[str, str]:
    """Return the files of a repository with one cluster: teams with quotas and jobs; every fifth team has services."""
    found = {}
    for path, text in repository(-(-jobs // JOBS_OF_TEAM)):
        if path.startswith("pools/"):
            for pool, part in _POOLS.items():
                text = re.sub(
                    rf"(name: {CLUSTER}-{pool}\}}.*?count: )\d+",
                    rf"\g<1>{int(machines_ * part)}",
                    text,
                    flags=re.DOTALL,
                )
        if path.startswith("caches/"):
            text = text.replace("quota: 200Gi", "quota: 16Gi")  # the jobs need the memory
        if path.endswith("/team.yaml"):
            text = re.sub(r"gpu: (T4|A10), guaranteed: 64", r"gpu: \1, guaranteed: 8", text)
            text = re.sub(r"guaranteed: 64", f"guaranteed: {machines_ * 2 // 32}", text)
        if "/jobs/" in path:
            # Together they request about as many GPUs as there are.
            text = re.sub(r"replicas: \d+(\s+gpus: 8)", r"replicas: 2\1", text)
        found[path] = text
    return found


def make(folder: Path, jobs: int, machines_: int) -> tuple[Path, Path]:
    """Create a git repository whose work tree changes every job, and a snapshot of the cluster running its base."""
    root = folder / "specs"
    for path, text in specs(jobs, machines_).items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "base"]):
        subprocess.run([*git, *command], check=True)
    state = folder / "state.json"
    state.write_bytes(snapshot(compile_tree(DirTree(root))))
    for file in root.glob("teams/*/jobs/*.yaml"):
        file.write_text(re.sub(r"(sha256:)(.)", lambda m: m[1] + ("b" if m[2] == "a" else "a"), file.read_text()))
    return root, state


def snapshot(base: Compilation) -> bytes:
    """Return a snapshot of a cluster in which the base runs, as far as it fits."""
    if not base.ok:
        raise RuntimeError(base.diagnostics[0])
    manifests = [manifest for manifest in base.manifests if manifest.cluster == CLUSTER]
    world = SimulatedCluster(declared_state(base.program, manifests, CLUSTER))
    claims: list[dict[str, Any]] = []
    for manifest in manifests:
        if manifest.kind == "PersistentVolumeClaim":
            world.want_claim(manifest.namespace, manifest.body)
            spec = {**manifest.body["spec"], "volumeName": "volume"}
            metadata = {**manifest.body["metadata"], "uid": f"{manifest.namespace}/{manifest.name}"}
            claims.append({"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}})
    place_all(
        world,
        find_workloads(manifests, CLUSTER).values(),
        find_surroundings(manifests, CLUSTER),
        "2026-01-01T00:00:00Z",
        "live",
    )
    policy = next(manifest.body for manifest in manifests if manifest.name == "avactl-policy")
    objects = {**configured_objects(manifests, CLUSTER), **declared_machines(base.program, CLUSTER)}
    objects |= {"pods": list(world.items.values()), "persistentvolumeclaims": claims}
    objects["persistentvolumes"] = [{"metadata": {"name": "volume", "uid": "volume"}, "spec": {}}]
    return write(
        load(PlacementPolicy, policy["data"][names.POLICY_KEY]), strip_objects(objects), "2026-01-02T00:00:00Z"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="avactl plan on a snapshot.")
    parser.add_argument("--jobs", type=int, default=500, help="jobs that change")
    parser.add_argument("--machines", type=int, default=1000, help="machines of the snapshot")
    parser.add_argument("--repeats", type=int, default=5, help="runs; the fastest counts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="avactl-bench-") as folder:
        root, state = make(Path(folder), given.jobs, given.machines)
        command = [*AVACTL, "plan", str(root), "--snapshot", str(state), "-f", "json"]
        whole = best([run(command) for _ in range(given.repeats)])
        base, head = compile_tree(GitTree(root, "HEAD")), compile_tree(DirTree(root))
        verdicts = []
        for _ in range(given.repeats):
            began = time.perf_counter()
            make_plan(base, head, CLUSTER, read(state.read_bytes(), "state"))
            verdicts.append(time.perf_counter() - began)
        shown = orjson.loads(subprocess.run(command, capture_output=True, check=True).stdout)["clusters"][0]
        pods = state.read_bytes().count(b'"uid"')
        table = Table("what", "seconds", title=f"{given.jobs} jobs, {given.machines} machines, {pods} pods")
        table.add_row("avactl plan: both sides compiled, snapshot read, all placed", f"{whole.seconds:.2f}")
        table.add_row("of it: snapshot read, all placed", f"{min(verdicts):.2f}")
        table.add_row("snapshot", f"{state.stat().st_size / 1e6:.1f} MB")
        table.add_row("verdicts", ", ".join(f"{count} {verdict}" for verdict, count in shown["counts"].items()))
        console.print(table)
        bar(Bar("plan", whole.seconds, _MOST, " s"))


if __name__ == "__main__":
    main()
