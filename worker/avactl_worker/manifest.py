"""Manifests of `avactl dataset`: JSON lines, one object each, as the files of a dataset.

A manifest of `avactl dataset pack` has `records` for each shard: the shards are the files. One of `avactl dataset
snapshot` has one line for each record: the manifest itself is the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from typing import Any, Iterable, Iterator, Mapping

from avactl_worker.shards import Record, read_records

_LONGEST = 64 * 1024
"""Bytes of a line."""
_MAX_RECORDS = 2**40


class ManifestError(ValueError):
    """A manifest cannot be read; the message names the line."""


class Manifest:
    """The lines of a manifest. `manifest[start:end]` returns them as dicts with `url`, and `size`, `labels`, …"""

    def __init__(
        self,
        path: str | os.PathLike[str],
        labels: Mapping[str, Any] | None = None,
        at: str | os.PathLike[str] | None = None,
    ) -> None:
        """Read all lines once. Raises ManifestError.

        With `labels`, only lines that have these count. `at` is the directory where the data is mounted: the one that
        contains all objects of the manifest. A manifest that a pod has beside its dataset knows it.
        """
        self.path = os.fspath(path)
        self._labels = {name: str(value) for name, value in (labels or {}).items()}
        self._at = os.fspath(at) if at is not None else None
        self._directory: str | None = None
        """URL of the directory that contains all objects, with a slash at its end; "" if there is none."""
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
                        self._extend_directory(entry["url"])
                        if self._fits(entry):
                            self._offsets.append(offset)
                            self._numbers.append(number)
                            if "records" in entry:
                                self.shards.append((entry["url"], entry["records"]))
                    offset += len(line)
        except OSError as error:
            raise ManifestError(f"{self.path}: {(error.strerror or str(error)).lower()}") from None
        chosen = "".join(f" {name}={value}" for name, value in sorted(self._labels.items()))
        if not self._offsets:
            raise ManifestError(f"{self.path} lists no objects" + (f" with{chosen}" if chosen else ""))
        self._name = f"manifest sha256:{digest.hexdigest()}{chosen}"
        self._find_mount()

    def __str__(self) -> str:
        # Workers may have it at different places, but must have the same.
        return self._name

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, part: slice) -> list[dict[str, Any]]:
        start, end, step = part.indices(len(self))
        if step != 1:
            raise ValueError("a manifest is read in steps of 1")
        found: list[dict[str, Any]] = []
        with open(self.path, "rb") as file:  # noqa: PTH123
            for offset, number in zip(self._offsets[start:end], self._numbers[start:end]):
                if file.tell() != offset:
                    file.seek(offset)
                found.append(self._parsed(file.readline(), number))
        return found

    def path_of(self, url: str) -> str:
        """Return where an object is mounted. Raises ManifestError if that is not known."""
        directory = self._directory or ""
        if self._at is not None and directory and url.startswith(directory):
            rest = url[len(directory) :]
            if any(part in ("", ".", "..") for part in rest.split("/")):
                raise ManifestError(f"{self.path}: {url!r:.200} is not in {directory}")
            path = os.path.join(self._at, rest)  # noqa: PTH118
            if not os.path.exists(path):  # noqa: PTH110
                raise ManifestError(f"{path} does not exist: `at` is the directory where {directory} is mounted")
            return path
        if self._at is None and url.startswith("file://"):
            return url[len("file://") :]
        where = directory.rstrip("/") or url
        raise ManifestError(f"{self.path}: give `at`, the directory where {where} is mounted")

    def records(self, url: str, start: int, end: int) -> Iterator[Record]:
        """Return records of a shard. Raises ManifestError, RecordError, OSError."""
        return read_records(self.path_of(url), start, end)

    def _fits(self, entry: dict[str, Any]) -> bool:
        if not self._labels:
            return True
        labels = entry.get("labels")
        own = labels if isinstance(labels, dict) else {}
        return all(name in own and str(own[name]) == value for name, value in self._labels.items())

    def _extend_directory(self, url: str) -> None:
        if self._directory is None:
            self._directory = url.rpartition("/")[0] + "/" if "://" in url else ""
        while not url.startswith(self._directory):
            above = self._directory[:-1].rpartition("/")[0] + "/"
            self._directory = "" if above.endswith(("//", ":/")) or above == "/" else above

    def _find_mount(self) -> None:
        """Take the place of the data from beside a manifest that is mounted at `MOUNT.manifest`."""
        folder = os.path.dirname(os.path.abspath(self.path))  # noqa: PTH100, PTH120
        if self._at is not None or not folder.endswith(".manifest"):
            return
        try:
            with open(os.path.join(folder, "dataset.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
                prefix = json.load(file)["prefix"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if isinstance(prefix, str) and (self._directory or "").startswith(prefix.rstrip("/") + "/"):
            self._at, self._directory = folder[: -len(".manifest")], prefix.rstrip("/") + "/"

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


def records(
    manifest: str | os.PathLike[str],
    labels: Mapping[str, Any] | None = None,
    at: str | os.PathLike[str] | None = None,
) -> Iterator[Record]:
    """Yield the records of all shards of a pack, in their order; with `labels`, of shards that have these.

    Raises ManifestError, RecordError, OSError.
    """
    listed = Manifest(manifest, labels, at)
    if not listed.shards:
        raise ManifestError(f"{listed.path} lists no shards with `records`: it is not of `avactl dataset pack`")
    for url, count in listed.shards:
        found = 0
        for record in listed.records(url, 0, count):
            found += 1
            yield record
        if found != count:
            raise ManifestError(f"{url} has {found} records, and {count} in {listed.path}")
