"""Runs of a processing: tasks on this machine, or those of a job's master, and the end that publishes the version."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any, NamedTuple

import orjson

from avactl.base.errors import HintedError
from avactl.base.terminal import count_text
from avactl.datasets.concurrent import in_threads
from avactl.datasets.errors import ChangedError, DatasetError, ObjectStoreError
from avactl.datasets.ordering import Keyed, sort_lines
from avactl.datasets.process.model import Step
from avactl.datasets.process.plan import (
    MANIFEST,
    PARTS,
    SKIPPED,
    Places,
    Plan,
    SourceLine,
    make_plan,
    open_beside,
    read_plan,
    source_change,
    wait_for_plan,
)
from avactl.datasets.process.steps import InvalidObjectError, Output, load_steps
from avactl.datasets.progress import PackProgress
from avactl.datasets.stores.locations import key_problem, parse_location
from avactl.datasets.stores.locking import lock_target
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.store import Store
from avactl.datasets.text import display_name

MAX_OBJECT_BYTES = 2 * 1024**3
"""Size of an object that is processed: it is in memory."""
_DATASET = "objects"
_PARENT_INTERVAL_S = 1.0


class ProcessOptions(NamedTuple):
    """A processing."""

    places: Places
    steps: tuple[Step, ...]
    skip_invalid: int
    """Objects that may be left out because they cannot be processed."""
    jobs: int
    """Objects that this machine, or this worker of a job, processes at once."""


class WorkerError(HintedError):
    """An error of a process, with its exit code; `changed` if it is a ChangedError."""

    def __init__(self, message: str, hint: str, code: int, changed: bool) -> None:
        super().__init__(message, hint)
        self.exit_code, self.changed = code, changed

    def __reduce__(self) -> tuple[type[WorkerError], tuple[str, str, int, bool]]:
        return WorkerError, (str(self), self.hint, self.exit_code, self.changed)


class Processed(NamedTuple):
    """Result of a processing."""

    source: int
    objects: int
    bytes: int
    skipped: int
    first_skipped: str
    sha256: str
    """Of the manifest."""
    manifest: str
    """Its URL or path."""
    earlier: bool
    """True if an earlier run had completed it."""
    unchanged: int
    """Objects that are as in the source, because no step is for them."""
    source_change: str
    """How the source differs now from that at the start of an earlier run; "" if it does not."""


class Processor:
    """Processes tasks of a plan. Threads may share one."""

    def __init__(self, options: ProcessOptions, plan: Plan) -> None:
        """Raises StoreError, ArgumentError."""
        places = options.places
        self._options, self._plan = options, plan
        self._source = open_store(plan.source, places.source_endpoint)
        self._target = open_store(places.target, places.endpoint)
        self._beside = open_beside(self._target, places.endpoint)
        self._process = load_steps(options.steps)
        self.skipped = 0

    def run(self, start: int, end: int, threads: int) -> int:
        """Process the objects of a task, unless it is done; return the bytes read. Raises DatasetError, StoreError."""
        key = part_key(start, end)
        if self._beside.find(key) is not None:
            return 0
        lines = self._plan.lines(start, end)
        made: list[bytes] = []
        for records in in_threads(self._one, lines, threads, 2 * threads) if threads > 1 else map(self._one, lines):
            made += [orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records]
            self.skipped += any("skipped" in record for record in records)
            if self.skipped > self._options.skip_invalid:
                raise too_many_skipped(self._options.skip_invalid, self.skipped, "")
        self._beside.write(key, b"".join(made))
        return sum(line.found.size for line in lines)

    def _one(self, line: SourceLine) -> list[dict[str, Any]]:
        """Process one object; return the lines of what it became."""
        found, written = line.found, list[str]()
        try:
            if found.size > MAX_OBJECT_BYTES:
                reason = f"it has {found.size:,} bytes; the limit is {MAX_OBJECT_BYTES:,}"
                raise InvalidObjectError(found.key, reason)
            content = self._source.read(found)
            digest = hashlib.sha256(content).hexdigest()
            if line.sha256 and digest != line.sha256:
                raise ChangedError(display_name(found.key), f"changed: its SHA-256 was {line.sha256}, and is {digest}")
            url = f"{self._source.location.url}/{found.key}"
            given = {"url": url, "path": found.key, "size": found.size, "labels": line.labels}
            records = []
            for made in self._process(found.key, content, given):
                written.append(made.name)
                self._target.write(made.name, made.content)
                records.append(_record(made, line, digest))
            return records
        except InvalidObjectError as error:
            for name in written:  # those before the frame that cannot be read
                self._target.remove(name)
            if not self._options.skip_invalid:
                raise
            return [{"skipped": found.key, "reason": str(error)}]


def _record(made: Output, line: SourceLine, digest: str) -> dict[str, Any]:
    record: dict[str, Any] = {
        "key": made.name,
        "size": len(made.content),
        "sha256": hashlib.sha256(made.content).hexdigest(),
    }
    if line.labels:
        record["labels"] = line.labels
    return record | {"source": {"key": line.found.key, "sha256": digest}}


def part_key(start: int, end: int) -> str:
    """Return the key of what a task has made."""
    return f"{PARTS}{start:012}-{end:012}.jsonl"


def too_many_skipped(allowed: int, found: int, first: str) -> DatasetError:
    """Build the error of a processing with more invalid objects than it may leave out."""
    text = f"{count_text(found, 'object')} cannot be processed, and {allowed:,} may be left out"
    return DatasetError(
        text + (f": {first}" if first else ""),
        "look at them, or leave out more: `--skip-invalid N`, `skipInvalid: N` in a spec",
    )


# -- this machine --------------------------------------------------------------------------------------------------


def run_here(options: ProcessOptions, progress: PackProgress) -> Processed:
    """Process on this machine, or continue. Raises DatasetError, StoreError, ArgumentError."""
    load_steps(options.steps)  # its errors come before anything is written
    places = options.places
    location = parse_location(places.target)
    with lock_target(location, "processes into"):
        target = open_store(location, places.endpoint)
        store = open_beside(target, places.endpoint)
        plan, change = _plan(options, target, store, progress)
        done = _earlier(store, plan)
        if done is None:
            progress.start("processing", len(plan))
            with _explained_by(change):
                _run_tasks(options, plan, progress)
                done = publish(options, plan, target, store, progress)
        return done._replace(source_change=change)


@contextmanager
def _explained_by(change: str) -> Iterator[None]:
    """Say of an error that an object is no more what it was, that the source has changed since an earlier run."""
    try:
        yield
    except (ChangedError, WorkerError) as error:
        if not change or (isinstance(error, WorkerError) and not error.changed):
            raise
        raise DatasetError(
            f"{change}: {error}", "process it into an empty directory or prefix, as a new version"
        ) from None


def _plan(options: ProcessOptions, target: Store, store: Store, progress: PackProgress) -> tuple[Plan, str]:
    """Make the plan; return that of an earlier run with what has changed in the source since then."""
    plan = read_plan(store, options.places, options.steps)
    if plan is None:
        return make_plan(options.places, options.steps, target, store, progress), ""
    return plan, source_change(plan, options.places, progress)


def _run_tasks(options: ProcessOptions, plan: Plan, progress: PackProgress) -> None:
    tasks = list(plan.tasks())
    count = min(options.jobs, len(tasks))
    if count == 1:
        processor = Processor(options, plan)
        for start, end in tasks:
            progress.add(end - start, processor.run(start, end, 1))
        return
    # Processes and not forks: the store's library has threads.
    pool = ProcessPoolExecutor(count, get_context("spawn"), _start_process, (options, plan.source, os.getpid()))
    try:
        for (start, end), size in zip(tasks, pool.map(_run_task, tasks), strict=True):
            if isinstance(size, WorkerError):
                raise size
            progress.add(end - start, size)
    except BrokenProcessPool:
        raise ObjectStoreError(
            "a process that worked on objects ended", "it may lack memory: use fewer `--jobs`"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_PROCESSOR: list[Processor] = []
"""The one of a process of the pool."""


def _start_process(options: ProcessOptions, source: str, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends its processes
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    target = open_store(options.places.target, options.places.endpoint)
    plan = wait_for_plan(open_beside(target, options.places.endpoint), options.places, options.steps, source)
    _PROCESSOR.append(Processor(options, plan))


def _end_with(parent: int) -> None:
    """End this process when the one that started it is killed."""
    while os.getppid() == parent:
        sleep(_PARENT_INTERVAL_S)
    os._exit(1)


def _run_task(task: tuple[int, int]) -> int | WorkerError:
    try:
        return _PROCESSOR[0].run(*task, threads=1)
    except HintedError as error:  # each kind has arguments of its own, so not all of them can be sent
        return WorkerError(str(error), error.hint, error.exit_code, isinstance(error, ChangedError))


# -- a worker of a job ---------------------------------------------------------------------------------------------


def run_worker(options: ProcessOptions, first: bool, progress: PackProgress) -> Processed | None:
    """Process the tasks of the job's master as one of its workers; the `first` one plans and publishes.

    Returns the result in the first worker. Raises DatasetError, StoreError, ArgumentError.
    """
    load_steps(options.steps)
    places = options.places
    target = open_store(places.target, places.endpoint)
    store = open_beside(target, places.endpoint)
    change = ""
    if first:
        plan, change = _plan(options, target, store, progress)
    else:
        plan = wait_for_plan(store, places, options.steps)
    if (done := _earlier(store, plan)) is not None:
        return done._replace(source_change=change)
    processor = Processor(options, plan)
    progress.start("processing")
    with _explained_by(change):
        for start, end in _master_tasks(plan):
            progress.add(end - start, processor.run(start, end, options.jobs))
        return publish(options, plan, target, store, progress)._replace(source_change=change) if first else None


def _master_tasks(plan: Plan) -> Iterator[tuple[int, int]]:
    try:
        from avactl_worker import MasterError, connect
    except ModuleNotFoundError:
        raise ObjectStoreError("a worker of a job requires the package grpcio", "install `avactl[cluster]`") from None
    try:
        with connect() as master:
            files = [(str(plan.record["sha256"]), len(plan))]
            for task in master.dataset(_DATASET, files, records_per_task=plan.per_task):
                yield task.start, task.end
    except MasterError as error:
        raise ObjectStoreError(f"the job's master: {error}", "see the log of the master") from None


# -- the end -------------------------------------------------------------------------------------------------------


def _earlier(store: Store, plan: Plan) -> Processed | None:
    """Return the result of an earlier run that is complete."""
    found = store.find(MANIFEST)
    if found is None:
        return None
    _remove_parts(store, plan)
    digest, objects, size, unchanged = hashlib.sha256(), 0, 0, 0
    for line in _stored_lines(store, MANIFEST):
        digest.update(line + b"\n")
        made = orjson.loads(line)
        objects += 1
        size += made["size"]
        unchanged += made["sha256"] == made["source"]["sha256"]
    skipped = [orjson.loads(line) for line in _stored_lines(store, SKIPPED)]
    first = skipped[0]["reason"] if skipped else ""
    place = f"{store.location}/{MANIFEST}"
    return Processed(len(plan), objects, size, len(skipped), first, digest.hexdigest(), place, True, unchanged, "")


def _stored_lines(store: Store, key: str) -> Iterator[bytes]:
    found = store.find(key)
    rest = b""
    for chunk in store.stream(found) if found is not None else ():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole


def publish(options: ProcessOptions, plan: Plan, target: Store, store: Store, progress: PackProgress) -> Processed:
    """Check that the target has exactly what the tasks have made, and write the manifest, which makes it complete."""
    skipped: list[dict[str, Any]] = []
    progress.start("checking", len(plan))
    lost = [task for task in plan.tasks() if store.find(part_key(*task)) is None]
    if lost:  # the master's state is newer than the store
        processor = Processor(options, plan)
        for start, end in lost:
            processor.run(start, end, options.jobs)
    objects = size = unchanged = 0
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="avactl-process-") as folder:
        path = Path(folder, MANIFEST)
        with path.open("wb") as file:
            found = target.objects()
            listed = next(found, None)
            last: dict[str, Any] = {}
            for _, _, text in sort_lines(_made_lines(plan, store, skipped)):
                made = orjson.loads(text)
                if made["key"] == last.get("key"):
                    raise _same_name(last, made)
                if listed is None or listed.key != made["key"]:
                    if listed is not None and listed.key.encode() < made["key"].encode():
                        raise _stray(target, listed.key)
                    raise _missing(target, made["key"], "is missing")
                if listed.size != made["size"]:
                    raise _missing(target, made["key"], f"has {listed.size:,} bytes instead of {made['size']:,}")
                listed = next(found, None)
                last = made
                line = orjson.dumps(_manifest_line(made, plan, target), option=orjson.OPT_APPEND_NEWLINE)
                digest.update(line)
                file.write(line)
                objects += 1
                size += made["size"]
                unchanged += made["sha256"] == made["source"]["sha256"]
            if listed is not None:
                raise _stray(target, listed.key)
        first = skipped[0]["reason"] if skipped else ""
        if len(skipped) > options.skip_invalid:
            raise too_many_skipped(options.skip_invalid, len(skipped), first)
        if not objects:
            raise DatasetError("nothing is left of the source: all objects were left out", "look at the steps")
        if skipped:
            lines = (orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in skipped)
            store.write(SKIPPED, b"".join(lines))
        with path.open("rb") as file:
            store.write(MANIFEST, iter(lambda: file.read(1024 * 1024), b""))
    _remove_parts(store, plan)
    place = f"{store.location}/{MANIFEST}"
    return Processed(len(plan), objects, size, len(skipped), first, digest.hexdigest(), place, False, unchanged, "")


def _remove_parts(store: Store, plan: Plan) -> None:
    """Remove what the tasks have made, which the manifest lists; a run that was killed may have left some of it."""
    own = {part_key(start, end) for start, end in plan.tasks()}
    for part in list(store.objects(PARTS) if PARTS.rstrip("/") in store.directories() else ()):
        if part.key in own:
            store.remove(part.key)


def _made_lines(plan: Plan, store: Store, skipped: list[dict[str, Any]]) -> Iterator[Keyed]:
    """Yield what the tasks have made, keyed; collect what they left out. Raises DatasetError."""
    number = 0
    for start, end in plan.tasks():
        seen = set[str]()
        for line in _stored_lines(store, part_key(start, end)):
            record = orjson.loads(line)
            if "skipped" in record:
                seen.add(record["skipped"])
                skipped.append(record)
                continue
            seen.add(record["source"]["key"])
            number += 1
            if problem := key_problem(record["key"]):
                raise DatasetError(f"{store.location} lists {display_name(record['key'])}, whose name {problem}")
            yield record["key"].encode(), number, line
        for source in plan.lines(start, end):
            if source.found.key not in seen:
                raise DatasetError(
                    f"{display_name(source.found.key)} became nothing", "a function must return content for each object"
                )


def _manifest_line(made: Mapping[str, Any], plan: Plan, target: Store) -> dict[str, Any]:
    line = {"url": f"{target.location.url}/{made['key']}", "size": made["size"], "sha256": made["sha256"]}
    if "labels" in made:
        line["labels"] = made["labels"]
    source = made["source"]
    return line | {"source": {"url": f"{plan.source}/{source['key']}", "sha256": source["sha256"]}}


def _same_name(one: Mapping[str, Any], other: Mapping[str, Any]) -> DatasetError:
    names = " and ".join(display_name(each["source"]["key"]) for each in (one, other))
    return DatasetError(f"{names} both became {display_name(one['key'])}", "give them different names")


def _stray(target: Store, key: str) -> DatasetError:
    text = f"{target.location} has {display_name(key)}, which this processing did not make"
    return DatasetError(text, "remove it, or process into an empty directory; then run the command again")


def _missing(target: Store, key: str, what: str) -> DatasetError:
    hint = "something else changed it: process into another directory"
    return DatasetError(f"{target.location}/{display_name(key)} {what}", hint)
