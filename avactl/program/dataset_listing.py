"""Manifest files of datasets: JSON lines in the repository, one store object and its labels per line."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from avactl.base.object_urls import shared_directory
from avactl.diagnostics import Diagnostic, Note, Span
from avactl.program.program import Item, Program
from avactl.spec.platform.dataset import DatasetSpec, Version
from avactl.spec.schema.values import OBJECT_PREFIX

MAX_LIST = 900 * 1024
"""Largest manifest put in a ConfigMap, in bytes. Kubernetes allows 1 MiB, including metadata."""
OWN_DIRECTORY = "/.avactl-lists"
"""Directory in a tier that copies, for versions with a list: no URL leads there."""
COPIED, CHECKSUMS = "objects.txt", "objects.sha256"
"""Keys of a ConfigMap with the paths of objects that are copied, and with their known checksums."""
MAX_PROBLEMS = 10
"""Problems reported per manifest; further ones are only counted."""
MAX_VALUES = 20
"""Maximum number of values per label that are counted individually; more make it free text, not a class."""

_IS_OBJECT_URL = re.compile(rf"{OBJECT_PREFIX}/(?!\.{{1,2}}$)[^\s/]+").fullmatch


_IS_SHA256 = re.compile("[0-9a-f]{64}").fullmatch
_LINE_FORM = 'write each line as `{"url": "s3://bucket/path", "labels": {"class": "cat"}}`'


class DatasetListing(NamedTuple):
    """Contents of a manifest."""

    path: str
    """Path of the file in the repository."""
    data: bytes
    sha256: str
    objects: int
    prefix: str
    """Common directory of all objects in the store; "" if there is none."""
    labels: dict[str, Any]
    """Label → number of objects by value, or number of objects with the label if there are many values."""
    problems: tuple[Diagnostic, ...]


def read_listing(item: Item[DatasetSpec], program: Program, version: Version) -> DatasetListing | None:
    """Return the manifest of a version; None if it has none or the file does not exist. Each file is read and parsed
    once."""
    if not version.manifest:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(item.doc.file), version.manifest))

    def make() -> DatasetListing | None:
        data = program.read_file(path)
        return None if data is None else parse(path, data)

    return program.memo(("manifest", path), make)


def copy_files(listing: DatasetListing, program: Program) -> dict[str, str]:
    """Return the files by which pods copy the objects of a manifest, made once: see `copy_list`."""
    return program.memo(("files by which pods copy", listing.path), lambda: copy_list(listing))


def copy_list(listing: DatasetListing) -> dict[str, str]:
    """Return the paths of the objects of a manifest, and the checksums that are known, by keys of a ConfigMap."""
    names, sums = [], []
    for _, line in _numbered_lines(listing.data):
        entry = orjson.loads(line)
        names.append(f"{entry['url'].removeprefix(listing.prefix).lstrip('/')}\n")
        if sha256 := entry.get("sha256"):
            sums.append(f"{sha256}  {names[-1]}")
    return {COPIED: "".join(names), CHECKSUMS: "".join(sums)}


def parse(path: str, data: bytes) -> DatasetListing:
    """Read a manifest file line by line."""
    sha256 = hashlib.sha256(data).hexdigest()
    reader = _ListingReader(path)
    for number, line in _numbered_lines(data):
        reader.line(number, line)
    if not reader.seen and not reader.problems:
        reader.problems.append(
            Diagnostic("manifest-line", "the manifest lists no objects", Span(path), hint=_LINE_FORM)
        )
    if reader.hidden:
        last = reader.problems[-1]
        reader.problems.append(
            Diagnostic(
                "manifest-line",
                f"{reader.hidden} more lines of the manifest have problems",
                Span(path, reader.hidden_at),
                hint=f"correct those before line {last.span.line} first; they may have the same cause",
            )
        )
    return DatasetListing(
        path, data, sha256, len(reader.seen), reader.prefix.rstrip("/"), reader.summary(), tuple(reader.problems)
    )


def _numbered_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Non-empty lines with their numbers, without copying the whole file."""
    start = number = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        line = data[start:end]
        if line.strip():
            yield number, line
        start = end + 1


class _ListingReader:
    """State of a manifest parse."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.seen: dict[str, int] = {}
        self.prefix = ""
        self.labels: dict[str, dict[str, int] | int] = {}
        self.problems: list[Diagnostic] = []
        self.hidden = 0
        self.hidden_at = 0

    def line(self, number: int, line: bytes) -> None:
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            column = getattr(error, "colno", 1)
            self._problem(Span(self.path, number, column), f"line {number} is not JSON: {error.msg}")
            return
        url = entry.get("url") if isinstance(entry, dict) else None
        if not isinstance(url, str):
            what = "has no `url`" if isinstance(entry, dict) else "is not a JSON object"
            self._problem(Span(self.path, number), f"line {number} {what}")
            return
        column = line.find(url.encode()) + 1 or 1
        span = Span(self.path, number, column, column + len(url))
        if not _IS_OBJECT_URL(url):
            self._problem(span, f"the `url` of line {number} is not an object-store URL")
            return
        first = self.seen.setdefault(url, number)
        if first != number:
            note = Note(Span(self.path, first), f"line {first}")
            hint = "remove one of them"
            self._problem(span, f"line {number} lists the same object as line {first}", hint, note)
            return
        if not self._together(url):
            first = next(iter(self.seen.values()))
            note = Note(Span(self.path, first), f"line {first}")
            hint = "declare one version per bucket"
            self._problem(span, f"the object of line {number} is in a different bucket from line {first}", hint, note)
            return
        labels = entry.get("labels", {})
        if not isinstance(labels, dict):
            self._problem(Span(self.path, number), f"the `labels` of line {number} are not a JSON object")
            return
        sha256 = entry.get("sha256")
        if sha256 is not None and not (isinstance(sha256, str) and _IS_SHA256(sha256)):
            self._problem(Span(self.path, number), f"the `sha256` of line {number} is not 64 lowercase hex digits")
            return
        for key, value in labels.items():
            self._count(key, value)

    def _together(self, url: str) -> bool:
        """Shrink the common directory to include this object; return False if none is left."""
        prefix = shared_directory(self.prefix or url.rpartition("/")[0] + "/", url)
        self.prefix = prefix or self.prefix
        return prefix != ""

    def _count(self, key: str, value: Any) -> None:
        values = self.labels.setdefault(key, {})
        if isinstance(values, int):
            self.labels[key] = values + 1
            return
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        values[text] = values.get(text, 0) + 1
        if len(values) > MAX_VALUES:
            self.labels[key] = sum(values.values())

    def _problem(self, span: Span, message: str, hint: str = _LINE_FORM, note: Note | None = None) -> None:
        if len(self.problems) >= MAX_PROBLEMS:
            self.hidden += 1
            self.hidden_at = self.hidden_at or span.line
            return
        self.problems.append(Diagnostic("manifest-line", message, span, hint=hint, notes=(note,) if note else ()))

    def summary(self) -> dict[str, Any]:
        return {
            key: {"objects": value} if isinstance(value, int) else {"values": value}
            for key, value in self.labels.items()
        }


def version_directory(item: Item[DatasetSpec], program: Program, version: Version) -> str:
    """Directory of a version in the object store; the checks ensure that it has one."""
    if version.url:
        return version.url
    found = read_listing(item, program, version)
    return found.prefix if found is not None else ""
