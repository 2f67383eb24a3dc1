"""`avactl plan`."""

from __future__ import annotations

import gc
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import CHANGES, PROBLEMS, USAGE
from avactl.base.terminal import use_colour
from avactl.cli.changes.diff import DiffFormat, HeadOption, MergeBaseOption, compile_sides, head_problems
from avactl.cli.common import exit_on_os_error, exit_with
from avactl.cli.completion import complete_cluster
from avactl.cli.environments import EnvironmentOption
from avactl.spec.repository.checkout import CommitTree, open_tree
from avactl.spec.repository.tree import DirTree, find_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from avactl.change.plan.cluster_state import ClusterState
    from avactl.change.plan.model import Plan
    from avactl.compiler import Compilation
    from avactl.spec.repository.git_tree import GitTree

_WIDE_COLUMNS = 160
"""Default terminal width."""


def plan(
    path: Annotated[Path, typer.Argument(help="Repository.")] = Path(),
    base: Annotated[str, typer.Option(metavar="REV", help="Base revision, which runs now.")] = "HEAD",
    head: HeadOption = None,
    merge_base: MergeBaseOption = False,
    environment: EnvironmentOption = "",
    everything: Annotated[bool, typer.Option("--all", help="Show all specs, including unchanged ones.")] = False,
    snapshot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cluster snapshot from `avactl snapshot`; `-` reads standard input."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Only this cluster. Default: all, or the snapshot's.", autocompletion=complete_cluster),
    ] = None,
    format: Annotated[
        DiffFormat, typer.Option("--format", "-f", help="Output format; Markdown suits a comment.")
    ] = DiffFormat.text,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 4 if a new or previously running spec will not run.")
    ] = False,
) -> None:
    """Predict whether the changed jobs, services and workspaces will run, by simulating the scheduler.

    The result is an estimate, not a reservation. Without --snapshot the declared machines run all specs of the base.
    Exit codes: 0 ok; 1 the head has errors (printed instead); 2 usage error; 3 git or a revision is missing; 4
    a spec will not run, with --exit-code.
    """
    gc.disable()  # all objects live until the end: the collector would only traverse them repeatedly
    text = None if snapshot is None else _read_content(snapshot)
    plans = None
    if snapshot is not None and text is not None and cluster is None:
        plans = _at_once(path, base, head, merge_base, everything, snapshot, text)
    if plans is None:
        before, after = _compile_sides(path, base, head, merge_base)
        planner = _import_planner()
        live = None if snapshot is None or text is None else _parse_snapshot(snapshot, text)
        asked = _planned_clusters(planner.declared_clusters(before, after), cluster, live)
        plans = [planner.make_plan(before, after, name, live, everything=everything) for name in asked]
    sys.stdout.write(_render(plans, format))
    gc.freeze()  # nor traverse them once more at exit
    if exit_code and not all(each.fine for each in plans):
        raise typer.Exit(CHANGES)


def read_snapshot(path: Path) -> ClusterState:
    """Read a snapshot file. Exits with USAGE if it is invalid."""
    return _parse_snapshot(path, _read_content(path))


def _read_content(path: Path) -> bytes:
    from avactl.change.plan.snapshot.loader import MAX_BYTES

    if str(path) == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with exit_on_os_error(path, USAGE, "create one with `avactl snapshot > state.json`"), path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _parse_snapshot(path: Path, text: bytes) -> ClusterState:
    from avactl.change.plan.snapshot.loader import read

    return read(text, "standard input" if str(path) == "-" else str(path))


def _import_planner() -> ModuleType:
    from avactl.change.plan import planner

    return planner


def _planned_clusters(known: list[str], cluster: str | None, live: ClusterState | None) -> list[str]:
    """Return the clusters to plan for. Exits with USAGE if the names do not match."""
    from avactl.diagnostics.suggest import did_you_mean

    if cluster is not None and cluster not in known:
        hint = did_you_mean(cluster, known, "declared clusters")
        exit_with(f"cluster {cluster} is not declared in the specs", USAGE, hint)
    if live is None:
        return [cluster] if cluster is not None else known
    if cluster is not None and cluster != live.cluster:
        exit_with(f"the snapshot is of cluster {live.cluster}, not of {cluster}", USAGE, "remove `--cluster`")
    if live.cluster not in known:
        hint = did_you_mean(live.cluster, known, "declared")
        exit_with(f"the snapshot is of cluster {live.cluster}, which the specs do not declare", USAGE, hint)
    return [live.cluster]


def _at_once(
    path: Path, base: str, head: str | None, common: bool, everything: bool, snapshot: Path, text: bytes
) -> list[Plan] | None:
    """Plan with both sides compiled in parallel to reading the snapshot. None: it has to be done sequentially."""
    from avactl.base import parallel
    from avactl.change.plan.parallel_compile import GoneWrongError, begin

    if head is None and not path.exists():
        return None
    parallel.allow_processes()  # before importing anything that uses threads
    root = find_root(path)
    before, after, tip = (partial(_side_tree, index, root, base, head, common) for index in range(3))
    sides = begin(before, after, tip, text)
    if sides is None:
        return None
    planner = _import_planner()
    try:
        return [planner.plan_live(_parse_snapshot(snapshot, text), sides, everything=everything)]
    except GoneWrongError:
        return None


def _side_tree(index: int, root: Path, base: str, head: str | None, common: bool) -> GitTree | DirTree | CommitTree:
    """Return the tree of the base (0), of the head (1), or of what it is to be merged into (2)."""
    if index == 1 and head is None:
        return open_tree(root)
    from avactl.change.diff.revisions import open_sides

    return open_sides(root, base, head, common=common)[index]


def _compile_sides(path: Path, base: str, head: str | None, common: bool) -> tuple[Compilation | None, Compilation]:
    """Return base (None if it has errors) and head. Exits if there is no head to plan for."""
    from avactl.base import parallel

    parallel.allow_processes()  # before importing anything that uses threads
    before, after = compile_sides(path, base, head, common)
    if not after.ok:
        sys.stderr.write(head_problems(after, use_colour(sys.stderr)))
        raise typer.Exit(PROBLEMS)
    if not before.ok:
        from avactl.change.diff.text import NO_BASE, empty_base

        nothing = empty_base(before.diagnostics)
        print(f"avactl: {NO_BASE if nothing else 'the base does not compile: all specs count as new'}", file=sys.stderr)
        return None, after
    return before, after


def _render(plans: Sequence[Plan], format: DiffFormat) -> str:
    if format is DiffFormat.json:
        from avactl.change.plan.output.json_output import render_json

        return render_json(plans)
    if format is DiffFormat.markdown:
        from avactl.change.plan.output.markdown import render_markdown

        return render_markdown(plans)
    import shutil

    from avactl.change.plan.output.text import render_text

    return render_text(plans, colour=use_colour(), width=shutil.get_terminal_size((_WIDE_COLUMNS, 24)).columns)
