"""The page of `avactl top`: what gives way where the terminal is narrow or low."""

from __future__ import annotations

import pytest
from rich.console import Console

from avactl.cli.cluster import top
from avactl.scheduler.inspection.usage import JobUsage, TeamLine

_LONG = "a-team-with-a-really-long-name-that-is-still-legal-in-dns"


def lines(width: int, *tables: object) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(*tables, sep="\n")
    return [line.rstrip() for line in capture.get().splitlines()]


def test_long_names_give_way_to_numbers() -> None:
    team = TeamLine(_LONG, "V100", 1024.5, 1000, 512, 24.5, 24.5, 128)
    _, row = lines(80, top._teams_table([team], 0))
    assert row.split("…")[1].split() == ["V100", "1024", "1000", "24.5", "of", "512", "128"]
    why = "waits for the PersistentVolumeClaim \x1b[31mhome\nwhich is not bound yet"
    job = JobUsage(_LONG, "scan", "train", _LONG, 8, 6, 64, "V100", "2026-01-01T00:00:00Z", why)
    _, row = lines(80, top._jobs_table([job]))
    assert " train " in row
    assert " 6 of 8    64  V100 " in row
    _, row = lines(300, top._jobs_table([job]))
    assert row.endswith(" d  pending: waits for the PersistentVolumeClaim [31mhome which is not bound yet")


@pytest.mark.parametrize(
    ("wanted", "have", "rows"),
    [
        ([2, 2, 3], 20, [2, 2, 3]),
        ([13, 4, 40], 60, [13, 4, 40]),
        ([13, 4, 40], 30, [13, 4, 12]),
        ([40, 4, 40], 30, [19, 4, 5]),
        ([40, 30, 2], 30, [13, 13, 2]),
        ([40, 30, 2], 4, [1, 1, 1]),
    ],
)
def test_tables_share_a_low_terminal(wanted: list[int], have: int, rows: list[int]) -> None:
    found = top._share_lines(wanted, have)
    assert found == rows
    if have > 4:
        assert sum(found) + sum(shown < all_ for shown, all_ in zip(found, wanted, strict=True)) <= have
