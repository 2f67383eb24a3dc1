"""Policies and results that are kept between runs: the same problems, and what changed is judged anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from avactl.apply.files.paths import object_path
from avactl.compiler import compile_tree
from avactl.compiler.incremental.compile import compile_cached
from avactl.compiler.policies import evaluation as enforcing
from avactl.spec.repository.tree import DirTree
from tests.diff.sides import HEAD, PLATFORM, job

OWNERS = (
    "policy: owners\nkinds: [TrainingJob]\nseverity: warning\nschema: {properties: {metadata: {required: [KEY]}}}\n"
)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The specs that were judged."""
    found: list[str] = []
    judge = enforcing.judge_specs

    def watched(rules: Any, tree: Any, items: Any, manifests: Any) -> Any:
        items = list(items)
        found.extend(str(item) for item in items if item.kind == "TrainingJob")
        return judge(rules, tree, items, manifests)

    monkeypatch.setattr(enforcing, "judge_specs", watched)
    return found


def test_only_what_changed_is_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: list[str]) -> None:
    monkeypatch.setenv("AVACTL_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "repo"
    (root / "policies").mkdir(parents=True)

    def write(**files: str) -> tuple[list[str], list[str]]:
        for name, text in files.items():
            (root / f"{name.replace('__', '/')}.yaml").write_text(text)
        judged.clear()
        found = compile_cached(DirTree(root), object_path).diagnostics
        seen = sorted(judged)
        assert found == compile_tree(DirTree(root)).diagnostics
        return seen, [f"{d.severity} {d.id} {d.span.file}" for d in found]

    both = ["TrainingJob vision/a", "TrainingJob vision/b"]
    first = write(platform=PLATFORM, a=HEAD + job("a"), b=HEAD + job("b"), avactl="policies: {jobs-end: warning}\n")
    assert first == (both, ["warning policy/jobs-end a.yaml", "warning policy/jobs-end b.yaml"])
    assert write() == ([], first[1])
    assert write(a=HEAD + job("a", timeout="1h")) == (both[:1], ["warning policy/jobs-end b.yaml"])
    # A policy that is new, changes, goes.
    seen, told = write(policies__owners=OWNERS.replace("KEY", "annotations"))
    assert (seen, told) == (both, ["warning policy/jobs-end b.yaml"])
    seen, told = write(policies__owners=OWNERS.replace("KEY", "owner"))
    assert seen == both
    assert told.count("warning policy/owners a.yaml") == 1
    assert write() == ([], told)
    assert write(avactl="{}\n")[1] == ["warning policy/owners a.yaml", "warning policy/owners b.yaml"]
    # Errors are told again and again, and nothing of them is kept.
    for _ in range(2):
        assert "error policy/jobs-end b.yaml" in write(avactl="policies: {jobs-end: error}\n")[1]
    (root / "policies/owners.yaml").unlink()
    assert write(avactl="{}\n") == ([], [])
