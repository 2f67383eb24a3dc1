"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from avactl.apply.reconcile.actions import ReconcileStep
from avactl.apply.reconcile.health import Health
from avactl.apply.reconcile.reporting.listener import Listener
from avactl.base.terminal import count_text, inert_text, visible_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_REPORT_INTERVAL_S = 10.0
"""Seconds between two plain lines while waiting."""
_MAX_NAMED = 40
"""Objects that are named in one line."""


class ReconcileProgress:
    """Shows a run. Use it in a `with` block."""

    def __init__(self, stream: TextIO, quiet: bool) -> None:
        """`quiet`: print no plain lines, because a program reads the output."""
        self._stream, self._quiet = stream, quiet
        self._bar: Bar | None = None
        if stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichBar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = RichBar(*columns, console=Console(file=stream), transient=True)
        self._told = 0.0

    def __enter__(self) -> ReconcileProgress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("looking", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def listener(self) -> Listener:
        """Return the callbacks for a run."""
        return Listener(
            planned=self._report_plan, done=self._report_step, waiting=self._report_waiting, lease=self._report_lease
        )

    def _report_plan(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description="applying", total=count, completed=0)

    def _report_step(self, step: ReconcileStep) -> None:
        if self._bar is not None:
            self._bar.advance(self._task)

    def _report_waiting(self, late: Mapping[str, Health]) -> None:
        named = sorted(late)[:_MAX_NAMED]
        more = f" and {len(late) - len(named)} more" if len(late) > len(named) else ""
        if self._bar is not None:
            text = f"waiting for {len(late)}: {', '.join(map(visible_text, named))}{more}"
            self._bar.update(self._task, description=text, total=None)
        elif not self._quiet and monotonic() - self._told > _REPORT_INTERVAL_S:
            self._told = monotonic()
            each = (f"{visible_text(name)}: {visible_text(late[name].reason)}" for name in named)
            self._stream.write(inert_text(f"waiting for {count_text(len(late), 'object')}: {'; '.join(each)}{more}\n"))
            self._stream.flush()

    def _report_lease(self, holder: str) -> None:
        text = f"another run holds the lease ({holder.partition('_')[0] or 'released'}); waiting"
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        elif not self._quiet:
            self._stream.write(text + "\n")
            self._stream.flush()
