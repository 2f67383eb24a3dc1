"""Run loops of daemons: until a signal, and anew after a lost lease."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from avactl.kube import logs

if TYPE_CHECKING:
    from avactl.kube.client import Client


async def run_until_signal(replica: Callable[[], Awaitable[None]]) -> None:
    """Configure logging, and run a replica until SIGTERM or SIGINT."""
    logs.configure()
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(replica())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    logs.info("stopped")


async def run_elected(
    connect: Callable[[], AbstractAsyncContextManager[Client]], run: Callable[[Client], Awaitable[None]]
) -> None:
    """Run a replica with a client of its own, and again whenever it loses its lease.

    A replica that lost its lease may believe what is no longer true, so the next one starts without any state. `run`
    raises LostError, in an exception group, when the lease is lost; every other error is raised.
    """
    from avactl.kube.leader import LostError  # with it comes the client, which not all daemons need

    while True:
        async with connect() as client:
            try:
                await run(client)
            except ExceptionGroup as group:
                lost, others = group.split(LostError)
                if lost is None or others is not None:
                    raise
                logs.error("lease lost", error=str(lost.exceptions[0]))
