"""The run of a daemon's process, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable

from avactl.kube import logs


async def run_until_signal(replica: Callable[[], Awaitable[None]], stop: Callable[[], object] | None = None) -> None:
    """Configure logging, and run a replica until SIGTERM or SIGINT: `stop` is then called; without it, cancel."""
    logs.configure()
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(replica())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop or task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    logs.info("stopped")
