"""`avactl validate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import PROBLEMS, Format, colour, open_repository, render_diagnostics, select


def validate(
    paths: Annotated[list[Path] | None, typer.Argument(help="Repository, or files of one.", show_default=".")] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How problems are printed.")] = Format.text,
    cache: Annotated[bool, typer.Option(help="Keep results between runs.")] = True,
) -> None:
    """Check specs: every problem at once, with file, line, caret and remedy."""
    from avactl.compiler.cache import compile_cached
    from avactl.emit.files import object_path

    tree, asked = open_repository(paths or [Path()])
    compilation = compile_cached(tree, object_path, use_cache=cache)
    problems = select(compilation, asked)
    if format is Format.text and not problems:
        print(f"ok: {sum(compilation.kinds.values())} specs of {len(compilation.kinds)} kinds")
    else:
        sys.stdout.write(render_diagnostics(problems, tree, format, colour()))
    elsewhere = len(compilation.diagnostics) - len(problems)
    if elsewhere and format is Format.text:
        print(f"{elsewhere} more in other files of the repository: `avactl validate {tree.root}`")
    if any(d.severity == "error" for d in problems):
        raise typer.Exit(PROBLEMS)
