"""Curves of a metric: a sparkline in a table, and a plot with axes."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.workbench.jobs.dashboard.markup import Markup, make_element

Curve = Sequence[tuple[int, float]]
_WIDTH, _HEIGHT = 110.0, 26.0
_PLOT_WIDTH, _PLOT_HEIGHT = 720.0, 240.0
_LEFT, _BOTTOM, _TOP, _RIGHT = 64.0, 26.0, 14.0, 16.0


def draw_sparkline(curve: Curve, title: str) -> Markup:
    """Return a small curve without axes; empty for fewer than two points."""
    if len(curve) < 2:
        return Markup("")
    points = _curve_points(curve, 2.0, 3.0, _WIDTH - 6.0, _HEIGHT - 6.0)
    x, y = points[-1].split(",")
    return make_element(
        "svg",
        make_element("title", title),
        make_element("polyline", points=" ".join(points), cls="curve"),
        make_element("circle", cx=x, cy=y, r="2.4", cls="tip"),
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        width=f"{_WIDTH:g}",
        height=f"{_HEIGHT:g}",
        cls="spark",
        role="img",
    )


def draw_plot(curve: Curve, metric: str) -> Markup:
    """Return a plot of a metric over records; empty for fewer than two points."""
    if len(curve) < 2:
        return Markup("")
    low, high = _curve_bounds(curve)
    wide, tall = _PLOT_WIDTH - _LEFT - _RIGHT, _PLOT_HEIGHT - _TOP - _BOTTOM
    lines = []
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _TOP + tall * (1 - part)
        lines.append(make_element("line", x1=_LEFT, x2=_LEFT + wide, y1=f"{y:.1f}", y2=f"{y:.1f}", cls="grid"))
        value = f"{low + part * (high - low):.3g}"
        lines.append(make_element("text", value, x=_LEFT - 8, y=f"{y + 4:.1f}", text_anchor="end"))
    first, last = curve[0][0], curve[-1][0]
    ends = [
        make_element("text", f"{first:,}", x=_LEFT, y=_PLOT_HEIGHT - 6),
        make_element("text", f"{last:,} records", x=_LEFT + wide, y=_PLOT_HEIGHT - 6, text_anchor="end"),
    ]
    points = _curve_points(curve, _LEFT, _TOP, wide, tall)
    ground = f"{_LEFT:g},{_TOP + tall:g}", f"{_LEFT + wide:g},{_TOP + tall:g}"
    return make_element(
        "svg",
        make_element("title", f"{metric} over records"),
        *lines,
        *ends,
        make_element("polyline", points=" ".join([ground[0], *points, ground[1]]), cls="area"),
        make_element("polyline", points=" ".join(points), cls="curve"),
        viewBox=f"0 0 {_PLOT_WIDTH:g} {_PLOT_HEIGHT:g}",
        cls="plot",
        role="img",
    )


def _curve_bounds(curve: Curve) -> tuple[float, float]:
    values = [value for _, value in curve]
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _curve_points(curve: Curve, left: float, top: float, width: float, height: float) -> list[str]:
    low, high = _curve_bounds(curve)
    first, last = curve[0][0], curve[-1][0]
    span = max(1, last - first)
    # The curve is untrusted: its records may decrease.
    return [
        f"{left + width * min(1.0, max(0.0, (records - first) / span)):.1f},"
        f"{top + height * (1 - (value - low) / (high - low)):.1f}"
        for records, value in curve
    ]
