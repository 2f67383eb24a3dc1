"""The plan of a processing, beside its target: what is processed, by which steps, and in which tasks.

Beside the target, in `TARGET.manifest/`, are

    process.json    the source, the steps and the number of objects
    source.jsonl    the objects of the source, one a line
    parts/          what each task has made; removed at the end
    skipped.jsonl   objects that were left out, if there are any
    manifest.jsonl  the manifest of the new version; written last

so that the target has exactly the objects of the version.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO, NamedTuple

import orjson

from avactl.base.terminal import count_text
from avactl.contracts.processing import BESIDE
from avactl.datasets.errors import ArgumentError, DatasetError, ObjectStoreError
from avactl.datasets.process.model import Step
from avactl.datasets.process.steps import changes_names
from avactl.datasets.progress import PackProgress
from avactl.datasets.sources import DatasetSource, SourceObject, open_source
from avactl.datasets.stores.locations import StoreLocation, key_problem, parse_location
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.store import FoundObject, Store
from avactl.datasets.text import display_name

RECORD, SOURCE, SKIPPED, MANIFEST = "process.json", "source.jsonl", "skipped.jsonl", "manifest.jsonl"
PARTS = "parts/"
MAX_MANIFEST_BYTES = 8 * 1024**3
_TASKS, _MAX_OBJECTS_PER_TASK = 512, 100
"""Tasks that a small source has about, and objects of a task."""
_WAIT_FOR_PLAN_S = 3600.0
_LOOK_INTERVAL_S = 1.0
_EMPTY_HINT = "process into an empty directory or prefix, as a new version"


class Places(NamedTuple):
    """Where a processing reads and writes."""

    source: str
    """Directory, prefix, or manifest: a file, or an object whose name ends with `.jsonl`."""
    target: str
    endpoint: str = ""
    source_endpoint: str = ""


def beside(target: StoreLocation) -> StoreLocation:
    """Return the directory beside a target. Raises ArgumentError for a whole bucket, beside which there is nothing."""
    if target.path.strip("/"):
        return target._replace(path=f"{target.path.rstrip('/')}{BESIDE}")
    raise ArgumentError(f"{target} is no directory", "process into a directory of the bucket: `s3://bucket/v2`")


class SourceLine(NamedTuple):
    """An object of the source."""

    found: FoundObject
    sha256: str
    labels: dict[str, Any]


class Plan:
    """A plan that is stored. `len(plan)` is the number of objects, `plan.lines` has them."""

    def __init__(self, record: dict[str, Any], store: Store) -> None:
        """Read the list of the source. Raises DatasetError, StoreError."""
        self.record = record
        self.source = str(record["source"])
        self.per_task = record["perTask"]
        if not isinstance(self.per_task, int) or not 1 <= self.per_task <= _MAX_OBJECTS_PER_TASK:
            raise DatasetError(f"{store.location}/{RECORD} is damaged", _EMPTY_HINT)
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._offsets = array("q", [0])
        digest = hashlib.sha256()
        found = store.find(SOURCE)
        if found is not None and found.size > MAX_MANIFEST_BYTES:
            raise DatasetError(f"{store.location}/{SOURCE} has {found.size:,} bytes", _EMPTY_HINT)
        for chunk in store.stream(found) if found is not None else ():
            digest.update(chunk)
            self._file.write(chunk)
        self._file.seek(0)
        for line in self._file:
            self._offsets.append(self._offsets[-1] + len(line))
        if digest.hexdigest() != record["sha256"] or len(self) != record["objects"]:
            raise DatasetError(f"{store.location}/{SOURCE} is damaged", _EMPTY_HINT)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def lines(self, start: int, end: int) -> list[SourceLine]:
        """Return the lines `start` to `end` (exclusive)."""
        self._file.seek(self._offsets[start])
        text = self._file.read(self._offsets[end] - self._offsets[start])
        return [_source_line(orjson.loads(line)) for line in text.splitlines()]

    def tasks(self) -> Iterator[tuple[int, int]]:
        """Yield first and last line (exclusive) of each task."""
        for start in range(0, len(self), self.per_task):
            yield start, min(start + self.per_task, len(self))


def _source_line(data: dict[str, Any]) -> SourceLine:
    if problem := key_problem(data["key"]):
        raise DatasetError(f"the plan has an object {display_name(data['key'])} whose name {problem}", _EMPTY_HINT)
    found = FoundObject(data["key"], data["size"], data.get("etag", ""), data.get("stamp", ""))
    return SourceLine(found, data.get("sha256", ""), data.get("labels", {}))


def read_plan(store: Store, places: Places, steps: Sequence[Step], objects: str = "") -> Plan | None:
    """Return the plan that is stored; None if there is none. Raises DatasetError for one of another source or steps.

    `objects`: URL of the directory with the objects of the source, if it is known.
    """
    found = store.find(RECORD)
    if found is None:
        return None
    try:
        record = orjson.loads(store.read(found))
        if record["steps"] != step_data(steps):
            text = f"{store.location} is of a processing with other steps: {display_name(str(record['steps']))}"
            raise DatasetError(text, f"use the same steps to continue it, or {_EMPTY_HINT}")
        if record["from"] != parse_location(places.source).url:
            text = f"{store.location} is of a processing of {display_name(record['from'])}"
            raise DatasetError(text, f"name the same source to continue it, or {_EMPTY_HINT}")
        if record["source"] != (objects or _objects_of(places)):  # others may write beside a target
            text = f"{store.location}/{RECORD} is of objects in {display_name(str(record['source']))}"
            raise DatasetError(text, _EMPTY_HINT)
        return Plan(record, store)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise DatasetError(f"{store.location}/{RECORD} is damaged", _EMPTY_HINT) from None


def _objects_of(places: Places) -> str:
    """Return the URL of the directory with the objects of the source. Raises DatasetError, StoreError."""
    if not places.source.endswith(".jsonl"):
        return parse_location(places.source).url
    with (
        tempfile.TemporaryDirectory(prefix="avactl-process-") as folder,
        PackProgress(sys.stderr, silent=True) as silent,
    ):
        return open_listing(places, Path(folder), silent).store.location.url


def wait_for_plan(store: Store, places: Places, steps: Sequence[Step], objects: str = "") -> Plan:
    """Wait until the first worker has made the plan; arguments as of `read_plan`. Raises DatasetError, StoreError."""
    began = monotonic()
    while (plan := read_plan(store, places, steps, objects)) is None:
        if monotonic() - began > _WAIT_FOR_PLAN_S:
            raise ObjectStoreError(f"{store.location} has no plan after an hour", "see the log of worker 0")
        sleep(_LOOK_INTERVAL_S)
    return plan


def source_change(plan: Plan, places: Places, progress: PackProgress) -> str:
    """Return how the source differs from that of a plan; "" if it does not. Raises DatasetError, StoreError."""
    digest, count = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory(prefix="avactl-process-") as folder:
        source = open_listing(places, Path(folder), progress)
        progress.start("comparing", source.total)
        for each in progress.counted(source.objects()):
            digest.update(_line(each))
            count += 1
    if digest.hexdigest() == plan.record["sha256"]:
        return ""
    if count == len(plan):
        return (
            "the source has changed since this version was begun: other objects, or objects written anew, among its "
            f"{count:,}"
        )
    return f"the source has changed since this version was begun: {count_text(count, 'object')} now, {len(plan):,} then"


def step_data(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return steps as they are stored."""
    return [step.to_data() for step in steps]


