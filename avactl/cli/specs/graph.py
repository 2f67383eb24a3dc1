"""`avactl graph`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import open_repository, report_problems, write_text
from avactl.cli.environments import EnvironmentOption


def graph(
    path: Annotated[Path, typer.Argument(help="Repository.", show_default=".")] = Path(),
    environment: EnvironmentOption = "",
    out: Annotated[str, typer.Option("--out", "-o", help="Output file; - prints.")] = "avactl.base.svg",
) -> None:
    """Draw teams, quotas, pools, cache tiers, jobs and services (SVG)."""
    from avactl.compiler import compile_tree
    from avactl.workbench.graph import draw

    tree, _ = open_repository([path])
    compilation = compile_tree(tree)
    report_problems(compilation, tree)
    told = f"{len(compilation.program.items)} specs, {len(compilation.manifests)} objects"
    write_text(out, draw(compilation), told)
