"""Snapshots: the manifest of what a store holds now."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from avactl.base.directories import want_no_link
from avactl.datasets.concurrent import in_threads
from avactl.datasets.errors import ArgumentError, DatasetError, ObjectStoreError
from avactl.datasets.manifest import ManifestEntry, dump_entry
from avactl.datasets.progress import PackProgress
from avactl.datasets.selection import Chooses
from avactl.datasets.stores.locations import StoreLocation, parse_location
from avactl.datasets.stores.store import FoundObject, Store

THREADS = 16
"""Objects read at once."""


class SnapshotOptions(NamedTuple):
    """Contents of a snapshot."""

    url: str
    """URL of the directory in the manifest, where it is not that of the store: for data that is uploaded later."""
    chosen: Chooses
    labels: Callable[[str], dict[str, str]]
    checksum: bool
    """Read all content for its SHA-256."""


class WrittenSnapshot(NamedTuple):
    """Facts of a new manifest."""

    objects: int
    bytes: int
    blanks: int
    """Names with blanks, which the manifest of a Dataset does not accept."""
    sha256: str
    """Of the manifest."""


def snapshot_entries(store: Store, options: SnapshotOptions, progress: PackProgress) -> Iterator[ManifestEntry]:
    """Yield an entry for each object of a store. Raises DatasetError, StoreError."""
    directory = f"{options.url or store.location.url}/"
    progress.start("reading" if options.checksum else "listing")
    objects = (found for found in store.objects() if options.chosen(found.key))

    def read(found: FoundObject) -> tuple[FoundObject, str]:
        return found, content_digest(store, found)

    pairs: Iterable[tuple[FoundObject, str]] = ((found, "") for found in objects)
    if options.checksum:
        pairs = in_threads(read, objects, THREADS, 4 * THREADS)
    for number, (found, sha256) in enumerate(pairs, 1):
        if options.checksum:
            progress.add(1, found.size)
        elif number % 1000 == 0:
            progress.add(1000)
        yield ManifestEntry(
            directory + found.key, found.size, sha256, "", found.etag, options.labels(found.key), number
        )


def content_digest(store: Store, found: FoundObject, kind: str = "sha256") -> str:
    """Return the digest of an object's content in hex. Raises ChangedError, StoreError."""
    digest = hashlib.new(kind, usedforsecurity=False)
    for chunk in store.stream(found):
        digest.update(chunk)
    return digest.hexdigest()


def write_manifest(out: Path | BinaryIO, entries: Iterable[ManifestEntry], source: StoreLocation) -> WrittenSnapshot:
    """Write a manifest: a file appears when it is complete.

    Raises DatasetError if there are no entries, ArgumentError for a file inside the source, StoreError.
    """
    if not isinstance(out, Path):
        return _write(out, entries)
    if source.contains(parse_location(str(out))):
        raise ArgumentError(f"{out} is inside {source}", "write the manifest elsewhere: the next one would list it")
    with replacing(out) as partial, partial.open("wb") as file:
        return _write(file, entries)


def want_no_input(out: Path, *inputs: Path) -> None:
    """Raise ArgumentError if a command would write to a file that it reads: a version does not change."""
    if out.exists() and any(path.exists() and out.samefile(path) for path in inputs):
        raise ArgumentError(f"{out} is also what is read", "write to another file: a version does not change")


def write_lines(out: Path, lines: Iterable[bytes]) -> tuple[int, str]:
    """Write the lines of a manifest; the file appears when it is complete. Returns their number and the SHA-256.

    Raises StoreError.
    """
    digest, count = hashlib.sha256(), 0
    with replacing(out) as partial, partial.open("wb") as file:
        for line in lines:
            digest.update(line)
            file.write(line)
            count += 1
    return count, digest.hexdigest()


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Yield the path of a new file that takes the place of `out` at the end of the `with` block. Raises StoreError."""
    try:
        want_no_link(out)
        out.parent.stat()  # others than this program write the file, and have messages of their own
        partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
        try:
            yield partial
            partial.replace(out)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ObjectStoreError(f"{out}: {(error.strerror or str(error)).lower()}") from None


def _write(file: BinaryIO, entries: Iterable[ManifestEntry]) -> WrittenSnapshot:
    objects = size = blanks = 0
    digest = hashlib.sha256()
    for entry in entries:
        line = dump_entry(entry)
        digest.update(line)
        file.write(line)
        objects += 1
        size += entry.size or 0
        blanks += " " in entry.url
    if not objects:
        raise DatasetError("there are no objects", "check the location, `--match` and `--exclude`")
    return WrittenSnapshot(objects, size, blanks, digest.hexdigest())
