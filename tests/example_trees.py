"""The examples as trees; those with environments once in each."""

from __future__ import annotations

from avactl.spec.repository.tree import DirTree
from tests.conftest import ROOT

IN = {"environments": ("prod", "staging"), "platform": ("prod", "staging")}
"""Environments of the examples that have some."""


def _names() -> list[str]:
    folders = sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir())
    return [f"{name}@{each}" if each else name for name in folders for each in IN.get(name, ("",))]


EXAMPLES = _names()
"""Each example, or `EXAMPLE@ENVIRONMENT`."""


def example_tree(name: str) -> DirTree:
    """Return the files of an example, one of `EXAMPLES`."""
    folder, _, environment = name.partition("@")
    return DirTree(ROOT / "examples" / folder, environment=environment)
