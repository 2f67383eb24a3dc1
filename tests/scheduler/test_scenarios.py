"""Scenarios of KAI-Scheduler and Kueue: this scheduler does the same, or the documentation says why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from tests.conftest import ROOT
from tests.scheduler.scenario import Row, Tables, Verdict, all_tables, differences, words
from tools.measured import replace_section

TABLES = all_tables()
ROWS = [(tables, row) for tables in TABLES for row in tables.rows]


def _scenario(row: Row) -> object:
    marks = [pytest.mark.xfail(reason=row.defect, strict=True, raises=AssertionError)] if row.defect else []
    return pytest.param(row, id=row.id, marks=marks)


@pytest.mark.parametrize("row", [_scenario(row) for _, row in ROWS if not row.not_applicable])
def test_a_scenario(row: Row) -> None:
    assert not differences(row, row.expected)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for _, row in ROWS if row.ours is not None])
def test_what_differs_by_design_differs(row: Row) -> None:
    assert differences(row, row.want)


def test_the_documentation_says_what_differs_by_design() -> None:
    documentation = words((ROOT / "docs" / "scheduler.md").read_text())
    sentences = {tables.full(reason) for tables, row in ROWS for reason in row.because}
    assert {sentence for sentence in sentences if words(sentence) not in documentation} == set()


def test_every_scenario_has_a_row() -> None:
    assert len({row.id for _, row in ROWS}) == len(ROWS)
    for tables in TABLES:
        assert Counter(_table(row) for row in tables.rows) == tables.tables


def _table(row: Row) -> str:
    """Return the table of a row: the file, and the test if it has several."""
    return row.id.split("#")[0] if "#" in row.id and "/" not in row.id else "/".join(row.id.split("/")[:2])


def test_every_reason_is_given() -> None:
    for tables in TABLES:
        given = {key for row in tables.rows for key in (row.not_applicable, *row.because)}
        assert given - {""} == set(tables.reasons)


def test_the_summary_is_that_of_the_rows(golden: Callable[[Path, str], None]) -> None:
    file = ROOT / "docs" / "measured.md"
    golden(file, replace_section(file.read_text(), "scenarios", _summary()))


def _summary() -> str:
    """Return a table of the verdicts by file."""
    verdicts = get_args(Verdict)
    lines = [_line("scenarios of", "in its tables", *verdicts), "|---" * (2 + len(verdicts)) + "|"]
    for tables in TABLES:
        for file, (count, found) in _by_file(tables).items():
            lines.append(_line(f"{tables.project} `{file}`", count, *(found[verdict] for verdict in verdicts)))
    total = Counter(row.verdict for _, row in ROWS)
    lines.append(_line("all", len(ROWS), *(total[verdict] for verdict in verdicts)))
    return "\n".join(lines)


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _by_file(tables: Tables) -> dict[str, tuple[int, Counter[str]]]:
    files: dict[str, tuple[int, Counter[str]]] = {}
    for table, count in tables.tables.items():
        name = Path(table).parts[0]
        before, found = files.get(name, (0, Counter()))
        files[name] = (before + count, found + Counter(row.verdict for row in tables.rows if _table(row) == table))
    return files
