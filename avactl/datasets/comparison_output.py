"""Comparisons of manifests as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, TextIO

from avactl.base.terminal import count_text, json_line
from avactl.datasets.compare import KINDS, EntryChange, ManifestComparison, Total
from avactl.datasets.text import display_name, size_text

_CHANGE_MARKS = {"added": ("+", "32"), "removed": ("-", "31"), "changed": ("~", "33"), "relabeled": ("~", "33")}
_PATH_WIDTH = 60


def write_text(
    out: TextIO, comparison: ManifestComparison, changes: Iterator[EntryChange], limit: int, colour: bool
) -> None:
    """Write the first changes, then the sums. `limit` 0: all changes, as they are found."""
    old, new = (display_name(directory.rstrip("/")) for directory in (comparison.old, comparison.new))
    head = f"{old} → {new}\n" if old != new else f"{old}\n"
    kept = list(islice(changes, limit)) if limit else []
    hidden = sum(1 for _ in changes) if limit else 0
    out.write(head)
    for change in kept or changes:
        mark, code = _CHANGE_MARKS[change.kind]
        text = f"{mark} {display_name(change.path):{_PATH_WIDTH}}"
        out.write(
            f"\x1b[{code}m{text}\x1b[0m  {display_name(change.text)}\n"
            if colour
            else f"{text}  {display_name(change.text)}\n"
        )
    if hidden:
        out.write(f"… and {hidden:,} more (`--limit 0` shows all)\n")
    for kind in KINDS:
        if comparison.totals[kind].objects:
            out.write(_total_line(kind, comparison.totals[kind]))
    out.write(_total_line("unchanged", comparison.unchanged))
    if comparison.by_size:
        text = f"{count_text(comparison.by_size, 'object')} without checksums: only sizes were compared\n"
        out.write(text)


def _total_line(kind: str, total: Total) -> str:
    size = size_text(total.new if kind != "removed" else total.old)
    if kind == "changed" and total.old != total.new:
        size = f"{size_text(total.old)} → {size}"
    return f"{kind:<9}  {total.objects:>13,}  {size}\n"


def write_json(out: TextIO, comparison: ManifestComparison, changes: Iterator[EntryChange], limit: int) -> None:
    """Write one JSON document: `old`, `new`, the first changes, and the sums. It is written as it is found."""
    out.write(f'{{"old": {_to_json(comparison.old)}, "new": {_to_json(comparison.new)}, "changes": [')
    for number, change in enumerate(changes):
        if not limit or number < limit:
            out.write(f"{',' if number else ''}\n  {_to_json(change.data())}")
    totals: dict[str, Any] = {kind: vars(total) for kind, total in comparison.totals.items()}
    totals["unchanged"] = vars(comparison.unchanged)
    out.write(f'\n], "totals": {_to_json(totals)}, "comparedBySize": {comparison.by_size}}}\n')


def _to_json(data: Any) -> str:
    return json_line(data).decode().rstrip()
