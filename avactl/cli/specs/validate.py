"""`avactl validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.cli import plain
from avactl.cli.common import Format


def validate(
    paths: Annotated[list[Path] | None, typer.Argument(help="Repository, or files in one.", show_default=".")] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="Output format of the problems.")] = Format.text,
    cache: Annotated[bool, typer.Option(help="Cache results between runs.")] = True,
) -> None:
    """Check specs and report every problem with file, line, caret and remedy."""
    raise typer.Exit(plain.validate(paths or [], format, cache))
