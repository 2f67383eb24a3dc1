"""Checks of a manifest: its lines, and that the store still holds what it lists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from avactl.base.terminal import count_text
from avactl.datasets.concurrent import in_threads
from avactl.datasets.errors import ChangedError
from avactl.datasets.manifest import FORM, ManifestEntry, ManifestProblem, ManifestReader
from avactl.datasets.ordering import in_order
from avactl.datasets.progress import PackProgress
from avactl.datasets.snapshot import THREADS, content_digest
from avactl.datasets.stores.locations import parse_location
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.store import FoundObject, Store
from avactl.datasets.text import display_name, size_text
from avactl.diagnostics import Diagnostic, Span
from avactl.diagnostics.machine import json_data

MAX_PROBLEMS = 100
"""Problems that are kept; further ones are counted."""
_IMMUTABLE_HINT = "a version cannot change: restore the object, or declare a new version with a new snapshot"
_IS_MD5 = re.compile("[0-9a-f]{32}").fullmatch


class VerifyOptions(NamedTuple):
    """Checks beyond those of the lines."""

    prefix: str = ""
    """URL of the directory that must contain all objects."""
    store: bool = False
    content: bool = False
    """Read all content and compare checksums."""
    at: str = ""
    """Compare with a copy at this location instead of the store."""
    endpoint: str = ""
    follow: bool = False


@dataclass
class VerificationReport:
    """Result of a check."""

    manifest: str
    objects: int = 0
    bytes: int = 0
    without_size: int = 0
    location: str = ""
    """Location that was compared; "" if none was."""
    hashed: int = 0
    """Objects whose content has the manifest's checksum."""
    unchecked: int = 0
    """Objects whose content could not be compared, because the manifest has no checksum of it."""
    problems: list[Diagnostic] = field(default_factory=list)
    """The first `MAX_PROBLEMS`."""
    counts: Counter[str] = field(default_factory=Counter)
    """All problems by code."""

    def add(self, problem: Diagnostic) -> None:
        """Count a problem, and keep it if it is one of the first."""
        self.counts[problem.code] += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


def verify_manifest(path: Path, options: VerifyOptions, progress: PackProgress) -> VerificationReport:
    """Check a manifest, and compare it with a store on request. Raises StoreError, ArgumentError."""
    report = VerificationReport(str(path))
    prefix = parse_location(options.prefix).url if options.prefix else ""
    reader = ManifestReader(path, prefix)
    progress.start("checking")
    for entry in progress.counted(reader.entries()):
        if isinstance(entry, ManifestProblem):
            report.add(_bad_line(path, entry))
    report.objects, report.bytes, report.without_size = reader.objects, reader.bytes, reader.without_size
    if not reader.objects and not report.problems:
        report.add(_bad_line(path, ManifestProblem(1, 1, 0, "the manifest lists no objects", FORM)))
    compares = options.store or options.content or options.at
    if reader.objects and compares:
        _compare_with_store(report, reader, options, prefix, progress)
    elif not reader.sorted:
        progress.start("looking for duplicates")
        for entry in progress.counted(in_order(reader)):
            if isinstance(entry, ManifestProblem):
                report.add(_bad_line(path, entry))
    return report


def _bad_line(path: Path, problem: ManifestProblem) -> Diagnostic:
    span = Span(str(path), problem.line, problem.column, problem.end)
    return Diagnostic("manifest-line", problem.message, span, hint=problem.hint)


# -- the store -----------------------------------------------------------------------------------------------------


class _Pair(NamedTuple):
    entry: ManifestEntry
    found: FoundObject


def _compare_with_store(
    report: VerificationReport, reader: ManifestReader, options: VerifyOptions, prefix: str, progress: PackProgress
) -> None:
    directory = f"{prefix}/" if prefix else reader.directory
    location = parse_location(options.at or directory)
    store = open_store(location, options.endpoint, options.follow)
    report.location = str(location)
    copy = location.url != parse_location(directory).url
    progress.start("comparing", reader.objects)

    def check(pair: _Pair) -> tuple[_Pair, str, bool]:
        """Return how an object differs, and whether its content was compared."""
        return pair, *_object_difference(store, pair, options.content, copy)

    pairs = _join_with_store(report, reader, directory, store)
    checked = in_threads(check, pairs, THREADS, 4 * THREADS) if options.content else map(check, pairs)
    for number, (pair, difference, compared) in enumerate(checked, 1):
        if options.content:
            progress.add(1, pair.found.size)
            report.hashed += compared and not difference
            report.unchecked += not compared and not difference
        elif number % 1000 == 0:
            progress.add(1000)
        if difference:
            message = f"{display_name(pair.found.key)} {difference}"
            report.add(Diagnostic("object-changed", message, _entry_span(reader, pair.entry), hint=_IMMUTABLE_HINT))


