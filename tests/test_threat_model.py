"""The threat model in docs/security.md: every boundary names tests that exist."""

from __future__ import annotations

import ast
import re

from tests.test_layout import ROOT

TEXT = (ROOT / "docs" / "security.md").read_text()
MODEL = TEXT[TEXT.index("## Threat model\n") : TEXT.index("## Rules for all objects\n")]
_FIXTURES = {
    "world",
    "plane",
    "admin",
    "user",
    "member",
    "kube",
    "machine",
    "lab",
    "mine",
    "whole",
    "clusters",
    "packets",
}
"""Fixtures with a real API server."""
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`").findall


def functions(file: str) -> set[str]:
    """Return the names of the functions at the top level of a file."""
    return {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists() -> None:
    named = TEST(TEXT)
    assert len(named) > 40
    assert [(file, name) for file, name in named if not (ROOT / file).exists()] == []
    assert [(file, name) for file, name in named if name and name not in functions(file)] == []


def test_every_boundary_has_a_test() -> None:
    rows = [line for line in MODEL.partition("### Boundaries")[2].splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    assert [row for row in rows if not any(name for _, name in TEST(row))] == []


def test_every_test_against_a_real_server_is_marked() -> None:
    for file, name in set(TEST(MODEL)):
        node = next(n for n in ast.parse((ROOT / file).read_text()).body if getattr(n, "name", "") == name)
        assert isinstance(node, ast.FunctionDef)
        given = {argument.arg for argument in node.args.args}
        real = bool(given & _FIXTURES)
        assert f"`{file}::{name}` †" in MODEL if real else f"`{file}::{name}` †" not in MODEL, (file, name)
