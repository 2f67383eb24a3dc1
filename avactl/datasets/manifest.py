"""Manifests of datasets: JSON lines, one object each, of any length.

`{"url": "s3://bucket/path", "size": 1024, "sha256": "…", "etag": "…", "labels": {"class": "cat"}}`: only `url` is
required; `md5` may stand for `sha256`. Lines are read as a stream; none is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from avactl.base.object_urls import shared_directory
from avactl.base.terminal import json_line, shorten_middle, visible_text
from avactl.datasets.errors import ArgumentError, DatasetError
from avactl.datasets.stores.locations import url_problem

MAX_LINE = 64 * 1024
"""Longest line in bytes."""
FORM = 'write each line as `{"url": "s3://bucket/path", "size": 1024, "labels": {"class": "cat"}}`'
MAX_INTEGER = 2**63 - 1
"""Largest number of bytes or records: that of 64-bit integers with a sign, which other programs read it into."""
_MAX_LEVELS = 50
"""Lists and objects within each other in a label."""
_IS_DIGEST = {"sha256": re.compile("[0-9a-f]{64}").fullmatch, "md5": re.compile("[0-9a-f]{32}").fullmatch}


class ManifestEntry(NamedTuple):
    """One object of a manifest."""

    url: str
    size: int | None
    sha256: str
    """In hex, like `md5`; "" if unknown."""
    md5: str
    etag: str
    labels: Mapping[str, Any]
    line: int
    records: int | None = None
    """Records of a shard."""


class ManifestProblem(NamedTuple):
    """A bad line. Columns are in characters from 1; `end` is exclusive, 0 for one character."""

    line: int
    column: int
    end: int
    message: str
    hint: str = FORM


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, without empty ones; of longer ones only the first MAX_LINE + 1 bytes.

    Raises ArgumentError.
    """
    try:
        with path.open("rb", buffering=1024 * 1024) as file:
            number, read = 0, file.readline
            while line := read(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE and line[-1] != 10:
                    while (rest := read(MAX_LINE + 1)) and rest[-1] != 10:
                        pass
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ArgumentError(f"{path}: {(error.strerror or str(error)).lower()}") from None


def parse_line(line: bytes, number: int) -> ManifestEntry | ManifestProblem:
    """Parse one line."""
    if len(line) > MAX_LINE:
        return ManifestProblem(number, 1, 0, f"line {number} is longer than {MAX_LINE >> 10} KiB")
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return ManifestProblem(
            number, min(error.pos, len(line.rstrip())) + 1, 0, f"line {number} is not JSON: {error.msg}"
        )
    if not isinstance(data, dict):
        return ManifestProblem(number, 1, 0, f"line {number} is not a JSON object")
    url = data.get("url")
    if not isinstance(url, str):
        return ManifestProblem(number, 1, 0, f"line {number} has no `url`")
    if problem := url_problem(url):
        return _value_problem(line, number, "url", url, f"the `url` of line {number} {problem}")
    size = data.get("size")
    if size is not None and (type(size) is not int or not 0 <= size <= MAX_INTEGER):
        return _value_problem(line, number, "size", size, f"the `size` of line {number} is not a number of bytes")
    labels = data.get("labels")
    if labels is None:
        labels = {}
    elif not isinstance(labels, dict):
        return _value_problem(line, number, "labels", labels, f"the `labels` of line {number} are not a JSON object")
    if problem := labels_problem(labels):
        return ManifestProblem(number, line.find(b'"labels"') + 1, 0, f"the `labels` of line {number} {problem}")
    sha256, md5 = data.get("sha256", ""), data.get("md5", "")
    for (name, fits), value in zip(_IS_DIGEST.items(), (sha256, md5), strict=True):
        if value != "" and not (isinstance(value, str) and fits(value)):
            digits = 64 if name == "sha256" else 32
            message = f"the `{name}` of line {number} is not {digits} lowercase hex digits"
            return _value_problem(line, number, name, value, message)
    etag = data.get("etag", "")
    if not isinstance(etag, str):
        return _value_problem(line, number, "etag", etag, f"the `etag` of line {number} is not a text")
    records = data.get("records")
    if records is not None and (type(records) is not int or not 1 <= records <= MAX_INTEGER):
        return _value_problem(line, number, "records", records, f"the `records` of line {number} are not a number")
    return ManifestEntry(url, size, sha256, md5, etag, labels, number, records)


def labels_problem(labels: Mapping[str, Any]) -> str:
    """Return what is wrong with labels that were parsed from JSON, as the end of a sentence; "" if nothing is."""
    level: list[Any] = [labels]
    for _ in range(_MAX_LEVELS):
        nested = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for values in nested for value in values if isinstance(value, (dict, list))]
        if not level:
            return ""
    return f"have more than {_MAX_LEVELS} lists and objects within each other"


