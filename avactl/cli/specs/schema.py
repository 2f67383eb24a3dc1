"""`avactl schema`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.directories import want_no_link, write_file
from avactl.base.exit_codes import MISSING, USAGE
from avactl.cli.common import exit_with


def schema(
    kind: Annotated[str | None, typer.Argument(help="Kind to print. Default: one schema for all kinds.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Directory for all schema files.")] = None,
) -> None:
    """Print or write the JSON Schemas of the kinds, for editors."""
    from avactl.compiler.json_schema import ALL, file_name, schema_files
    from avactl.diagnostics.suggest import did_you_mean
    from avactl.program import registry

    files = schema_files()
    if out is None:
        by_lower = {name.lower(): name for name in registry.kind_names()}
        if kind is not None and kind.lower() not in by_lower:
            exit_with(f"unknown kind `{kind}`", USAGE, did_you_mean(kind, registry.kind_names(), "known kinds"))
        sys.stdout.write(files[ALL if kind is None else file_name(by_lower[kind.lower()])])
        return
    try:
        want_no_link(out)
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_file(out / name, text)
    except OSError as error:
        exit_with(f"{out}: {error.strerror}", MISSING)
    print(f"{len(files)} schemas written to {out}")
