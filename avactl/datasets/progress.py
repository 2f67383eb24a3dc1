"""Progress of long commands: a line that moves on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, TextIO, TypeVar

from avactl.base.terminal import count_text
from avactl.datasets.text import size_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

T = TypeVar("T")
_REPORT_INTERVAL_S = 15.0
"""Seconds between two plain lines."""
_COUNT_STEP = 10_000
"""Items between two updates."""


class PackProgress:
    """Counts of what is done, on a stream. Use it in a `with` block."""

    def __init__(self, stream: TextIO, noun: str = "object", silent: bool = False) -> None:
        """`silent`: show nothing, because a list on the same terminal does."""
        self._stream, self._noun, self._silent = stream, noun, silent
        self._bar: Bar | None = None
        self._lock = Lock()
        if stream.isatty() and not silent:
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as RichBar

            text = TextColumn("{task.description}", markup=False)
            columns = (SpinnerColumn(), text, BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = RichBar(*columns, console=Console(file=stream), transient=True)

    def __enter__(self) -> PackProgress:
        self.start("")
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, what: str, total: int | None = None) -> None:
        """Begin a step, such as `reading`; `total` is its number of objects, if known."""
        self._what, self._total = what, total
        self._count = self._bytes = 0
        self._began = self._told = monotonic()
        if self._bar is not None:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._task = self._bar.add_task(what, total=total)

    def add(self, count: int, size: int = 0) -> None:
        """Count objects and bytes that are done. Threads may call it."""
        with self._lock:
            self._count += count
            self._bytes += size
            if self._bar is not None:
                self._bar.update(self._task, completed=self._count, description=self._text())
            elif not self._silent and monotonic() - self._told > _REPORT_INTERVAL_S:
                self._told = monotonic()
                self._stream.write(self._text() + "\n")
                self._stream.flush()

    def _text(self) -> str:
        seconds = max(monotonic() - self._began, 1e-3)
        text = f"{self._what} {count_text(self._count, self._noun)}"
        if self._bytes:
            text += f", {size_text(self._bytes)}"
        return f"{text}, {self._count / seconds:,.0f}/s"

    def counted(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and count them in steps."""
        number = 0
        for number, item in enumerate(items, 1):
            if number % _COUNT_STEP == 0:
                self.add(_COUNT_STEP)
            yield item
        self.add(number % _COUNT_STEP)
