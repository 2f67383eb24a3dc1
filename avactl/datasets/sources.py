"""Objects to work on: those of a manifest, or all of a directory or of a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from avactl.datasets.errors import DatasetError
from avactl.datasets.manifest import MAX_LINE, ManifestEntry, ManifestReader, parse_line, read_valid
from avactl.datasets.ordering import valid_in_order
from avactl.datasets.progress import PackProgress
from avactl.datasets.stores.locations import parse_location
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.store import FoundObject, Store


class SourceObject(NamedTuple):
    """An object to work on."""

    found: FoundObject
    sha256: str = ""
    """Expected digest in hex; "" if unknown."""
    labels: Mapping[str, Any] = {}


class DatasetSource(NamedTuple):
    """Objects in the order of their keys."""

    store: Store
    objects: Callable[[], Iterator[SourceObject]]
    total: int | None
    """Number of objects, if known."""
    labelled: bool = False
    """True if its objects can have labels."""


def is_manifest(text: str) -> bool:
    """Return True for the path of a file."""
    return "://" not in text and Path(text).is_file()


def is_remote(text: str) -> bool:
    """Return True for the URL of an object store, and for a manifest of one."""
    if is_manifest(text):
        with Path(text).open("rb") as file:
            entry = parse_line(file.readline(MAX_LINE), 1)
        return isinstance(entry, ManifestEntry) and not entry.url.startswith("file:")
    return parse_location(text).scheme != "file"


def open_source(text: str, endpoint: str, follow: bool, progress: PackProgress) -> DatasetSource:
    """Open a manifest, a URL or a directory. Raises DatasetError, StoreError, ArgumentError."""
    if not is_manifest(text):
        store = open_store(text, endpoint, follow)
        return DatasetSource(store, lambda: map(SourceObject, store.objects()), None)
    progress.start("reading")
    reader = read_valid(Path(text), progress.counted)
    if reader.without_size:
        raise DatasetError(f"{text}: {reader.without_size:,} lines have no `size`", "take a snapshot with avactl")
    store = open_store(parse_location(reader.directory), endpoint, follow)
    return DatasetSource(store, lambda: _listed_objects(reader), reader.objects, labelled=True)


def _listed_objects(reader: ManifestReader) -> Iterator[SourceObject]:
    for entry in valid_in_order(reader):
        yield SourceObject(as_found(entry, reader.directory), entry.sha256, entry.labels)


def as_found(entry: ManifestEntry, directory: str) -> FoundObject:
    """Return an entry of a manifest as an object of the store at its directory."""
    return FoundObject(entry.url[len(directory) :], entry.size or 0, entry.etag, "")
