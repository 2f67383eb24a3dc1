"""Codes are public API: those that the package uses, the table, and the headings of the docs are one set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from avactl.diagnostics.codes import CODES

ROOT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*").fullmatch


def _codes_in(tree: ast.AST) -> Iterator[str]:
    """First arguments and `code` arguments of calls whose name says that a diagnostic is made."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        if isinstance(node.func, ast.Name) and node.func.id == "Diagnostic":
            given += node.args[:1]
        for value in given:
            for leaf in ast.walk(value):
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                    yield leaf.value


def _used() -> dict[str, str]:
    """Every code that the package could tell, and a file that does."""
    used = {}
    for file in sorted((ROOT / "avactl").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if file.name == "codes.py":
            continue
        for code in _codes_in(ast.parse(text)):
            used[code] = str(file.relative_to(ROOT))
        # Codes that a helper hands to Diagnostic stand as plain text: those of the table are known by their form.
        for code in re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)*)"', text):
            if code in CODES:
                used.setdefault(code, str(file.relative_to(ROOT)))
    return used


def _headings() -> list[str]:
    return re.findall(r"^## (.+)$", (ROOT / "docs" / "diagnostics.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_code_that_is_used_is_in_the_table() -> None:
    assert {code: file for code, file in _used().items() if code not in CODES} == {}


def test_every_code_of_the_table_is_used() -> None:
    assert sorted(set(CODES) - set(_used())) == []


def test_every_code_has_one_heading_in_the_docs() -> None:
    headings = _headings()
    assert sorted(headings) == sorted(set(headings))
    assert sorted(set(CODES) ^ set(headings)) == []


def test_codes_and_meanings_have_their_form() -> None:
    for code, meaning in CODES.items():
        assert CODE(code), code
        assert meaning.endswith((".", "…")), code
        assert meaning[0].isupper() or not meaning[0].isalpha(), code
