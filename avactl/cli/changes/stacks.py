"""`avactl stacks`."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.changes.diff import HeadOption
from avactl.cli.common import want_path
from avactl.cli.environments import EnvironmentOption
from avactl.cli.options import Output
from avactl.exit_codes import PROBLEMS
from avactl.source.tree import find_root
from avactl.terminal import colour


class Owner(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    platform = "platform"
    teams = "teams"


def stacks(
    path: Annotated[Path, typer.Argument(help="Repository.")] = Path(),
    base: Annotated[
        str | None, typer.Option(metavar="REV", help="Only stacks changed since this revision; empty: all.")
    ] = None,
    head: HeadOption = None,
    environment: EnvironmentOption = "",
    only: Annotated[Owner | None, typer.Option(help="Only platform stacks, or only team stacks.")] = None,
    format: Annotated[
        Output, typer.Option("--format", "-f", help="Output format; JSON is a list for a CI matrix.")
    ] = Output.text,
) -> None:
    """List the Pulumi stacks of a repository, or those that a change affects, in apply order.

    Both revisions are compiled, so a changed comment affects no stack. Exit codes: 0 ok; 1 the head has errors; 2
    usage error; 3 git or a revision is missing.
    """
    from avactl.compiler import compile_tree
    from avactl.diagnostics.text import render_problems
    from avactl.emit.stacks import touched
    from avactl.source.git_tree import GitTree
    from avactl.source.tree import DirTree

    want_path(path, head)
    root = find_root(path)
    compilation = compile_tree(DirTree(root) if head is None else GitTree(root, head))
    if not compilation.ok:
        sys.stderr.write(render_problems(compilation.diagnostics, compilation.program.read_file, colour(sys.stderr)))
        raise typer.Exit(PROBLEMS)
    found = touched(root, compilation, head, base)
    if base is not None and found.why_all:
        print(f"all stacks: {found.why_all}", file=sys.stderr)
    for stack in found.orphans:
        print(
            f"{stack}: its cluster is no longer applied through Pulumi; run `pulumi stack rm {stack}`", file=sys.stderr
        )
    names = [str(stack) for stack in found.stacks if only is None or bool(stack.team) == (only is Owner.teams)]
    if format is Output.json:
        print(json.dumps(names))
    else:
        sys.stdout.writelines(f"{name}\n" for name in names)
