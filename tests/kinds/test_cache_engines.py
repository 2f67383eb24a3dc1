"""Cache engines: one is one folder, and no other module names it."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from avactl.spec.platform.engine_names import engine_names
from tests.test_layout import ROOT, tracked

ALLOWED = {
    "avactl/spec/platform/engine_names.py",  # the default
    "avactl/program/images.py",  # images of clusters have an engine's by its name
    "avactl/contracts/cache.py",
    "avactl/daemons/cache/runner.py",  # the daemon's clients of engines
}
"""Modules that name engines."""

FAKE = '''
"""Engine `flash`: a file on each machine."""

from avactl.diagnostics import Diagnostic
from avactl.program.cache_engines import EngineNeeds, EngineRecord
from avactl.program.lowering import k8s


def check(item, program):
    if item.spec.ttl:
        yield Diagnostic("without-effect", "`ttl` has no effect here: flash", item.span("spec", "ttl", key=True))


def lower(item, program):
    return [k8s.config_map(item, item.spec.cluster, f"{item.name}-flash", "avactl-cache", {"role": item.spec.role})]


def volume(tier, program, name, path, read_only):
    return {"nfs": {"server": tier.name, "path": path, "readOnly": read_only}}


ENGINE = EngineRecord(
    title="Flash", image="avactl", check=check, lower=lower, volume=volume,
    worker=lambda item: EngineNeeds("1", 2**30), shared=False,
)
'''
SPECS = """
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
spec:
  images: {avactl: "avactl@sha256:%s"}
---
apiVersion: avactl.dev/v1
kind: CacheTier
metadata: {name: quick}
spec:
  cluster: main
  engine: flash
  role: read
  ttl: 1h
  workers: {tiers: [{medium: MEM, quota: 1Gi}]}
  underStores: [{mount: /cats, url: "s3://cats"}]
---
apiVersion: avactl.dev/v1
kind: Dataset
metadata: {name: cats, team: vision}
spec: {tier: quick, size: 1Gi, versions: [{name: v1, url: "s3://cats/v1"}]}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec: {clusters: [main]}
"""
COMPILE = """
import json, sys
from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree
result = compile_tree(MemoryTree({"specs.yaml": sys.stdin.buffer.read()}))
objects = {f"{each.kind}/{each.name}": each.body for each in result.manifests}
print(json.dumps({"problems": [[each.code, each.message] for each in result.diagnostics], "objects": objects}))
"""


def _compile(directory: Path, specs: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        cwd=directory,
        env={"PYTHONPATH": str(directory)},
        input=specs.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_another_engine_is_one_folder(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "avactl", tmp_path / "avactl", ignore=shutil.ignore_patterns("__pycache__"))
    specs = SPECS % ("a" * 64)
    (code, message), *_ = _compile(tmp_path, specs)["problems"]
    assert (code, "flash" in message) == ("invalid-value", True)

    folder = tmp_path / "avactl" / "kinds" / "cache_tier" / "flash"
    folder.mkdir()
    (folder / "__init__.py").write_text(FAKE)
    assert _compile(tmp_path, specs)["problems"] == [["without-effect", "`ttl` has no effect here: flash"]]

    result = _compile(tmp_path, specs.replace("  ttl: 1h\n", ""))
    assert result["problems"] == []
    assert result["objects"]["ConfigMap/quick-flash"]["data"] == {"role": "read"}
    (volume,) = (body for name, body in result["objects"].items() if name.startswith("PersistentVolume/"))
    assert volume["spec"]["nfs"] == {"server": "quick", "path": "/cats/v1", "readOnly": True}


def _named(source: str) -> set[str]:
    """Engines in the imports and strings of a module; not those of docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    words: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            words += [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            words += [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            words.append(node.value)
    return set(words) & set(engine_names())


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from avactl.kinds.cache_tier.alluxio.pods import java_options", {"alluxio"}),
        ("if tier.spec.engine == 'alluxio': pass", {"alluxio"}),
        ("'''alluxio'''", set()),
    ],
)
def test_a_mention_of_an_engine_is_found(source: str, found: set[str]) -> None:
    assert _named(source) == found


def test_only_an_engines_own_package_names_it() -> None:
    found = set()
    for path in tracked("avactl/*.py", "avactl/**/*.py"):
        name = path.relative_to(ROOT).as_posix()
        found |= {name for engine in _named(path.read_text()) if f"/{engine}/" not in name}
    assert found == ALLOWED
