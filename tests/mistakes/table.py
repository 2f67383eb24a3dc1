"""Mistakes of a Kubernetes user, as data: a spec, the place of the mistake, and the remedy that must be named.

A case of `cases/*.txt` is a title, a line with the codes and a pattern of the remedy, and the file. `▸` stands before
the marked character. A line `JOB`, `SERVICE`, … stands for the first lines of such a spec.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from avactl.compiler import compile_tree
from avactl.diagnostics import Diagnostic
from avactl.spec.repository.tree import MemoryTree
from tests.test_invalid import BASE

MARK = "▸"
HEADS = {
    "JOB": "TrainingJob\nmetadata: {name: sft, team: vision}\nspec:\n  image: registry.example.com/vision/train:1",
    "SERVICE": "ServingDeployment\nmetadata: {name: chat, team: vision}\nspec:\n"
    "  runtime: {name: custom, image: 'registry.example.com/vision/serve:1', port: 8000}\n"
    '  model: {name: chat, version: "1"}',
    "WORKSPACE": "Workspace\nmetadata: {name: desk, team: vision}\nspec:\n  image: registry.example.com/jupyter:1",
    "POOL": "NodePool\nmetadata: {name: extra}\nspec:\n  cluster: main\n  machineType: a10",
    "MANIFEST": "KubernetesObjects\nmetadata: {name: more, team: vision}\nspec:\n  objects:",
    "WEB": "KubernetesObjects\nmetadata: {name: more, team: vision}\nspec:\n  objects:\n"
    "    - apiVersion: apps/v1\n      kind: Deployment\n      metadata: {name: web}\n      spec:\n"
    "        selector: {matchLabels: {app: web}}\n        template:\n          metadata: {labels: {app: web}}\n"
    "          spec:\n            securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}\n"
    "            containers:\n              - name: web\n                image: registry.example.com/web:1\n"
    "                securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}",
    "CLUSTER": "Cluster\nmetadata: {name: alone}\nspec:",
}


@dataclass(frozen=True)
class Mistake:
    """One case: its file, where its diagnostic must point, and what that must say."""

    title: str
    codes: frozenset[str]
    remedy: str
    text: str
    line: int
    column: int

    def problems(self) -> list[Diagnostic]:
        """Compile the file beside the base platform; a cluster stands alone."""
        base = {} if "kind: Cluster" in self.text else BASE
        return list(compile_tree(MemoryTree({**base, "spec.yaml": self.text.encode()})).diagnostics)

    def shortfall(self) -> str:
        """Explain what is missing from the diagnostics; empty if the place and the remedy are right."""
        found = self.problems()
        told = [
            f"{d.severity}[{d.code}] {d.span.line}:{d.span.column} {d.message}\n  {d.hint}" for d in found if d.span
        ]
        here = [d for d in found if d.span and (d.span.line, d.span.column) == (self.line, self.column)]
        right = [d for d in here if d.code in self.codes and re.search(self.remedy, d.hint)]
        others = [d for d in found if d.severity == "error" and d not in right]
        if right and not others:
            return ""
        wanted = f"{'|'.join(sorted(self.codes))} at {self.line}:{self.column} with {self.remedy!r}"
        return "\n".join([f"expected {wanted}, found", *told])


def mistakes() -> list[Mistake]:
    """All cases, in the order of the files."""
    files = sorted((Path(__file__).parent / "cases").glob("*.txt"))
    return [_mistake(case) for path in files for case in path.read_text().split("=== ")[1:]]


def _mistake(case: str) -> Mistake:
    title, expected, text = case.split("\n", 2)
    codes, remedy = expected.split("  ", 1)
    for word, head in HEADS.items():
        text = re.sub(rf"^{word}$", f"apiVersion: avactl.dev/v1\nkind: {head}", text, flags=re.MULTILINE)
    before = text[: text.index(MARK)]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return Mistake(title, frozenset(codes.split("|")), remedy, text.replace(MARK, "").rstrip("\n") + "\n", line, column)