def _join_with_store(
    report: VerificationReport, reader: ManifestReader, directory: str, store: Store
) -> Iterator[_Pair]:
    """Join the manifest with the store's list, both in order; report what only one of them has."""
    objects = store.objects()
    found = next(objects, None)
    for entry in in_order(reader):
        if isinstance(entry, ManifestProblem):
            report.add(_bad_line(reader.path, entry))
            continue
        if not entry.url.startswith(directory):
            continue  # reported as a bad line
        key = entry.url[len(directory) :]
        while found is not None and found.key < key:
            _report_unlisted(report, reader, found)
            found = next(objects, None)
        if found is None or found.key != key:
            message = f"{display_name(key)} is not in {store.location}"
            hint = "restore the object, or declare a new version with a new snapshot"
            report.add(Diagnostic("object-missing", message, _entry_span(reader, entry), hint=hint))
            continue
        yield _Pair(entry, found)
        found = next(objects, None)
    while found is not None:
        _report_unlisted(report, reader, found)
        found = next(objects, None)


def _report_unlisted(report: VerificationReport, reader: ManifestReader, found: FoundObject) -> None:
    message = f"{display_name(found.key)} is in {report.location}, and not in the manifest"
    hint = "remove the object, or declare a new version with a new snapshot"
    report.add(Diagnostic("object-unlisted", message, Span(str(reader.path)), hint=hint))


def _entry_span(reader: ManifestReader, entry: ManifestEntry) -> Span:
    return Span(str(reader.path), entry.line)


def _object_difference(store: Store, pair: _Pair, content: bool, copy: bool) -> tuple[str, bool]:
    entry, found = pair
    if entry.size is not None and entry.size != found.size:
        return f"has {entry.size:,} bytes in the manifest, and {found.size:,} in {store.location}", False
    # The ETag of a simple upload is its MD5, unless the store encrypts with a key of KMS: equality proves content.
    guess = "" if entry.sha256 or entry.md5 or not _IS_MD5(entry.etag) else entry.etag
    kind, expected = ("sha256", entry.sha256) if entry.sha256 else ("md5", entry.md5 or guess)
    if content and expected:
        try:
            digest = content_digest(store, found, kind)
        except ChangedError as error:
            return f"cannot be compared: {error}", False
        if digest == expected:
            return "", True
        if not guess:
            return f"has other content: its {kind.upper()} was {expected}, and is {digest}", True
    if entry.etag and found.etag and entry.etag != found.etag and not copy:
        return f"was written again: its ETag was {entry.etag}, and is {found.etag}", False
    return "", False


# -- output --------------------------------------------------------------------------------------------------------

_CODE_NOUNS = {"manifest-line": "bad line", "object-missing": "missing", "object-changed": "changed"}
_CODE_NOUNS["object-unlisted"] = "not in the manifest"


def summary_lines(report: VerificationReport) -> Iterator[str]:
    """Yield the lines that sum up a check."""
    facts = [count_text(report.objects, "object"), size_text(report.bytes)]
    if report.without_size:
        facts.append(f"{report.without_size:,} without a size")
    yield f"{report.manifest}: {', '.join(facts)}"
    if report.location:
        content = f", content of {report.hashed:,} too" if report.hashed else ""
        agree = report.objects - sum(report.counts[code] for code in ("object-missing", "object-changed"))
        yield f"{report.location}: {count_text(agree, 'object')} agree{'s' if agree == 1 else ''}{content}"
    if report.unchecked:
        told = "only sizes were compared; `snapshot --checksum` records checksums"
        yield f"{count_text(report.unchecked, 'object')} without a checksum: {told}"
    found = []
    for code, noun in _CODE_NOUNS.items():
        if count := report.counts[code]:
            found.append(count_text(count, noun) if code == "manifest-line" else f"{count:,} {noun}")
    yield ", ".join(found) or "ok"


def report_data(report: VerificationReport) -> dict[str, Any]:
    """Return a report as JSON data."""
    return {
        "manifest": report.manifest,
        "objects": report.objects,
        "bytes": report.bytes,
        "location": report.location or None,
        "contentCompared": report.hashed,
        "counts": dict(sorted(report.counts.items())),
        "problems": json_data(report.problems),
    }
