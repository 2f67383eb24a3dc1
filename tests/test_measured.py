"""`docs/measured.md` keeps one row for each target, and sections that are replaced whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import measured


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "measured.md"
    path.write_text(measured.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    return path


def rows(page: Path) -> list[str]:
    return [line for line in page.read_text().splitlines() if line.startswith("| `try-")]


def test_a_run_replaces_the_row_of_its_target(page: Path) -> None:
    before = page.read_text()
    measured.write_run("try-b", "first | half", "c0 | 2026-01-01 | m", page)
    measured.write_run("try-a", "other", "c1 | 2026-01-02 | m", page)
    measured.write_run("try-b", "second", "c2 | 2026-01-03 | m", page)
    assert rows(page) == ["| `try-a` | c1 | 2026-01-02 | m | other |", "| `try-b` | c2 | 2026-01-03 | m | second |"]
    assert set(before.splitlines()) <= set(page.read_text().splitlines())


def test_a_pipe_stays_in_its_cell(page: Path) -> None:
    measured.write_run("try-a", "1 | 2", "c | d | m", page)
    assert rows(page) == [r"| `try-a` | c | d | m | 1 \| 2 |"]


def test_a_section_is_replaced_whole(page: Path) -> None:
    page.write_text("# Head\n\n<!-- begin peers -->\nold\n<!-- end peers -->\n\ntail\n")
    for content in ("new\n", "newer"):
        measured.write_section("peers", content, page)
    assert page.read_text() == "# Head\n\n<!-- begin peers -->\n\nnewer\n\n<!-- end peers -->\n\ntail\n"
    with pytest.raises(ValueError, match="has no section others"):
        measured.write_section("others", "x", page)


def test_figures_come_from_bars_and_from_the_summary_of_pytest() -> None:
    bars = ["text\n", "bar plan: 1.20 s (at most 3.00 s) ok\n", "bar rate: 0.50 (at least 0.80) short\n"]
    assert measured.summarize(bars, 0) == "plan: 1.20 s (at most 3.00 s) ok; rate: 0.50 (at least 0.80) short"
    color = "\x1b[32m===== \x1b[1m7 passed\x1b[0m, 1 skipped in 61.20s (0:01:01)\x1b[0m\x1b[32m =====\x1b[0m\n"
    assert measured.summarize(["== test session starts ==\n", color], 1) == (
        "7 passed, 1 skipped in 61.20s (0:01:01); exit code 1"
    )
    assert measured.summarize(["nothing\n"], 0) == "ended"


def test_a_failed_command_writes_its_exit_code_and_ends_with_it(page: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = "print('bar seen: 1.00 (at most 2.00) ok'); raise SystemExit(3)"
    assert measured.measure("try-a", [sys.executable, "-c", program], page) == 3
    assert capfd.readouterr().out == "bar seen: 1.00 (at most 2.00) ok\n"
    [row] = rows(page)
    assert "| seen: 1.00 (at most 2.00) ok; exit code 3; " in row
    assert row.endswith(" CPU s |")
