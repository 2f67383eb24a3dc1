"""A clean compile locates no value: that would compose each file a second time, a tenth of the time of a compile."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from avactl.compiler import compile_tree
from avactl.spec.documents.yaml import YamlLocator
from avactl.spec.repository.tree import MemoryTree, Tree
from tests.example_trees import example_tree
from tests.test_invalid import BASE

JOB = """apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: fit-0004, team: vision}
spec:
  image: registry.example.com/vision/train:2026-01-02
  command: [python, fit.py, --date, "2026-01-02"]
  workers: {cpu: 4, memory: 16Gi}
"""


def _forbid(*args: Any) -> NoReturn:
    raise AssertionError("a value was located")


@pytest.mark.parametrize("tree", [example_tree("ava"), MemoryTree({**BASE, "fit.yaml": JOB.encode()})])
def test_locates_nothing(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(YamlLocator, "locate", _forbid)
    assert not compile_tree(tree).diagnostics


@pytest.mark.parametrize(
    "written", ["{replicas: 02, cpu: 4}", "{replicas: +02}", '{"replicas":02}', "\n    replicas: 02"]
)
def test_leading_zeros_are_found(written: str) -> None:
    spec = JOB.replace("{cpu: 4, memory: 16Gi}", written)
    found = compile_tree(MemoryTree({**BASE, "fit.yaml": spec.encode()})).diagnostics
    assert [d.message for d in found if "octal" in d.message]
