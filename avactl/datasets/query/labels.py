"""Labels of a file, written into a manifest as a new one."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from avactl.base.terminal import count_text
from avactl.datasets.errors import ArgumentError, DatasetError
from avactl.datasets.manifest import MAX_LINE, ManifestEntry, labels_problem, numbered_lines, parse_line, read_valid
from avactl.datasets.progress import PackProgress
from avactl.datasets.snapshot import want_no_input, write_lines
from avactl.datasets.text import display_name

MAX_ROWS = 20_000_000
_KEYS = ("url", "path")
FACTS = frozenset((*_KEYS, "size", "sha256", "md5", "etag", "records", "line"))
"""Names that no label of a file may have: they say which object it is, or a fact about it."""


class Labelled(NamedTuple):
    """Result of labelling."""

    objects: int
    changed: int
    unknown: int
    """Rows of objects that the manifest does not list."""
    sha256: str


def label_manifest(manifest: Path, labels: Path, out: Path, ignore_unknown: bool, progress: PackProgress) -> Labelled:
    """Write a manifest with the labels of a CSV or JSON-lines file. Raises DatasetError, ArgumentError."""
    want_no_input(out, manifest, labels)
    progress.start("reading")
    reader = read_valid(manifest, progress.counted)
    given = read_labels(labels)
    key = "url" if any("://" in name for name in given) else "path"
    rest, changed, objects = set(given), 0, 0

    def lines() -> Iterator[bytes]:
        nonlocal changed, objects
        for number, line in numbered_lines(manifest):
            entry = parse_line(line, number)
            if not isinstance(entry, ManifestEntry):
                continue  # `read_valid` has raised for it
            name = entry.url if key == "url" else entry.url[len(reader.directory) :]
            new = given.get(name)
            objects += 1
            if new is None:
                yield line.rstrip(b"\r\n") + b"\n"
                continue
            rest.discard(name)
            data = orjson.loads(line)
            merged = {**entry.labels, **new}
            data["labels"] = {each: value for each, value in merged.items() if value is not None}
            changed += data["labels"] != entry.labels
            if not data["labels"]:
                del data["labels"]
            merged_line = orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE)
            if len(merged_line) > MAX_LINE:
                text = f"{manifest}:{number}: with its new labels the line is longer than {MAX_LINE >> 10} KiB"
                raise DatasetError(text, "write long labels into files of their own, and their URLs as labels")
            yield merged_line
        if rest and not ignore_unknown:
            text = (
                f"{count_text(len(rest), 'row')} of {labels} are of no object in {manifest}: {display_name(min(rest))}"
            )
            raise DatasetError(text, f"correct `{key}`, or leave such rows out: `--ignore-unknown`")

    _, sha256 = write_lines(out, lines())
    return Labelled(objects, changed, len(rest), sha256)


def read_labels(path: Path) -> dict[str, dict[str, Any]]:
    """Return new labels by `url` or `path`; None removes one. An empty cell of a CSV changes nothing.

    Raises ArgumentError, DatasetError.
    """
    found: dict[str, dict[str, Any]] = {}
    key = ""
    for number, row in _rows(path):
        keys = [each for each in _KEYS if row.get(each)]
        if not keys or (key and key not in keys):
            text = f"{path}:{number}: the row has no `{key or 'url'}`"
            raise DatasetError(text, "each row names its object by `url`, or by `path` below the common directory")
        key = key or keys[0]
        name = row[key]
        if not isinstance(name, str):
            raise DatasetError(f"{path}:{number}: `{key}` is not a text", "write the name of the object")
        _want_labels(f"{path}:{number}", {label: value for label, value in row.items() if label not in _KEYS})
        new = {str(label): value for label, value in row.items() if label not in _KEYS and value != ""}
        if found.setdefault(name, new) != new:
            raise DatasetError(f"{path}:{number}: other labels for {display_name(name)} than before", "keep one row")
        if len(found) > MAX_ROWS:
            raise DatasetError(f"{path} has more than {MAX_ROWS:,} rows", "label in parts")
    if not found:
        raise DatasetError(f"{path} has no rows", "write a CSV with a header, or JSON lines")
    return found


def _want_labels(place: str, labels: Mapping[str, Any]) -> None:
    if taken := sorted(FACTS.intersection(labels)):
        hint = "select `url` and the labels: `SELECT url, 'cat' AS class FROM objects WHERE …`"
        raise DatasetError(f"{place}: `{taken[0]}` is no label, but a fact about the object", hint)
    if problem := labels_problem(labels):
        raise DatasetError(f"{place}: the labels {problem}", "write such values as texts")


def _check_header(path: Path, header: list[str]) -> None:
    if twice := next((name for name, count in Counter(header).items() if count > 1), None):
        raise DatasetError(f"{path}:1: the column {display_name(twice)} is there twice", "keep one of them")
    if header and not set(_KEYS).intersection(header):
        shown = display_name(", ".join(header))
        text = f"{path}:1: no column is `url` or `path`, but: {shown}"
        raise DatasetError(text, "name a column so; commas separate the cells, and the first line is the header")


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        if path.suffix == ".csv":
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file, strict=True)
                _check_header(path, list(reader.fieldnames or ()))
                for row in reader:
                    if None in row or None in row.values():
                        text = f"{path}:{reader.line_num}: the row has other columns than the header"
                        raise DatasetError(text, "quote cells that contain a comma")
                    yield reader.line_num, row
            return
        for number, line in numbered_lines(path):
            row = orjson.loads(line)
            if not isinstance(row, dict):
                raise DatasetError(f"{path}:{number}: the line is not a JSON object", 'write `{"url": …, "class": …}`')
            labels = row.pop("labels", {})
            if not isinstance(labels, dict):
                raise DatasetError(f"{path}:{number}: `labels` is not a JSON object", "")
            _want_labels(f"{path}:{number}", labels)
            if twice := sorted(row.keys() & labels.keys()):
                raise DatasetError(f"{path}:{number}: {display_name(twice[0])} is there twice", "keep one of them")
            yield number, {**row, **labels}
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except (csv.Error, orjson.JSONDecodeError) as error:
        raise DatasetError(f"{path}: {error}", "write a CSV with a header, or JSON lines") from None