def _value_problem(line: bytes, number: int, key: str, value: Any, message: str) -> ManifestProblem:
    """Build the problem of a value, at its place in the line."""
    text = line.decode("utf-8", "replace")
    written = value if isinstance(value, str) else _json_text(value)
    after = text.find(f'"{key}"')
    column = text.find(written, after + len(key) + 2) + 1
    end = column + len(written) if column and len(written) <= 200 else 0
    if isinstance(value, str) and value:
        message += f": `{visible_text(shorten_middle(value, 80))}`"
    return ManifestProblem(number, column or after + 1 or 1, end, message)


def _json_text(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # too many lists within each other
        return "[" if isinstance(value, list) else "{"


def dump_entry(entry: ManifestEntry) -> bytes:
    """Format an entry as a line."""
    data: dict[str, Any] = {"url": entry.url}
    if entry.size is not None:
        data["size"] = entry.size
    for name in ("sha256", "md5", "etag", "records", "labels"):
        if value := getattr(entry, name):
            data[name] = value
    return json_line(data)


class ManifestReader:
    """Reads a manifest once, and collects what holds for all of it."""

    def __init__(self, path: Path, within: str = "") -> None:
        """`within`: URL of the directory that must contain all objects; any common one by default."""
        self.path, self.within = path, f"{within.rstrip('/')}/" if within else ""
        self.objects = self.bytes = self.without_size = 0
        self.directory = ""
        """URL of the directory that contains all objects, with a slash at its end."""
        self.sorted = True
        """True if the URLs ascend strictly: there are no duplicates."""

    def entries(self) -> Iterator[ManifestEntry | ManifestProblem]:
        """Yield the entries, and the problems of other lines."""
        last, directory, within = "", "", self.within
        for number, line in numbered_lines(self.path):
            entry = parse_line(line, number)
            if isinstance(entry, ManifestProblem):
                yield entry
                continue
            url = entry.url
            if not url.startswith(directory) or not directory:
                outside = (
                    f"is not below {within.rstrip('/')}" if within else "is in a different bucket from those before"
                )
                shared = shared_directory(directory or url.rpartition("/")[0] + "/", url)
                if not shared or (within and not url.startswith(within)):
                    hint = "remove it, or correct `--prefix`" if within else "write one manifest per bucket"
                    yield _value_problem(line, number, "url", url, f"the object of line {number} {outside}")._replace(
                        hint=hint
                    )
                    continue
                directory = self.directory = shared
            if url <= last:
                self.sorted = False
            last = url
            self.objects += 1
            if entry.size is None:
                self.without_size += 1
            else:
                self.bytes += entry.size
            yield entry


def read_valid(
    path: Path,
    progress: Callable[[Iterable[ManifestEntry | ManifestProblem]], Iterable[ManifestEntry | ManifestProblem]],
) -> ManifestReader:
    """Read a manifest that must be valid; `progress` counts its lines. Raises DatasetError at the first bad line."""
    reader = ManifestReader(path)
    for entry in progress(reader.entries()):
        if isinstance(entry, ManifestProblem):
            raise invalid_manifest(path, entry)
    if not reader.objects:
        raise DatasetError(f"{path} lists no objects", FORM)
    return reader


def invalid_manifest(path: Path, problem: ManifestProblem) -> DatasetError:
    """Build the error of a command that needs a valid manifest."""
    return DatasetError(f"{path}: {problem.message}", f"`avactl dataset verify {path}` lists all problems")
