"""`avactl validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.cli import plain
from avactl.cli.common import Format


def validate(
    paths: Annotated[list[Path] | None, typer.Argument(help="Repository, or files of one.", show_default=".")] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How problems are printed.")] = Format.text,
    cache: Annotated[bool, typer.Option(help="Keep results between runs.")] = True,
) -> None:
    """Check specs: every problem at once, with file, line, caret and remedy."""
    raise typer.Exit(plain.validate(paths or [], format, cache))
