"""`avactl graph`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import MISSING, fail, open_repository, report


def graph(
    path: Annotated[Path, typer.Argument(help="Repository.", show_default=".")] = Path(),
    out: Annotated[str, typer.Option("--out", "-o", help="File to write; - prints.")] = "avactl.svg",
) -> None:
    """The compiled result as a picture (SVG): teams, quotas, pools, tiers, jobs, services."""
    from avactl.compiler import compile_tree
    from avactl.emit.graph import draw

    tree, _ = open_repository([path])
    compilation = compile_tree(tree)
    report(compilation, tree)
    picture = draw(compilation)
    if out == "-":
        sys.stdout.write(picture)
        return
    try:
        Path(out).write_text(picture, encoding="utf-8")
    except OSError as error:
        fail(f"{out}: {error.strerror}", MISSING)
    print(f"{out}: {len(compilation.program.items)} specs, {len(compilation.manifests)} objects")
