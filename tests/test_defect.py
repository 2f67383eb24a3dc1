"""A defect of a kind is told at the spec that shows it, and hides nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from avactl.compiler import compile_tree
from avactl.program import registry
from avactl.spec.repository.tree import MemoryTree
from tests.test_invalid import BASE


def _fail(*args: Any) -> list[Any]:
    raise KeyError("lost")


@pytest.mark.parametrize("step", ["check", "check_all", "lower"])
def test_a_defect_is_told_at_the_spec(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, changed = registry.get_kind, {step: _fail}
    broken = replace(kind("Quota"), **cast(Any, changed))
    monkeypatch.setattr(registry, "get_kind", lambda name: broken if name == "Quota" else kind(name))
    monkeypatch.delenv("AVACTL_DEBUG")
    result = compile_tree(MemoryTree(BASE))
    (problem,) = result.diagnostics
    assert problem.code == "internal-error"
    assert "Quota vision/gpus cannot be compiled: KeyError: 'lost'" in problem.message
    assert problem.span == result.program.get("Quota", "gpus", "vision").span("metadata", "name")
    assert result.manifests == ()

    monkeypatch.setenv("AVACTL_DEBUG", "1")
    with pytest.raises(KeyError):
        compile_tree(MemoryTree(BASE))
