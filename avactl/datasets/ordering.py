"""Entries of a manifest in the order of their URLs, with bounded memory: an external merge sort."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from heapq import merge
from pathlib import Path
from typing import BinaryIO

from avactl.datasets.manifest import (
    ManifestEntry,
    ManifestProblem,
    ManifestReader,
    invalid_manifest,
    numbered_lines,
    parse_line,
)
from avactl.datasets.text import display_name

_BATCH_BYTES, _BATCH_LINES = 16 * 1024 * 1024, 50_000
"""Size of a sorted run: what is sorted in memory."""
_MAX_RUNS = 128
"""Runs that are merged at once: each is an open file."""
_BUFFER_BYTES = 64 * 1024

Keyed = tuple[bytes, int, bytes]
"""URL, number and text of a line. UTF-8 bytes sort as the texts do."""


def in_order(reader: ManifestReader) -> Iterator[ManifestEntry | ManifestProblem]:
    """Yield the valid entries of a manifest in the order of their URLs, and a problem for each duplicate.

    `reader` has read the manifest before.
    """
    if reader.sorted:
        for number, line in numbered_lines(reader.path):
            if isinstance(entry := parse_line(line, number), ManifestEntry):
                yield entry
        return
    last, first = b"", 0
    for url, number, line in sort_lines(_keyed_lines(reader.path)):
        if url == last:
            message = f"line {number} lists the same object as line {first}: {display_name(url.decode())}"
            yield ManifestProblem(number, 1, 0, message, "remove one of them")
            continue
        last, first = url, number
        if isinstance(entry := parse_line(line, number), ManifestEntry):
            yield entry


def valid_in_order(reader: ManifestReader) -> Iterator[ManifestEntry]:
    """Yield the entries in the order of their URLs. Raises DatasetError for a duplicate."""
    for entry in in_order(reader):
        if isinstance(entry, ManifestProblem):
            raise invalid_manifest(reader.path, entry)
        yield entry


def _keyed_lines(path: Path) -> Iterator[Keyed]:
    for number, line in numbered_lines(path):
        entry = parse_line(line, number)
        if isinstance(entry, ManifestEntry):
            yield entry.url.encode(), number, line.strip()


def sort_lines(items: Iterable[Keyed]) -> Iterator[Keyed]:
    """Yield lines in the order of their keys. Sorted runs are kept in temporary files."""
    with tempfile.TemporaryDirectory(prefix="avactl-sort-") as folder:
        runs: list[BinaryIO] = []
        batch: list[Keyed] = []
        size = count = 0

        def spill(sorted_items: Iterable[Keyed]) -> None:
            nonlocal count
            file = Path(folder, str(count)).open("w+b", buffering=_BUFFER_BYTES)  # noqa: SIM115 - closed below
            count += 1
            file.writelines(b"%b\0%d\0%b\n" % item for item in sorted_items)
            file.seek(0)
            runs.append(file)

        try:
            for item in items:
                batch.append(item)
                size += len(item[2])
                if size > _BATCH_BYTES or len(batch) >= _BATCH_LINES:
                    spill(sorted(batch))
                    batch, size = [], 0
                if len(runs) == _MAX_RUNS:
                    old, runs = runs, []
                    spill(merge(*map(_read, old)))
                    for file in old:
                        file.close()
                        Path(file.name).unlink()
            yield from merge(sorted(batch), *map(_read, runs))
        finally:
            for file in runs:
                file.close()


def _read(file: BinaryIO) -> Iterator[Keyed]:
    for line in file:
        url, number, text = line.rstrip(b"\n").split(b"\0", 2)
        yield url, int(number), text
