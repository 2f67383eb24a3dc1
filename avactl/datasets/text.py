"""Numbers and names as text."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.base.terminal import inert_text, shorten_middle, visible_text


def size_text(size: int | None) -> str:
    """Format bytes with a decimal unit: 137900000000 → `137.9 GB`; `?` if unknown."""
    if size is None:
        return "?"
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.95:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def display_name(name: str) -> str:
    """Return a name that fits on one line of a terminal."""
    return inert_text(visible_text(shorten_middle(name, 300)))


def object_line(path: str, size: int | None, labels: Mapping[str, object]) -> str:
    """Format an object as a line of a list."""
    notes = "  ".join(f"{name}={value}" for name, value in labels.items())
    return (
        inert_text(f"{size_text(size):>10}  {visible_text(path)}{'  ' + visible_text(notes) if notes else ''}") + "\n"
    )
