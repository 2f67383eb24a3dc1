"""Tables in the terminal, and pages that follow a cluster until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal

from avactl.cli.cluster.cluster_session import console, plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_PAUSE = 0.5
"""Minimum time between two refreshes, in seconds."""
_CLOCK = 5.0
"""Interval in seconds at which ages are updated."""


def table(*columns: tuple[str, bool], gives: tuple[str, ...]) -> Table:
    """Return an empty table. Columns: name → is numeric; those in `gives` hold cells and shrink on narrow terminals."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for name, number in columns:
        justify: Literal["right", "left"] = "right" if number else "left"
        made.add_column(name, justify=justify, no_wrap=name not in gives, overflow="ellipsis")
    return made


def cell(text: str, style: str = "") -> Text:
    """One line, truncated to the available width."""
    from rich.text import Text

    return Text(plain(text), no_wrap=True, overflow="ellipsis", style=style)


async def live(
    page: Callable[[int], RenderableType],
    follow: Callable[[Callable[[], None]], Coroutine[Any, Any, None]],
    before: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Show a page until cancelled. `page` lays it out for a number of lines; `follow` calls its argument on changes.

    `before` runs before each refresh. Raises what `follow` and `before` raise.
    """
    from rich.live import Live

    screen_of, changed = console(), asyncio.Event()
    with Live(console=screen_of, screen=True, auto_refresh=False) as screen:
        following = asyncio.ensure_future(follow(changed.set))
        try:
            while not following.done():
                if before is not None:
                    await before()
                screen.update(page(screen_of.height), refresh=True)
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _CLOCK)
                await asyncio.sleep(_PAUSE)
        finally:
            following.cancel()
    await following
