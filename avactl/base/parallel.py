"""Parallel work in forked processes, which inherit this process's memory and return plain data."""

from __future__ import annotations

import marshal
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_PROCESSES = 4
_workers = 1


def allow_processes() -> None:
    """Allow the use of several cores.

    For the command line only: a process with other threads must not be forked, because their locks would stay held.
    """
    global _workers
    if sys.platform == "linux":
        _workers = min(_MAX_PROCESSES, len(os.sched_getaffinity(0)))


def in_slices(items: Sequence[T], work: Callable[[Sequence[T]], Any], least: int) -> list[Any]:
    """Apply `work` to slices of the items, on all cores; results are in order, and a slice has at least `least` items.

    Results of other processes pass through marshal. A slice whose process failed is repeated in this process, so that
    its exception is raised here.
    """
    count = max(1, min(_workers, len(items) // least))
    cuts = [len(items) * i // count for i in range(count + 1)]
    slices = [items[begin:end] for begin, end in pairwise(cuts)]
    children = [_start(partial(_pack_result, work, part)) for part in slices[1:]]
    results = []
    try:
        results.append(work(slices[0]))
        for part, child in zip(slices[1:], list(children), strict=True):
            data = _wait_for_result(*child)
            children.remove(child)
            results.append(work(part) if data is None else marshal.loads(data))  # noqa: S302 - our own process
    finally:
        for process, pipe in children:  # only where something went wrong here
            os.close(pipe)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return results


def begin_in_process(work: Callable[[], bytes]) -> Callable[[], bytes | None] | None:
    """Start work in another process; return a function that waits for its result, None if the process failed.

    Returns None if there is no other core.
    """
    if _workers < 2:
        return None
    return partial(_wait_for_result, *_start(work))


def _pack_result(work: Callable[[Sequence[T]], Any], part: Sequence[T]) -> bytes:
    return marshal.dumps(work(part))


def _start(work: Callable[[], bytes]) -> tuple[int, int]:
    """A process at work, and the end of the pipe that its result comes out of."""
    global _workers
    out, into = os.pipe()
    process = os.fork()
    if process:
        os.close(into)
        return process, out
    try:
        os.close(out)
        _workers = 1  # the other cores are taken
        with open(into, "wb") as pipe:  # noqa: PTH123 - a descriptor
            pipe.write(work())
        os._exit(0)
    except BaseException:
        os._exit(1)  # told by the first process, which does it again


def _wait_for_result(process: int, out: int) -> bytes | None:
    """The result of a process; None where it failed."""
    with open(out, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(process, 0)
    return data if status == 0 else None
