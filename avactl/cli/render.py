"""`avactl render`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import MISSING, fail, open_repository, report


def render(
    path: Annotated[Path, typer.Argument(help="Repository.", show_default=".")] = Path(),
    out: Annotated[str, typer.Option("--out", "-o", help="Directory to write; - prints one YAML stream.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files changed by hand, and leave those added by hand.")
    ] = False,
    cache: Annotated[bool, typer.Option(help="Keep results between runs.")] = True,
) -> None:
    """Write the Kubernetes objects, one file each; the directory is replaced as a whole, and only if all is well."""
    from avactl.emit.render import print_objects, write_objects

    if not out:
        raise typer.BadParameter("say where to: `-o DIR`, or `-o -` to print", param_hint="--out")
    tree, _ = open_repository([path])
    if out == "-":
        report(print_objects(tree, sys.stdout), tree)
        return
    from avactl.emit.output import OutputError

    try:
        compiled, written = write_objects(tree, out, use_cache=cache, force=force)
    except OutputError as error:
        fail(str(error), MISSING, error.hint)
    report(compiled, tree)
    if written is not None:
        total = written.written + written.kept
        print(f"{out}: {total} objects ({written.written} written, {written.kept} kept, {written.deleted} deleted)")
