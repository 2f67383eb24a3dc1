"""What the tests of the diff share: two small repositories as texts, compiled and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from avactl.change.diff import Diff, compare
from avactl.change.diff.model import IntentChange
from avactl.compiler import Compilation, compile_tree
from avactl.diagnostics.text import render_text
from avactl.program.manifest import Body, Manifest
from avactl.spec.repository.tree import MemoryTree

PLATFORM = (Path(__file__).parent.parent / "golden/invalid/base/platform.yaml").read_text()
HEAD = "apiVersion: avactl.dev/v1\n"


def compiled(*documents: str) -> Compilation:
    """The small platform and further documents, without their apiVersion, compiled without an error."""
    result = broken(*documents)
    assert result.ok, render_text(result.diagnostics, lambda path: None)
    return result


def broken(*documents: str) -> Compilation:
    """As `compiled`, errors and all."""
    text = "---\n".join(HEAD + document.strip() + "\n" for document in documents)
    return compile_tree(MemoryTree({"platform.yaml": PLATFORM, **({"specs.yaml": text} if documents else {})}))


def with_bodies(compilation: Compilation, *manifests: tuple[Body, dict[str, Any]]) -> Compilation:
    """The compilation with other objects, all of its last team's workspace `w`."""
    item = next(item for item in compilation.program.items if item.kind == "Workspace")
    return replace(compilation, manifests=tuple(Manifest(item, "main", body, **more) for body, more in manifests))


def body(kind: str, name: str = "w", version: str = "v1", **fields: Any) -> Body:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "vision"}, **fields}


def workspace(name: str = "w", **fields: Any) -> str:
    spec = {"user": f"{name}@example.com", "image": "example.com/jupyter:1", **fields}
    return f"kind: Workspace\nmetadata: {{name: {name}, team: vision}}\nspec: {spec!r}"


def job(name: str = "j", team: str = "vision", **fields: Any) -> str:
    spec: dict[str, Any] = {
        "image": "example.com/train:1",
        "command": ["python", "train.py", "--epochs", "90"],
        "strategy": "allReduce",
        "workers": {"replicas": 2, "gpus": 8, "cpu": 8, "memory": "64Gi"},
        **fields,
    }
    return f"kind: TrainingJob\nmetadata: {{name: {name}, team: {team}}}\nspec: {spec!r}"


def changes(old: list[str], new: list[str]) -> Diff:
    return compare(compiled(*old), compiled(*new))


def the(diff: Diff, name: str, kind: str | None = None) -> IntentChange:
    """The one change of a spec of that name."""
    (found,) = [i for i in diff.intents if i.key.name == name and kind in (None, i.key.kind)]
    return found


def texts(intent: IntentChange, *topics: str) -> list[str]:
    return [c.text for c in intent.consequences if not topics or c.topic in topics]


Golden = Callable[[Path, str], None]


def edited(files: dict[str, str], edits: Path) -> dict[str, str]:
    """The files after the edits of a file, if it is there."""
    files = dict(files)
    for edit in yaml.safe_load(edits.read_text(encoding="utf-8")) if edits.exists() else ():
        name = edit["file"]
        if "old" in edit:
            assert edit["old"] in files[name], f"{name} has no {edit['old']!r}"
            files[name] = files[name].replace(edit["old"], edit["new"])
        elif "new" in edit:
            files[name] = edit["new"]
        else:
            del files[name]
    return files
