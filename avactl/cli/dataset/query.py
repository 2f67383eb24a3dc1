"""`avactl dataset query`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from avactl.base.terminal import count_text

_SHOWN = 100
"""Rows that are shown on a terminal."""


def query(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Manifest: the table `objects`.")],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT.", show_default=False)] = "",
    where: Annotated[
        str, typer.Option("--where", metavar="CONDITION", help="Only a condition: `class = 'cat' AND score > 0.9`.")
    ] = "",
    table: Annotated[
        list[str], typer.Option("--table", metavar="NAME=MANIFEST", help="Another manifest as a table. Repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the rows: `.csv`, `.jsonl` or `.parquet`."),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the manifest of the objects whose `url` is in the result."),
    ] = None,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of the query.")] = "1GB",
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Longest run of the query.")] = "60s",
) -> None:
    """Query a manifest and its labels with SQL of DuckDB.

    The table `objects` has the columns url, path, size, sha256, md5, etag, records, line, one for each label, and
    `labels`, all of them as JSON. SQL reads these tables only: no files, no network.
    """
    from avactl.datasets.errors import ArgumentError
    from avactl.datasets.progress import PackProgress
    from avactl.datasets.query.database import TABLE, QueryLimits, open_database, write_subset
    from avactl.datasets.snapshot import replacing, want_no_input
    from avactl.spec.schema.values import parse_duration

    if bool(sql) == bool(where):
        raise ArgumentError("a query is a SELECT, or `--where CONDITION`", "write one of them")
    if out is not None and out.suffix not in (".csv", ".jsonl", ".parquet"):
        raise ArgumentError(f"`--out {out}` is no .csv, .jsonl or .parquet", "choose one of these formats")
    pairs = [each.partition("=") for each in table]
    if wrong := next((name for name, _, path in pairs if not name.isidentifier() or not path or name == TABLE), None):
        raise ArgumentError(f"`--table {wrong}…` is not NAME=MANIFEST", "write e.g. `--table before=v1.jsonl`")
    try:
        limits = QueryLimits(memory, parse_duration(timeout, "--timeout"))
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    if not limits.seconds:
        raise ArgumentError("`--timeout 0s` leaves no time for the query", "write e.g. `--timeout 60s`")
    text = sql or f"SELECT * FROM {TABLE} WHERE (\n{where}\n)"  # noqa: S608 - the user's own SQL, in a sandbox
    tables = {name: Path(path) for name, _, path in pairs}
    for each in filter(None, (out, snapshot)):
        want_no_input(each, manifest, *tables.values())
    with ExitStack() as stack:
        parquet = None
        if out is not None and out.suffix == ".parquet":
            parquet = stack.enter_context(replacing(out)).absolute()
        progress = stack.enter_context(PackProgress(sys.stderr))
        database = stack.enter_context(open_database(manifest, tables, limits, progress, parquet))
        progress.start("")
        if snapshot is not None:
            urls_only = f"SELECT DISTINCT url FROM (\n{text.strip().rstrip(';')}\n)"  # noqa: S608
            with database.query(urls_only) as result:
                urls = {str(row[0]) for row in result.rows}
            count, sha256 = write_subset(manifest, urls, snapshot)
            print(f"{snapshot}: {count_text(count, 'object')}\nsha256: {sha256}", file=sys.stderr)
        if parquet is not None:
            database.write_parquet(text, parquet)
        elif out is not None or snapshot is None:
            with database.query(text) as result:
                _write(result.columns, result.rows, out)


def _write(columns: list[str], rows: Any, out: Path | None) -> None:
    from avactl.datasets.snapshot import write_lines

    if out is not None:
        lines = _csv_lines(columns, rows) if out.suffix == ".csv" else _json_lines(columns, rows)
        write_lines(out, lines)
    elif sys.stdout.isatty():
        _show(columns, rows)
    else:
        for line in _csv_lines(columns, rows):
            sys.stdout.write(line.decode())


def _csv_lines(columns: list[str], rows: Any) -> Any:
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in [columns], rows:
        for each in row:
            writer.writerow(each)
            yield buffer.getvalue().encode()
            buffer.seek(0)
            buffer.truncate()


def _json_lines(columns: list[str], rows: Any) -> Any:
    import orjson

    for row in rows:
        yield orjson.dumps(dict(zip(columns, row, strict=True)), default=str, option=orjson.OPT_APPEND_NEWLINE)


def _show(columns: list[str], rows: Any) -> None:
    from itertools import islice

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from avactl.datasets.text import display_name

    shown = Table(box=None)
    for column in columns:
        shown.add_column(Text(display_name(column)))
    for row in islice(rows, _SHOWN):
        shown.add_row(*(Text("" if value is None else display_name(str(value))) for value in row))
    Console().print(shown)
    more = sum(1 for _ in rows)
    if more:
        print(f"… {count_text(more, 'more row')}: `--out FILE` has all of them", file=sys.stderr)
