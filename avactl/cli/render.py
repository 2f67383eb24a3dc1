"""`avactl render`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.cli import plain


def render(
    path: Annotated[Path, typer.Argument(help="Repository.", show_default=".")] = Path(),
    out: Annotated[str, typer.Option("--out", "-o", help="Directory to write; - prints one YAML stream.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files changed by hand, and leave those added by hand.")
    ] = False,
    cache: Annotated[bool, typer.Option(help="Keep results between runs.")] = True,
) -> None:
    """Write the Kubernetes objects, one file each; the directory is replaced as a whole, and only if all is well."""
    raise typer.Exit(plain.render(path, out, force, cache))
