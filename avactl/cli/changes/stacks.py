"""`avactl stacks`."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from avactl.base.exit_codes import PROBLEMS, USAGE
from avactl.base.terminal import use_colour
from avactl.cli.changes.diff import HeadOption
from avactl.cli.common import choose_environment, exit_with, want_path
from avactl.cli.environments import EnvironmentOption, SourceOption
from avactl.cli.options import Output
from avactl.spec.repository.tree import find_root


class StackOwner(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    platform = "platform"
    teams = "teams"


def stacks(
    path: Annotated[Path, typer.Argument(help="Repository.")] = Path(),
    base: Annotated[
        str | None, typer.Option(metavar="REV", help="Only stacks changed since this revision; empty: all.")
    ] = None,
    head: HeadOption = None,
    environment: EnvironmentOption = "",
    source: SourceOption = "",
    all_environments: Annotated[
        bool, typer.Option("--all-environments", help="List environments and stacks, those of every environment.")
    ] = False,
    only: Annotated[StackOwner | None, typer.Option(help="Only platform stacks, or only team stacks.")] = None,
    format: Annotated[
        Output, typer.Option("--format", "-f", help="Output format; JSON is a list for a CI matrix.")
    ] = Output.text,
) -> None:
    """List the Pulumi stacks of a repository, or those that a change affects, in apply order.

    Both revisions are compiled, so a changed comment affects no stack. Exit codes: 0 ok; 1 the head has errors; 2
    usage error; 3 git or a revision is missing.
    """
    from avactl.compiler.layers.environments import environments_of
    from avactl.spec.repository.checkout import open_tree
    from avactl.spec.repository.git_tree import GitTree

    want_path(path, head)
    root = find_root(path)
    if not all_environments:
        names = _stack_names(root, base, head, only)
        _write(names if format is Output.json else None, names)
        return
    environments = environments_of(open_tree(root) if head is None else GitTree(root, head))
    if environment or not environments:
        words = "--all-environments excludes --environment" if environment else "avactl.yaml has no `environments`"
        exit_with(words, USAGE)
    pairs = []
    for each in environments:
        choose_environment(each)
        pairs += [(each, name) for name in _stack_names(root, base, head, only)]
    rows = [{"environment": each, "stack": name} for each, name in pairs]
    _write(rows if format is Output.json else None, [" ".join(pair) for pair in pairs])


def _write(data: list[Any] | None, lines: list[str]) -> None:
    if data is not None:
        print(json.dumps(data))
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines)


def _stack_names(root: Path, base: str | None, head: str | None, only: StackOwner | None) -> list[str]:
    """Return the names of the stacks in the chosen environment. Exits with PROBLEMS if the head has errors."""
    from avactl.apply.pulumi.stacks import touched_stacks
    from avactl.compiler import compile_tree
    from avactl.diagnostics.text import render_problems
    from avactl.spec.repository.checkout import open_tree
    from avactl.spec.repository.git_tree import GitTree

    compilation = compile_tree(open_tree(root) if head is None else GitTree(root, head))
    if not compilation.ok:
        sys.stderr.write(
            render_problems(compilation.diagnostics, compilation.program.read_file, use_colour(sys.stderr))
        )
        raise typer.Exit(PROBLEMS)
    found = touched_stacks(root, compilation, head, base)
    if base is not None and found.why_all:
        print(f"all stacks: {found.why_all}", file=sys.stderr)
    for stack in found.orphans:
        print(
            f"{stack}: its cluster is no longer applied through Pulumi; run `pulumi stack rm {stack}`", file=sys.stderr
        )
    return [str(stack) for stack in found.stacks if only is None or bool(stack.team) == (only is StackOwner.teams)]
