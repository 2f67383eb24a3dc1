"""A run from a selected job to its exit code."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from avactl.base.terminal import count_text
from avactl.program.local_run import LocalRun
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.workbench.local.addresses import AddressBlock
from avactl.workbench.local.descendants import adopt_orphans, kill_descendants
from avactl.workbench.local.errors import LocalRunError, LocalUsageError
from avactl.workbench.local.output import LocalOutput
from avactl.workbench.local.pods import LocalJob, LocalPlace, describe
from avactl.workbench.local.runner import Runner
from avactl.workbench.local.selection import Selected

BASE = ".avactl"
"""Directory of local runs, below the working directory."""
VOLUMES = "volumes"
"""Directory of the volumes that outlive a run."""


def run(selected: Selected, checkout: Path, given: Mapping[str, str]) -> int:
    """Run a job and return its exit code.

    `checkout`: directory of the code. `given`: mount paths with directories of the caller. Raises LocalRunError and
    LocalUsageError, before anything is started.
    """
    item = selected.item
    with lock_run_directory(item, checkout) as directory:
        shutil.rmtree(directory / "pods", ignore_errors=True)
        return run_in(directory, str(item), item, selected.hooks.run(item), selected.manifests, checkout, given)


@contextmanager
def lock_run_directory(item: Item, checkout: Path) -> Iterator[Path]:
    """Lock and yield the directory of an item's runs. Raises LocalUsageError, LocalRunError."""
    if not checkout.is_dir():
        raise LocalUsageError(f"--directory {checkout}: no such directory")
    directory = _make_directory(checkout / BASE, f"{item.ns}.{item.name}")
    with _lock_directory(directory, str(item)):
        yield directory


def run_in(
    directory: Path,
    title: str,
    item: Item,
    how: LocalRun,
    manifests: Iterable[Manifest],
    checkout: Path,
    given: Mapping[str, str],
) -> int:
    """Run one job in a directory, and return its exit code. Raises LocalRunError and LocalUsageError."""
    block = AddressBlock()
    try:
        place = LocalPlace(checkout.resolve(), directory / "pods", directory / VOLUMES, given, dict(os.environ))
        job = describe(item, how, manifests, place, block)
        return _run(title, job, f"{os.getpid()}.{item.ns}.{item.name}", directory)
    finally:
        block.close()


def _run(title: str, job: LocalJob, name: str, directory: Path) -> int:
    output = LocalOutput([pod.label for pod in job.pods])
    roles = Counter(pod.role for pod in job.pods)
    output.note(f"{title}: {', '.join(count_text(count, role) for role, count in roles.items())} on this machine")
    for note in job.notes:
        output.note(f"  {note}")
    kept = directory / VOLUMES
    if any(kept in each.parents for pod in job.pods for each in pod.directories):
        output.note(f"  volumes: {kept}")
    runner = Runner(job, name, output)
    started = time.monotonic()
    adopt_orphans()
    try:
        code = asyncio.run(runner.run())
    except OSError as error:
        raise LocalRunError(f"{error.filename or title}: {(error.strerror or str(error)).lower()}") from None
    finally:
        kill_descendants()
    ended = "stopped" if runner.stopped else f"failed with exit code {code}" if code else "succeeded"
    output.note(f"{title} {ended} after {time.monotonic() - started:.1f} s")
    return code


def _make_directory(base: Path, name: str) -> Path:
    """Return the directory of a job below `.avactl`, which git ignores. Raises LocalRunError."""
    try:
        base.mkdir(exist_ok=True)
        ignore = base / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        directory = base.resolve() / "local" / name
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "volumes and files of the run are stored there: choose another directory with `--directory`"
        raise LocalRunError(f"{error.filename}: {(error.strerror or str(error)).lower()}", hint) from None
    return directory


def _lock_directory(directory: Path, title: str) -> IO[bytes]:
    """Return a lock on the directory, held until it is closed. Raises LocalUsageError if another run has it."""
    file = (directory / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise LocalUsageError(
            f"{title} is already running here", "end that run, or use another `--directory`"
        ) from None
    return file
