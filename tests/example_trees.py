"""The examples as trees, each in one of its environments if it has some."""

from __future__ import annotations

from avactl.source.tree import DirTree
from tests.conftest import ROOT

IN = {"environments": "prod"}
"""Environments of the examples that have several."""


def example_tree(name: str) -> DirTree:
    """Return the files of an example."""
    return DirTree(ROOT / "examples" / name, environment=IN.get(name, ""))
