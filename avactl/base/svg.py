"""A small SVG writer with escaped text, for the pictures of this package."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from avactl.base.terminal import shorten_middle, visible_text

_MAX_TEXT_LENGTH = 500
"""Longest text of a picture, in characters."""


def _xml_text(text: str) -> str:
    """Remove control characters and lone surrogates, which XML does not allow."""
    return escape(visible_text(shorten_middle(text, _MAX_TEXT_LENGTH)))


def _format_number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


class Svg:
    """Shapes in drawing order. Coordinates and sizes are in pixels."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def _add(self, tag: str, content: str | None, **attributes: str | float | None) -> None:
        text = "".join(
            f" {name.replace('_', '-')}={quoteattr(value if isinstance(value, str) else _format_number(value))}"
            for name, value in attributes.items()
            if value is not None
        )
        self._parts.append(f"<{tag}{text}/>" if content is None else f"<{tag}{text}>{content}</{tag}>")

    def add(self, *others: Svg) -> None:
        """Draw the shapes of other pictures."""
        for other in others:
            self._parts += other._parts

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str | None = None,
        radius: float = 0,
        opacity: float | None = None,
        title: str = "",
    ) -> None:
        """Draw a rectangle; `title` is its tooltip."""
        self._add(
            "rect",
            f"<title>{_xml_text(title)}</title>" if title else None,
            x=x,
            y=y,
            width=max(0, width),
            height=height,
            fill=fill,
            stroke=stroke,
            rx=radius or None,
            fill_opacity=opacity,
        )

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *,
        size: float = 12,
        fill: str = "#1f2933",
        bold: bool = False,
        anchor: str | None = None,
        mono: bool = False,
    ) -> None:
        """Draw one line of text with its baseline at `y`."""
        self._add(
            "text",
            _xml_text(content),
            x=x,
            y=y,
            font_size=size,
            fill=fill,
            font_weight="600" if bold else None,
            text_anchor=anchor,
            **{"class": "m" if mono else None},
        )

    def curve(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        stroke: str,
        width: float,
        dashed: bool = False,
        title: str = "",
    ) -> None:
        """Draw a smooth curve from left to right."""
        bend = (x2 - x1) * 0.5
        points = [_format_number(v) for v in (x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2)]
        self._add(
            "path",
            f"<title>{_xml_text(title)}</title>" if title else None,
            d="M{} {}C{} {} {} {} {} {}".format(*points),
            fill="none",
            stroke=stroke,
            stroke_width=width,
            stroke_opacity=0.55,
            stroke_dasharray="3 4" if dashed else None,
            stroke_linecap="round",
        )

    def document(self, width: float, height: float, title: str) -> str:
        """Return the SVG document."""
        style = (
            "text{font-family:Inter,'Helvetica Neue',Arial,sans-serif}"
            ".m{font-family:'JetBrains Mono',Menlo,Consolas,monospace}"
        )
        across, down = _format_number(width), _format_number(height)
        size = f'width="{across}" height="{down}" viewBox="0 0 {across} {down}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={quoteattr(visible_text(title))}>\n'
            f"<title>{_xml_text(title)}</title>\n<style>{style}</style>\n"
            f'<rect width="100%" height="100%" fill="#f5f7fa"/>\n' + "\n".join(self._parts) + "\n</svg>\n"
        )
