"""Tables in the terminal, and pages that follow a cluster until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from avactl.base.exit_codes import OK
from avactl.base.terminal import json_output
from avactl.cli.cluster.cluster_session import make_console, plain_text, with_client, write
from avactl.cli.options import Output
from avactl.contracts.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from avactl.kube.access import ClusterAccess
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget

Once = Annotated[bool, typer.Option("--once", help="Print once; default if the output is not a terminal.")]
_T = TypeVar("_T")
_POLL_INTERVAL_S = 1.0
_MIN_PAUSE_S = 0.5
"""Minimum time between two refreshes, in seconds."""
_CLOCK_INTERVAL_S = 5.0
"""Interval in seconds at which ages are updated."""


def make_table(*columns: tuple[str, bool], gives: tuple[str, ...]) -> Table:
    """Return an empty table. Columns: name → is numeric; those in `gives` hold cells and shrink on narrow terminals."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for name, number in columns:
        justify: Literal["right", "left"] = "right" if number else "left"
        made.add_column(name, justify=justify, no_wrap=name not in gives, overflow="ellipsis")
    return made


def make_cell(text: str, style: str = "") -> Text:
    """One line, truncated to the available width."""
    from rich.text import Text

    return Text(plain_text(text), no_wrap=True, overflow="ellipsis", style=style)


async def show_live(
    page: Callable[[int], RenderableType],
    follow: Callable[[Callable[[], None]], Coroutine[Any, Any, None]],
    before: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Show a page until cancelled. `page` lays it out for a number of lines; `follow` calls its argument on changes.

    `before` runs before each refresh. Raises what `follow` and `before` raise.
    """
    from rich.live import Live

    screen_of, changed = make_console(), asyncio.Event()
    with Live(console=screen_of, screen=True, auto_refresh=False) as screen:
        following = asyncio.ensure_future(follow(changed.set))
        following.add_done_callback(lambda _: changed.set())
        try:
            while not following.done():
                if before is not None:
                    await before()
                screen.update(page(screen_of.height), refresh=True)
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _CLOCK_INTERVAL_S)
                await asyncio.sleep(_MIN_PAUSE_S)
        finally:
            following.cancel()
    await following


def show_status(
    access: ClusterAccess,
    cluster: str,
    read: Callable[[Client], Awaitable[_T]],
    page: Callable[[_T], RenderableType],
    as_json: Callable[[_T], dict[str, Any]],
    format: Output,
    once: bool,
    system_namespace: str = SYSTEM_NAMESPACE,
) -> None:
    """Show what a daemon reports, as `read` returns it; in a terminal until Ctrl-C, unless `once`.

    Exits as `with_client`.
    """

    async def show(client: Client, target: IdentityTarget) -> None:
        data = await read(client)
        if format is Output.json:
            sys.stdout.write(json_output({**target.as_json(), **as_json(data)}))
        elif once or not sys.stdout.isatty():
            write(plain_text(str(target)), page(data))
        else:
            await follow(client, target, data)

    async def follow(client: Client, target: IdentityTarget, data: _T) -> None:
        from rich.console import Group

        async def poll(changed: Callable[[], None]) -> None:
            nonlocal data
            while True:
                await asyncio.sleep(_POLL_INTERVAL_S)
                data = await read(client)
                changed()

        await show_live(lambda height: Group(plain_text(str(target)), page(data)), poll)

    with_client(access, show, cluster, system_namespace, interrupted=OK)
