"""Time of `avactl import` on a large dump, beside PyYAML reading the same file, and of a live cluster.

    python -m benchmarks.importing [--copies 50] [--repeats 3]
    python -m benchmarks.importing --live 2000

The dump holds copies of the manifests of tests/golden/import, each in a namespace of its own: jobs, services, editors,
queues, tenants, custom resources. PyYAML's `CSafeLoader` only parses it; the import converts, compiles what it has
made, and compares it with the source. `--live` creates objects of Kubernetes' own kinds on a real API server, and
imports them with `--live`.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import yaml
from rich.table import Table

from avactl.program.kubernetes_schema import is_namespaced
from benchmarks.measure import Bar, bar, best, console, run
from tools.controlplane import ApiError, ControlPlane

AVACTL = [sys.executable, "-m", "avactl.cli.main"]
PARSE = "import sys, yaml; list(yaml.load_all(open(sys.argv[1]), Loader=yaml.CSafeLoader))"
_MOST = 40.0
_MOST_LIVE = 60.0
"""Seconds for a cluster of 2,000 objects."""
_NODES = ("Node", "Namespace", "ClusterQueue", "ResourceFlavor", "PersistentVolume", "ClusterRole", "StorageClass")
"""Kinds of which one is enough, or whose names are those of the whole cluster."""


def manifests() -> Iterator[dict[str, object]]:
    """Yield the objects of the golden files that are in a namespace."""
    folder = Path(__file__).parent.parent / "tests" / "golden" / "import"
    for path in sorted(folder.glob("*.yaml")):
        for value in yaml.safe_load_all(path.read_text()):
            listed = value.get("items") if isinstance(value, dict) and str(value.get("kind")).endswith("List") else None
            for each in listed or [value]:
                if isinstance(each, dict) and each.get("kind") not in _NODES and isinstance(each.get("metadata"), dict):
                    yield each


def dump(copies: int) -> tuple[str, int]:
    """Return the text of the dump, and its number of objects."""
    parts: list[str] = []
    for each in manifests():
        text = yaml.dump(each, Dumper=yaml.CSafeDumper, sort_keys=False)
        namespace = str(each["metadata"].get("namespace", "default"))  # type: ignore[attr-defined]
        for number in range(copies):
            own = f"{namespace if namespace != 'default' else 'work'}-{number}"
            named = re.sub(rf"^  namespace: {re.escape(namespace)}$", f"  namespace: {own}", text, flags=re.MULTILINE)
            parts.append(named if named != text else text.replace("metadata:\n", f"metadata:\n  namespace: {own}\n", 1))
    return "---\n".join(parts), len(parts)


def live(count: int) -> None:
    """Time the import of a cluster with this many objects."""
    own = [each for each in manifests() if is_namespaced(str(each["apiVersion"]), str(each["kind"])) is not None]
    own = [each for each in own if each["kind"] not in ("Secret", "Pod")]
    made = 0
    with ControlPlane() as plane, plane.client() as kube, tempfile.TemporaryDirectory(prefix="avactl-bench-") as folder:
        for number in itertools.count():
            space = f"team-{number}"
            kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
            for index, each in enumerate(own):
                metadata = {**each["metadata"], "name": f"{each['metadata']['name'][:40]}-{index}", "namespace": space}  # type: ignore[dict-item,index]
                for key in ("uid", "resourceVersion", "ownerReferences", "creationTimestamp", "generation"):
                    metadata.pop(key, None)
                with suppress(ApiError):  # what only another version accepts
                    kube.create({**each, "metadata": metadata})
                    made += 1
                if made == count:
                    break
            if made == count:
                break
        command = [*AVACTL, "import", "--live", "--kubeconfig", str(plane.kubeconfig), "-o", f"{folder}/specs"]
        seconds = run(command).seconds
    console.print(f"{made:,} live objects: {seconds:.1f} s")
    bar(Bar("import-live", seconds, _MOST_LIVE, " s", 1))


def main() -> None:
    parser = argparse.ArgumentParser(description="avactl import beside PyYAML.")
    parser.add_argument("--copies", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--live", type=int, default=0, metavar="OBJECTS")
    given = parser.parse_args()
    if given.live:
        live(given.live)
        return
    with tempfile.TemporaryDirectory(prefix="avactl-bench-") as folder:
        file = Path(folder, "dump.yaml")
        text, count = dump(given.copies)
        file.write_text(text)
        commands = {
            "PyYAML CSafeLoader, parse only": [sys.executable, "-c", PARSE, str(file)],
            "avactl import": [*AVACTL, "import", str(file), "--cluster", "lab", "--format", "json"],
        }
        runs = {name: [run(command) for _ in range(given.repeats)] for name, command in commands.items()}
    table = Table("program", "seconds", "memory", title=f"{count:,} objects, {len(text) / 2**20:.1f} MiB")
    found = {name: best(each) for name, each in runs.items()}
    for name, each in found.items():
        table.add_row(name, f"{each.seconds:.2f}", f"{each.memory / 2**20:.0f} MiB")
    console.print(table)
    parse, own = (each.seconds for each in found.values())
    bar(Bar("import-to-parsing", own / parse, _MOST))


if __name__ == "__main__":
    main()
