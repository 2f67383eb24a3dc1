"""The runs as pictures: slots in use over time, stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from avactl.base.svg import Svg
from benchmarks.elastic_headline.timeline import Busy

WIDTH, HEIGHT = 860.0, 130.0
LEFT, TOP, GAP = 64.0, 34.0, 66.0
STEPS = 400
COLOURS = ("#2f6fb0", "#e08e2b", "#6aa56a")
GRID, INK, IDLE = "#cbd2d9", "#52606d", "#e4e7eb"


class Panel(NamedTuple):
    """One run. Times are in `unit`, by default published seconds, from its beginning."""

    title: str
    note: str
    found: Sequence[Busy]
    owners: Mapping[str, str]
    """Names in the picture by owner, the lowest layer first."""
    seconds: float
    """Length of the time axis."""
    ended: float | None
    """A line at the end of the run."""
    tick: float
    unit: str = "s"


def picture(panels: Sequence[Panel], slots: int) -> str:
    """Return an SVG document with the panels, one above the other."""
    svg = Svg()
    for number, panel in enumerate(panels):
        _panel(svg, panel, slots, TOP + number * (HEIGHT + GAP))
    height = TOP + len(panels) * (HEIGHT + GAP)
    return svg.document(
        LEFT + WIDTH + 36, height, f"Slots in use over time: {', '.join(each.title for each in panels)}"
    )


def _panel(svg: Svg, panel: Panel, slots: int, top: float) -> None:
    svg.text(LEFT, top - 12, panel.title, size=14, bold=True)
    x = LEFT + WIDTH
    for number, name in reversed(list(enumerate(panel.owners.values()))):
        x -= 8 + 6.4 * len(name)
        svg.text(x, top - 12, name, fill=INK)
        x -= 15
        svg.rect(x, top - 22, 11, 11, fill=COLOURS[number], radius=2)
        x -= 10
    svg.rect(LEFT, top, WIDTH, HEIGHT, fill=IDLE)
    step = panel.seconds / STEPS
    wide, high = WIDTH / STEPS, HEIGHT / slots
    below = [0.0] * STEPS
    for number, owner in enumerate(panel.owners):
        used = _used([each for each in panel.found if each.owner == owner], step)
        above = [low + round(count, 1) for low, count in zip(below, used, strict=True)]
        first = 0
        for column in range(1, STEPS + 1):
            # Equal neighbours are one rectangle, a little wider, so that the next one leaves no gap.
            if column == STEPS or (below[column], above[column]) != (below[first], above[first]):
                y, tall = top + HEIGHT - above[first] * high, (above[first] - below[first]) * high
                if tall:
                    svg.rect(LEFT + first * wide, y, (column - first) * wide + 0.3, tall, fill=COLOURS[number])
                first = column
        below = above
    for count in (0, slots // 2, slots):
        y = top + HEIGHT - count * high
        svg.rect(LEFT - 4, y, 4, 1, fill=INK)
        svg.text(LEFT - 8, y + 4, str(count), size=11, fill=INK, anchor="end")
    at = 0.0
    while at <= panel.seconds:
        x = LEFT + WIDTH * at / panel.seconds
        svg.rect(x, top + HEIGHT, 1, 4, fill=INK)
        svg.text(x, top + HEIGHT + 16, f"{at:g}{f' {panel.unit}' if at else ''}", size=11, fill=INK, anchor="middle")
        at += panel.tick
    if panel.ended is not None:
        svg.rect(LEFT + WIDTH * panel.ended / panel.seconds - 1, top - 4, 2, HEIGHT + 8, fill="#1f2933")
    svg.text(LEFT, top + HEIGHT + 34, panel.note, fill=INK)


def _used(found: Sequence[Busy], step: float) -> list[float]:
    """Return the mean number of slots in use in each step."""
    used = [0.0] * STEPS
    for each in found:
        for column in range(max(0, int(each.began / step)), min(STEPS - 1, int(each.ended / step)) + 1):
            overlap = min(each.ended, (column + 1) * step) - max(each.began, column * step)
            used[column] += max(0.0, overlap) / step
    return used