def make_plan(places: Places, steps: Sequence[Step], target: Store, store: Store, progress: PackProgress) -> Plan:
    """List the source and store the plan. Raises DatasetError, StoreError, ArgumentError."""
    with tempfile.TemporaryDirectory(prefix="avactl-process-") as folder:
        source = open_listing(places, Path(folder), progress)
        for place in (target, store):
            _want_apart(source.store.location, place.location)
            # A run that was killed before it had a plan has left the list.
            if any(found.key != SOURCE or place is target for found in place.objects()):
                raise ArgumentError(f"{place.location} is not empty", _EMPTY_HINT)
        path = Path(folder, SOURCE)
        digest, count, size = hashlib.sha256(), 0, 0
        names: set[bytes] | None = set() if changes_names(steps) else None
        progress.start("listing", source.total)
        with path.open("wb") as file:
            for each in progress.counted(source.objects()):
                line = _line(each)
                digest.update(line)
                file.write(line)
                count += 1
                size += each.found.size
                if names is not None:
                    _want_other_name(each.found.key, steps, names)
        if not count:
            raise DatasetError(f"{source.store.location} has no objects", "check the source")
        record = {
            "from": parse_location(places.source).url,
            "source": source.store.location.url,
            "steps": step_data(steps),
            "objects": count,
            "bytes": size,
            "sha256": digest.hexdigest(),
            "perTask": max(1, min(_MAX_OBJECTS_PER_TASK, count // _TASKS)),
        }
        with path.open("rb") as file:
            store.write(SOURCE, iter(lambda: file.read(1024 * 1024), b""))
        store.write(RECORD, orjson.dumps(record, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        return Plan(record, store)


def _line(each: SourceObject) -> bytes:
    found = each.found
    facts = {"key": found.key, "size": found.size, "etag": found.etag, "stamp": found.stamp, "sha256": each.sha256}
    data: dict[str, Any] = {name: value for name, value in facts.items() if value != ""}
    if each.labels:
        data["labels"] = each.labels
    return orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE)


def open_listing(places: Places, folder: Path, progress: PackProgress) -> DatasetSource:
    """Open the source; a manifest in a store is copied to `folder` first. Raises DatasetError, StoreError."""
    text, endpoint = places.source, places.source_endpoint
    if "://" in text and text.endswith(".jsonl"):
        directory, _, name = text.rpartition("/")
        store = open_store(directory, endpoint)
        found = store.find(name)
        if found is None:
            raise DatasetError(f"{text} does not exist", "check the URL of the manifest")
        if found.size > MAX_MANIFEST_BYTES:
            raise DatasetError(f"{text} has {found.size:,} bytes; the limit is {MAX_MANIFEST_BYTES:,}")
        path = folder / "given.jsonl"
        with path.open("wb") as file:
            file.writelines(store.stream(found))
        text = str(path)
    return open_source(text, endpoint, False, progress)


def _want_apart(source: StoreLocation, target: StoreLocation) -> None:
    if source.contains(target) or target.contains(source):
        raise ArgumentError(f"the target {target} and the source {source} overlap", "name a directory outside of it")


def _want_other_name(key: str, steps: Sequence[Step], names: set[bytes]) -> None:
    """Raise DatasetError if two objects become one: `a.png` and `a.jpg` as `a.webp`."""
    name = converted_name(key, steps)
    short = hashlib.blake2b(name.encode(), digest_size=12).digest()
    if short in names:
        hint = "rename one of them, or keep their formats"
        raise DatasetError(f"{display_name(key)} and another object both become {display_name(name)}", hint)
    names.add(short)


def converted_name(key: str, steps: Sequence[Step]) -> str:
    """Return the name that an object gets by `convert`, unless it is a video or a function changes it."""
    from avactl.datasets.images import image_format, is_image

    for step in steps:
        if step.convert is not None and is_image(key) and image_format(key) != image_format(f".{step.convert}"):
            key = f"{key.rpartition('.')[0]}.{step.convert}"
    return key


def open_beside(target: Store, endpoint: str) -> Store:
    """Open the directory beside a target, and make both if they are local."""
    location = beside(target.location)
    if location.scheme == "file":
        for path in (target.location.path, location.path):
            Path(path).mkdir(parents=True, exist_ok=True)
    return open_store(location, endpoint)
