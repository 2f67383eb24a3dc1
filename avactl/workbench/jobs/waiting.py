"""Wait for the end of a job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from avactl.workbench.jobs.state import TrainingJobState
from avactl.workbench.jobs.view import JobsView

_GONE_AFTER_S = 10.0
"""Seconds without the job after which it was deleted: a changed job is deleted and made again."""


async def wait_for_end(view: JobsView, told: Callable[[TrainingJobState | None], None]) -> TrainingJobState | None:
    """Wait until the job of the view has succeeded or failed, and return it; None if it was deleted.

    `told` gets the job whenever its state may have changed; None while the API server does not answer.
    """
    changed = asyncio.Event()
    watching = asyncio.ensure_future(view.follow(changed.set))
    try:
        while True:
            job = next(iter(view.jobs()), None)
            if job is not None:
                told(job if view.silent is None else None)
                if job.over:
                    return job
            try:
                await asyncio.wait_for(changed.wait(), _GONE_AFTER_S if job is None else None)
            except TimeoutError:
                if view.silent is None:
                    return None
            changed.clear()
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
