"""An import as a comment of a pull request. Text of source objects appears only in code spans and code blocks."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.change.diff.markdown import code_span, escape_prose, fenced_block, fit_lines
from avactl.workbench.importer import report
from avactl.workbench.importer.session import Imported

LIMIT = 60_000
"""Largest report in bytes: forges accept 64 KiB."""
_REST = "`avactl import` shows all"
_COLUMNS = ("source", "object", "became", "how", "listed", "file")


def render_markdown(made: Imported) -> str:
    """Return the report, at most `LIMIT` bytes: the table, what is listed, reasons, and the semantic difference."""
    parts = [f"### Import\n\n{escape_prose(report.import_summary(made))}\n"]
    room = LIMIT - 2000  # for titles, and for the notes on what is left out
    head = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    rows = fit_lines([f"| {' | '.join(map(_cell, row))} |" for row in report.table_rows(made)], room // 2, f"{_REST} |")
    parts.append("\n".join([*head, *rows]) + "\n")
    room -= len(parts[-1].encode())
    sections = [
        (report.loss_title(made.losses), report.loss_lines(made.losses)),
        (
            "as it is, or left out",
            [
                line
                for reason, some in report.group_by_reason(made)
                for line in (reason, *(f"  {x.given}" for x in some))
            ],
        ),
        ("semantic difference", report.difference_lines(made)),
    ]
    for number, (title, lines) in enumerate(sections):
        if lines:
            shown = fit_lines(lines, room // (len(sections) - number), _REST)
            parts.append(_fold(title, shown))
            room -= len(parts[-1].encode())
    return "\n".join(parts)


def _cell(text: str) -> str:
    return code_span(text).replace("|", "\\|") if text not in ("", "-") else text


def _fold(title: str, lines: Sequence[str]) -> str:
    return f"<details><summary>{title}</summary>\n\n{fenced_block(lines, 'text')}\n</details>\n"
