"""Packing of a source into a target, and continuing where an earlier run stopped."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from avactl.base.installation import install_command
from avactl.base.terminal import count_text
from avactl.datasets.errors import ArgumentError, DatasetError, ObjectStoreError
from avactl.datasets.pack.classes import Classes, find_classes
from avactl.datasets.pack.model import CLASSES, MANIFEST, OPTIONS, SHARDS, STATE, PackFormat, Settings, Shard
from avactl.datasets.pack.planner import plan
from avactl.datasets.pack.workers import PackWorkers
from avactl.datasets.progress import PackProgress
from avactl.datasets.selection import choose, directory_labels
from avactl.datasets.sources import DatasetSource, SourceObject
from avactl.datasets.stores.local import PARTIAL
from avactl.datasets.stores.locations import StoreLocation
from avactl.datasets.stores.locking import lock_target
from avactl.datasets.stores.store import Store
from avactl.datasets.text import display_name

_EMPTY_HINT = "pack into an empty directory or prefix"


class PackOptions(NamedTuple):
    """A run."""

    settings: Settings
    jobs: int
    source_endpoint: str
    target_endpoint: str
    follow: bool


class Packed(NamedTuple):
    """Result of a run."""

    shards: int
    kept: int
    """Shards that an earlier run had completed."""
    files: int
    samples: int
    read: int
    """Bytes of the source."""
    written: int
    """Bytes of shards, their indexes and the numbers of classes."""
    skipped: list[str]
    """Unreadable images that were left out."""
    kinds: dict[str, int]
    """Files by their last extensions; "" without one."""
    sha256: str
    """Of the manifest."""


def pack(source: DatasetSource, target: Store, options: PackOptions, progress: PackProgress) -> Packed:
    """Pack the files of a source into shards. Raises DatasetError, StoreError, ArgumentError."""
    _want_apart(source.store.location, target.location)
    for package, needed in (("google-crc32c", True), ("lmdb", options.settings.format is PackFormat.lmdb)):
        if needed and find_spec(package.replace("-", "_")) is None:
            raise ObjectStoreError(f"packing requires the package {package}", install_command("dataset"))
    with lock_target(target.location, "packs into"):
        earlier = _Earlier(target, options.settings)
        objects = _chosen_objects(source, options.settings)
        progress.start("listing", source.total)
        labelled = source.labelled or options.settings.labels
        classes = find_classes(progress.counted(objects()) if labelled else (), options.settings)
        progress.start("packing", source.total)
        job = {
            "source": source.store.location.url,
            "target": target.location.url,
            "sourceEndpoint": options.source_endpoint,
            "targetEndpoint": options.target_endpoint,
            "follow": options.follow,
            "settings": options.settings.data(),
        }
        states: dict[int, dict[str, Any]] = {}
        with PackWorkers(options.jobs, job, progress.add) as workers:
            planned = plan(objects, options.settings, classes)
            for shard, state in workers.write(earlier.missing(planned, states, progress)):
                states[shard.number] = state
        if not states:
            raise DatasetError("there are no files to pack", "check the source, `--match` and `--exclude`")
        earlier.want_no_more(len(states))
        return _finish_pack(target, options.settings.url or target.location.url, states, classes, earlier)


def _chosen_objects(source: DatasetSource, settings: Settings) -> Callable[[], Iterator[SourceObject]]:
    """Return what lists the chosen files with their labels."""
    chosen, labels = choose(settings.match, settings.exclude), directory_labels(settings.labels)

    def objects() -> Iterator[SourceObject]:
        for each in source.objects():
            if not chosen(each.found.key):
                continue
            if settings.labels:
                if each.labels:
                    raise ArgumentError("the manifest has labels of its own", "leave `--labels` out")
                each = each._replace(labels=labels(each.found.key))
            yield each

    return objects


def _finish_pack(
    target: Store, url: str, states: dict[int, dict[str, Any]], classes: Classes, earlier: _Earlier
) -> Packed:
    """Write the numbers of the classes, and the manifest, which makes the pack complete."""
    lines, sums = [], dict.fromkeys(("files", "samples", "read", "written"), 0)
    skipped: list[str] = []
    kinds: Counter[str] = Counter()
    objects = [each for _, state in sorted(states.items()) for each in state["objects"]]
    if classes.label:
        numbers = orjson.dumps({**classes.numbers}, option=orjson.OPT_APPEND_NEWLINE)
        objects.append({"key": CLASSES, "size": len(numbers), "sha256": hashlib.sha256(numbers).hexdigest()})
        if not earlier.complete:
            target.write(CLASSES, numbers)
    for each in objects:
        entry = {"url": f"{url}/{each.pop('key')}", **each}
        lines.append(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
        sums["written"] += each["size"]
        sums["samples"] += each.get("records", 0)
    for _, state in sorted(states.items()):
        sums["files"] += state["files"]
        sums["read"] += state["read"]
        skipped += state["skipped"]
        kinds.update(state["kinds"])
    lines.sort()
    manifest = b"".join(lines)
    if not earlier.complete:
        target.write(MANIFEST, manifest)
    if target.location.scheme == "file":
        for left in Path(target.location.path).glob(f"*/.*{PARTIAL}"):
            left.unlink(missing_ok=True)
    sha256 = hashlib.sha256(manifest).hexdigest()
    return Packed(len(states), earlier.kept, skipped=skipped, kinds=dict(kinds), sha256=sha256, **sums)


# -- the target ----------------------------------------------------------------------------------------------------


def _want_apart(source: StoreLocation, target: StoreLocation) -> None:
    if source.contains(target):
        raise ArgumentError(f"the target {target} is inside the source {source}", "name a directory outside of it")


class _Earlier:
    """State that earlier runs left in the target."""

    def __init__(self, target: Store, settings: Settings) -> None:
        """Begin a pack, or continue one. Raises ArgumentError if the target holds anything else."""
        self._target = target
        self._sizes = {found.key: found.size for found in target.objects()}
        self._suffix = settings.format.suffix
        self.complete = MANIFEST in self._sizes
        self.kept = 0
        wanted = settings.data()
        if self._sizes.keys() <= {OPTIONS}:
            target.write(OPTIONS, orjson.dumps(wanted, option=orjson.OPT_SORT_KEYS))
            return
        if OPTIONS not in self._sizes:
            raise ArgumentError(f"{target.location} is not empty", _EMPTY_HINT)
        before = self._json(OPTIONS)
        for name, value in wanted.items():
            if before.get(name) != value:
                text = f"{target.location} holds a pack with {name} {before.get(name)!r}, not {value!r}"
                raise ArgumentError(text, f"use the same options to continue it, or {_EMPTY_HINT}")

    def missing(
        self, shards: Iterator[Shard], states: dict[int, dict[str, Any]], progress: PackProgress
    ) -> Iterator[Shard]:
        """Yield the shards that must be written; keep the states of the others."""
        for shard in shards:
            state = self._state(shard)
            if state is None:
                yield shard
                continue
            self.kept += 1
            states[shard.number] = state
            progress.add(shard.files, state["read"])

    def _state(self, shard: Shard) -> dict[str, Any] | None:
        key = f"{STATE}{shard.name}.json"
        state = self._json(key) if key in self._sizes else {}
        written = [*state.get("objects", ()), *([state["records"]] if state else ())]
        same = state.get("stamp") == shard.stamp
        if same and all(self._sizes.get(each["key"]) == each["size"] for each in written):
            return state
        if self.complete:
            why = "a shard is missing or has another size" if same else "its source has changed"
            hint = f"a complete pack is not changed: {_EMPTY_HINT}, as a new version"
            raise DatasetError(f"{self._target.location} is complete, but {why} ({shard.name})", hint)
        return None

    def want_no_more(self, count: int) -> None:
        """Raise DatasetError for shards beyond the last one, of a source that had more files."""
        for key in sorted(self._sizes):
            match = re.match(rf"{SHARDS}shard-(\d+)[./]", key)
            if match is not None and int(match[1]) >= count:
                shards = count_text(count, "shard")
                text = f"{self._target.location} has {display_name(key)}, and the source has only {shards}"
                raise DatasetError(text, f"the source had more files in an earlier run: {_EMPTY_HINT}")

    def _json(self, key: str) -> dict[str, Any]:
        found = self._target.find(key)
        try:
            data = orjson.loads(self._target.read(found)) if found is not None else None
        except orjson.JSONDecodeError:
            data = None
        if not isinstance(data, dict):
            raise DatasetError(f"{self._target.location}/{key} is damaged", _EMPTY_HINT)
        return data
