"""`avactl diff`."""

from __future__ import annotations

import gc
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import CHANGES, PROBLEMS, USAGE
from avactl.base.terminal import inert_text, use_colour
from avactl.cli.cluster.cluster_session import Context, Kubeconfig
from avactl.cli.common import TEXT, exit_with, render_diagnostics, want_path
from avactl.cli.completion import complete_cluster
from avactl.cli.environments import EnvironmentOption
from avactl.spec.repository.checkout import CommitTree
from avactl.spec.repository.tree import DirTree, find_root

if TYPE_CHECKING:
    from avactl.change.diff import Diff
    from avactl.compiler import Compilation


HeadOption = Annotated[str | None, typer.Option(metavar="REV", help="New revision. Default: the work tree.")]
MergeBaseOption = Annotated[
    bool, typer.Option("--merge-base", help="Compare with the merge base of base and head, as in a pull request.")
]


class DiffFormat(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    text = "text"
    markdown = "markdown"
    json = "json"


def diff(
    path: Annotated[Path, typer.Argument(help="Repository, or part of one.")] = Path(),
    base: Annotated[str, typer.Option(metavar="REV", help="Base revision.")] = "HEAD",
    head: HeadOption = None,
    merge_base: MergeBaseOption = False,
    environment: EnvironmentOption = "",
    format: Annotated[
        DiffFormat, typer.Option("--format", "-f", help="Output format; Markdown suits a comment.")
    ] = DiffFormat.text,
    objects: Annotated[bool, typer.Option(help="Show the Kubernetes objects under each spec.")] = True,
    full: Annotated[
        bool, typer.Option("--full", help="Also print whole values and manifests, as in the artifact of a comment.")
    ] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 4 if there are changes.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Compare with a cluster instead of a base revision; only reads it.")
    ] = False,
    cluster: Annotated[
        str,
        typer.Option(help="With --live: the declared cluster. Default: the only one.", autocompletion=complete_cluster),
    ] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Show what a change does: facts, pods, data, quota, and the Kubernetes objects of each spec.

    Both revisions are compiled from git; the work tree is not touched. With --live, the objects of the cluster are
    compared with the compiled ones, as `avactl reconcile --dry-run` does. Exit codes: 0 compared; 1 the head has errors
    (printed instead); 2 usage error; 3 git, a revision or the cluster is missing; 4 changes, with --exit-code.
    """
    if live:
        if merge_base or base != "HEAD":
            exit_with("--live compares with the cluster, not with --base or --merge-base", USAGE)
        if full:
            exit_with("--full compares revisions, not a cluster", USAGE)
        if format is DiffFormat.markdown:
            exit_with("--live prints text or json", USAGE)
        raise typer.Exit(_diff_live(path, head, cluster, kubeconfig, context, format is DiffFormat.json, exit_code))
    if full and (format is not DiffFormat.text or not objects):
        exit_with("--full prints text with objects", USAGE)
    from avactl.change.diff.compare import compare, select_files

    root = find_root(path)
    before, after = compile_sides(path, base, head, merge_base)
    if not after.ok:
        _print_problems(after, format)
        raise typer.Exit(PROBLEMS)
    gc.freeze()  # two compilations live until the end: the collector need not traverse them
    changes = compare(before, after)
    inside = path.resolve().relative_to(root.resolve()).as_posix()
    if inside != ".":
        changes = select_files(changes, [inside])
    sys.stdout.write(_render(changes, format, objects, full))
    if exit_code and not changes.empty:
        raise typer.Exit(CHANGES)


def _diff_live(
    path: Path, head: str | None, cluster: str, kubeconfig: Path | None, context: str, json: bool, exit_code: bool
) -> int:
    from avactl.cli.changes.live import compare_live
    from avactl.cli.changes.live import exit_code as code_of

    return code_of(compare_live(path, head, cluster, kubeconfig, context, json=json), exit_code)


def compile_sides(path: Path, base: str, head: str | None, merge_base: bool) -> tuple[Compilation, Compilation]:
    """Compile both revisions of a repository. Raises GitError; exits with USAGE if the path does not exist."""
    from avactl.change.diff.revisions import open_sides
    from avactl.compiler.driver import compile_change

    want_path(path, head)
    sides = open_sides(find_root(path), base, head, common=merge_base)
    return compile_change(sides.base, sides.head, tip=sides.tip)


def head_problems(after: Compilation, coloured: bool) -> str:
    """Return the problems of a head with errors; paths in a work tree are from the current directory."""
    if isinstance(after.tree, DirTree | CommitTree):
        return render_diagnostics(after.diagnostics, after.tree, TEXT, coloured)
    from avactl.diagnostics.text import render_problems

    return render_problems(after.diagnostics, after.program.read_file, coloured)


def _render(changes: Diff, format: DiffFormat, objects: bool, full: bool) -> str:
    if full:
        from avactl.change.diff.record import render_record

        return render_record(changes)
    if format is DiffFormat.json:
        from avactl.change.diff.json_output import render_json

        return render_json(changes, objects=objects)
    if format is DiffFormat.markdown:
        from avactl.change.diff.markdown import render_markdown

        return inert_text(render_markdown(changes, objects=objects))
    from avactl.change.diff.text import render_text

    return render_text(changes, colour=use_colour(), objects=objects)


def _print_problems(after: Compilation, format: DiffFormat) -> None:
    """Print the problems of the head in place of its diff."""
    if format is DiffFormat.json:
        from avactl.change.diff.json_output import render_problems

        sys.stdout.write(render_problems(after.diagnostics))
        return
    text = head_problems(after, format is DiffFormat.text and use_colour())
    if format is DiffFormat.markdown:
        from avactl.change.diff.markdown import render_problems as as_markdown

        text = inert_text(as_markdown(text))
    sys.stdout.write(text)
