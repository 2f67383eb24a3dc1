"""Callbacks for the progress of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from avactl.apply.reconcile.actions import ReconcileStep
from avactl.apply.reconcile.health import Health


@dataclass(slots=True)
class Listener:
    """Callbacks for the progress of a run."""

    planned: Callable[[int], None] = lambda count: None
    done: Callable[[ReconcileStep], None] = lambda step: None
    waiting: Callable[[Mapping[str, Health]], None] = lambda late: None
    lease: Callable[[str], None] = lambda holder: None


_REPORT_INTERVAL_S = 1.0


@asynccontextmanager
async def report_waits(late: Mapping[str, Health], say: Callable[[Mapping[str, Health]], None]) -> AsyncIterator[None]:
    """Report the objects that are waited for, by title, as long as the block runs; the block changes `late`."""

    async def report() -> None:
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            if late:
                say(late)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
