"""Manifests of `avactl dataset`: JSON lines, one object each, as the files of a dataset.

A manifest of `avactl dataset pack` has `records` for each shard: the shards are the files. One of `avactl dataset
snapshot` has one line for each record: the manifest itself is the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from typing import Any, Iterable, Iterator

_LONGEST = 64 * 1024
"""Bytes of a line."""
_MAX_RECORDS = 2**40


class ManifestError(ValueError):
    """A manifest cannot be read; the message names the line."""


class Manifest:
    """The lines of a manifest. `manifest[start:end]` returns them as dicts with `url`, and `size`, `labels`, …"""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read all lines once. Raises ManifestError."""
        self.path = os.fspath(path)
        self._offsets, self._numbers = array("Q"), array("Q")
        """Place and number of each line that is not empty."""
        self.shards: list[tuple[str, int]] = []
        """URLs and records, if the lines have `records`; lines without, such as indexes, are no shards."""
        digest = hashlib.sha256()
        offset = 0
        try:
            with open(self.path, "rb") as file:  # noqa: PTH123 - any kind of path
                for number, line in enumerate(_lines(file, self.path), start=1):
                    digest.update(line)
                    if line.strip():
                        entry = self._parsed(line, number)
                        self._offsets.append(offset)
                        self._numbers.append(number)
                        if "records" in entry:
                            self.shards.append((entry["url"], entry["records"]))
                    offset += len(line)
        except OSError as error:
            raise ManifestError(f"{self.path}: {(error.strerror or str(error)).lower()}") from None
        if not self._offsets:
            raise ManifestError(f"{self.path} lists no objects")
        self._name = f"manifest sha256:{digest.hexdigest()}"

    def __str__(self) -> str:
        # Workers may have it at different places, but must have the same.
        return self._name

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, part: slice) -> list[dict[str, Any]]:
        start, end, step = part.indices(len(self))
        if step != 1:
            raise ValueError("a manifest is read in steps of 1")
        with open(self.path, "rb") as file:  # noqa: PTH123
            file.seek(self._offsets[start] if start < end else 0)
            found: list[dict[str, Any]] = []
            for line in file if start < end else ():
                if line.strip():
                    found.append(self._parsed(line, self._numbers[start + len(found)]))
                    if len(found) == end - start:
                        break
        return found

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except RecursionError:
            raise ManifestError(f"{self.path}: line {number} is nested too deeply") from None
        except ValueError as error:
            raise ManifestError(f"{self.path}: line {number} is not JSON: {error}") from None
        if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
            raise ManifestError(f'{self.path}: line {number} is not an object with a `url`: {{"url": "s3://…", …}}')
        records = entry.get("records", 1)
        if type(records) is not int or not 1 <= records <= _MAX_RECORDS:
            raise ManifestError(
                f"{self.path}: the `records` of line {number} are not a positive number: {records!r:.80}"
            )
        return entry


def _lines(file: Any, path: str) -> Iterator[bytes]:
    number = 0
    while line := file.readline(_LONGEST + 1):
        number += 1
        if len(line) > _LONGEST:
            raise ManifestError(f"{path}: line {number} is longer than {_LONGEST >> 10} KiB")
        yield line


def entries(manifest: Manifest, start: int, end: int) -> Iterable[dict[str, Any]]:
    """Return lines of a manifest: the records of a dataset without a `read` function."""
    return manifest[start:end]
