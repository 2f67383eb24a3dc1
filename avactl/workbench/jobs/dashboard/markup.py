"""HTML and SVG as text in which everything is escaped that was not made here."""

from __future__ import annotations

from html import escape

from avactl.base.terminal import shorten_middle, visible_text

_MAX_TEXT_LENGTH = 1000
_VOID_ELEMENTS = frozenset({"meta", "link", "rect", "circle", "polyline", "line", "path"})


class Markup(str):
    """Text that is safe as HTML: only this module and trusted writers make it."""

    __slots__ = ()


def safe_text(value: object) -> str:
    """Return foreign text, escaped, bounded and without control characters."""
    return value if isinstance(value, Markup) else escape(visible_text(shorten_middle(str(value), _MAX_TEXT_LENGTH)))


def make_element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element. `cls` is the class, `_` in names stands for `-`; attributes that are None are left out.

    Inline styles are left to the style sheet: the page's content security policy forbids them.
    """
    words = "".join(
        f' {"class" if key == "cls" else key.replace("_", "-")}="{safe_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if tag in _VOID_ELEMENTS and not children:
        return Markup(f"<{tag}{words}/>")
    return Markup(f"<{tag}{words}>{''.join(map(safe_text, children))}</{tag}>")


def join_elements(*children: object) -> Markup:
    """Return elements one after the other."""
    return Markup("".join(map(safe_text, children)))
