"""A manifest as a table of DuckDB, for SQL that can neither read files nor change settings."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from avactl.base.installation import install_command
from avactl.base.terminal import shorten_middle, visible_text
from avactl.datasets.errors import ArgumentError, DatasetError, ObjectStoreError
from avactl.datasets.manifest import (
    MAX_INTEGER,
    ManifestEntry,
    ManifestReader,
    invalid_manifest,
    numbered_lines,
    parse_line,
    read_valid,
)
from avactl.datasets.progress import PackProgress
from avactl.datasets.text import display_name

if TYPE_CHECKING:
    import duckdb

TABLE = "objects"
MAX_LABELS = 500
"""Labels that become columns."""
_COLUMNS = {
    "url": "VARCHAR",
    "path": "VARCHAR",
    "size": "BIGINT",
    "sha256": "VARCHAR",
    "md5": "VARCHAR",
    "etag": "VARCHAR",
    "records": "BIGINT",
    "line": "BIGINT",
}
_SPILL = "8GB"
"""Largest size of temporary files."""


class QueryLimits(NamedTuple):
    """Memory and time of a query."""

    memory: str = "1GB"
    seconds: float = 60.0


class Result(NamedTuple):
    """Columns and rows of a query, as they come."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


class Database:
    """Manifests as tables. Use it in a `with` block of `open_database`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, limits: QueryLimits) -> None:
        self._connection, self._limits = connection, limits

    @contextmanager
    def query(self, sql: str) -> Iterator[Result]:
        """Run one SELECT. Raises ArgumentError for SQL that fails, DatasetError beyond the limits."""
        with self._bounded():
            done = self._connection.execute(self._statement(sql))
            columns = [column[0] for column in done.description or ()]
            yield Result(columns, iter(lambda: done.fetchone() or (), ()))

    def write_parquet(self, sql: str, out: Path) -> None:
        """Write the result of one SELECT to the Parquet file that `open_database` permits. Raises as `query` does."""
        with self._bounded():
            text = self._statement(sql).query.strip().rstrip(";")
            self._connection.execute(f"COPY ({text}\n) TO {_quote(str(out))} (FORMAT parquet)")

    def _statement(self, sql: str) -> duckdb.Statement:
        import duckdb

        statements = self._connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            hint = "write e.g. `SELECT class, count(*) FROM objects GROUP BY class`"
            raise ArgumentError("a query is one SELECT", hint)
        return statements[0]

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Interrupt what takes too long, and turn errors of DuckDB into those of commands."""
        import duckdb

        timer = Timer(self._limits.seconds, self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        except duckdb.InterruptException:
            hint = "ask for less, or allow more: `--timeout 10m`"
            raise DatasetError(f"the query takes more than {self._limits.seconds:g} s", hint) from None
        except duckdb.OutOfMemoryException:
            hint = "ask for less, or allow more: `--memory 4GB`"
            raise DatasetError(f"the query needs more than {self._limits.memory}", hint) from None
        except duckdb.Error as error:
            text = visible_text(shorten_middle(" ".join(str(error).split()), 500))
            raise ArgumentError(text, _hint(error)) from None
        finally:
            timer.cancel()


@contextmanager
def open_database(
    manifest: Path,
    tables: Mapping[str, Path],
    limits: QueryLimits,
    progress: PackProgress,
    out: Path | None = None,
) -> Iterator[Database]:
    """Load a manifest as the table `objects`, and other manifests by their names.

    `out`: a file that may be written, and does not exist.

    Raises StoreError if DuckDB is not installed, DatasetError for a bad manifest, ArgumentError.
    """
    if find_spec("duckdb") is None:
        raise ObjectStoreError("queries require the package duckdb", install_command("query"))
    import duckdb

    with tempfile.TemporaryDirectory(prefix="avactl-query-") as folder:
        spill = Path(folder, "spill")
        settings: dict[str, Any] = {
            "memory_limit": limits.memory,
            "temp_directory": str(spill),
            "max_temp_directory_size": _SPILL,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",  # SQL would see variables of this program
        }
        try:
            connection = duckdb.connect(":memory:", config=settings)
        except duckdb.Error as error:
            text = f"`--memory {limits.memory}`: {' '.join(str(error).split())}"
            raise ArgumentError(text, "write e.g. `2GB`") from None
        with connection:
            for name, path in {TABLE: manifest, **tables}.items():
                _load(connection, name, path, Path(folder, "rows.jsonl"), progress)
            if out is not None:
                connection.execute("SET allowed_paths = ?", [[str(out)]])
            # What was set above cannot be changed by a query, and nothing outside is read any more.
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield Database(connection, limits)


def _hint(error: duckdb.Error) -> str:
    """Return the remedy for SQL that DuckDB refuses."""
    import duckdb

    if isinstance(error, duckdb.ParserException):
        return "correct the SQL: https://duckdb.org/docs/stable/sql/introduction"
    if isinstance(error, (duckdb.BinderException, duckdb.CatalogException)):
        return (
            f"the table is `{TABLE}`, with columns such as `url`, `size` and the labels; texts are in single quotes: "
            "`class = 'cat'`"
        )
    if isinstance(error, duckdb.PermissionException):
        return "SQL reads the tables only: other manifests are tables by `--table NAME=MANIFEST`"
    if isinstance(error, duckdb.ConversionException):
        return "correct the SQL, or the values of this label: `TRY_CAST(score AS DOUBLE)`"
    return ""


def _load(
    connection: duckdb.DuckDBPyConnection, table: str, manifest: Path, rows: Path, progress: PackProgress
) -> None:
    progress.start("reading")
    reader = read_valid(manifest, progress.counted)
    labels = _label_columns(reader)
    progress.start("loading", reader.objects)
    with rows.open("wb") as file:
        for entry in progress.counted(_entries(reader)):
            file.write(orjson.dumps(_row(entry, reader.directory, labels), option=orjson.OPT_APPEND_NEWLINE))
    columns = _COLUMNS | {name: kind for name, kind in labels.items() if kind} | {"labels": "JSON"}
    quoted = ", ".join(f"{_quote(name)}: '{kind}'" for name, kind in columns.items())
    connection.execute(
        f"CREATE TABLE {_identifier(table)} AS SELECT * FROM "  # noqa: S608 - names are quoted
        f"read_json(?, format = 'newline_delimited', columns = {{{quoted}}}, maximum_object_size = 1048576)",
        [str(rows)],
    )
    rows.unlink()


def _entries(reader: ManifestReader) -> Iterator[ManifestEntry]:
    for number, line in numbered_lines(reader.path):
        entry = parse_line(line, number)
        if not isinstance(entry, ManifestEntry):
            raise invalid_manifest(reader.path, entry)
        yield entry


def _label_columns(reader: ManifestReader) -> dict[str, str]:
    """Return the type of each label; "" for one that is in `labels` only, because its name is taken."""
    kinds: dict[str, str] = {}
    for entry in _entries(reader):
        for name, value in entry.labels.items():
            kind = _kind(value)
            if kind:
                before = kinds.get(name, kind)
                kinds[name] = kind if before == kind else _common(before, kind)
            if len(kinds) > MAX_LABELS:
                hint = "put values under one label, as a JSON object"
                raise DatasetError(f"{reader.path} has more than {MAX_LABELS} labels", hint)
    taken = {*_COLUMNS, "labels"}
    for name in kinds:
        if name.lower() in taken or not name:
            kinds[name] = ""
        taken.add(name.lower())
    return kinds


def _kind(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int) and -MAX_INTEGER <= value <= MAX_INTEGER:
        return "BIGINT"
    if isinstance(value, (int, float)):
        return "DOUBLE"
    return "VARCHAR" if isinstance(value, str) else "JSON"


def _common(one: str, other: str) -> str:
    return "DOUBLE" if {one, other} == {"BIGINT", "DOUBLE"} else "JSON"


def _row(entry: ManifestEntry, directory: str, labels: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "url": entry.url,
        "path": entry.url[len(directory) :],
        "size": entry.size,
        "sha256": entry.sha256 or None,
        "md5": entry.md5 or None,
        "etag": entry.etag or None,
        "records": entry.records,
        "line": entry.line,
    }
    row |= {name: value for name, value in entry.labels.items() if labels.get(name)}
    return row | {"labels": entry.labels}


def _quote(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def write_subset(manifest: Path, urls: Sequence[str] | set[str], out: Path) -> tuple[int, str]:
    """Write the lines of a manifest with these URLs, as they are; return their number and the SHA-256.

    Raises DatasetError if there are none, or a URL is not in the manifest.
    """
    from avactl.datasets.snapshot import write_lines

    wanted = set(urls)
    if not wanted:
        raise DatasetError("the query found no objects", "look at its condition")

    def chosen() -> Iterator[bytes]:
        for number, line in numbered_lines(manifest):
            entry = parse_line(line, number)
            if isinstance(entry, ManifestEntry) and entry.url in wanted:
                wanted.discard(entry.url)
                yield line.rstrip(b"\r\n") + b"\n"
        if wanted:
            raise DatasetError(
                f"{display_name(min(wanted))} is not in {manifest}", "select `url` of `objects` as it is"
            )

    return write_lines(out, chosen())
