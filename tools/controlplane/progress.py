"""Progress of a long build: one line per binary, with its duration."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(doing: str, done: str) -> Iterator[None]:
    """Print `doing` on stderr while the block runs, then `done` with the elapsed time; nothing more if it raises.

    stderr, because stdout belongs to what a command prints for other programs. A terminal shows a running clock.
    """
    started = time.monotonic()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            progress.add_task(doing)
            yield
    else:
        print(f"{doing} …", file=sys.stderr, flush=True)
        yield
    print(f"{done} in {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
