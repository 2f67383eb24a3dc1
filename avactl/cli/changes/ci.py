"""`avactl ci`: commands for CI pipelines."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.directories import write_file
from avactl.base.exit_codes import MISSING, PROBLEMS, USAGE
from avactl.base.installation import install_command
from avactl.base.terminal import inert_text, join_words
from avactl.cli.common import choose_environment, exit_on_os_error, exit_with
from avactl.cli.environments import EnvironmentOption
from avactl.forges import FORGES, find_forge, forge_names
from avactl.spec.repository.tree import DirTree, find_root

if TYPE_CHECKING:
    from avactl.change.diff import Diff
    from avactl.change.review.comparison import SectionOf, Sides
    from avactl.compiler import Compilation
    from avactl.forges.forge import PipelineRun

PLAN = 15_000
"""Maximum size of the plan in a comment, in bytes: below a quarter of any forge's comment limit."""

ci = typer.Typer(
    help="Comment on a pull request, from a CI pipeline.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


if TYPE_CHECKING:
    ForgeChoice = str
else:
    ForgeChoice = StrEnum("ForgeChoice", forge_names())


@ci.callback()
def _group() -> None:
    """Comment on a pull request, from a CI pipeline."""


@ci.command()
def comment(
    path: Annotated[Path, typer.Argument(help="Spec repository.")] = Path(),
    base: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Base revision.", show_default="the pull request's base"),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Head revision.", show_default="the checked-out revision"),
    ] = None,
    forge: Annotated[
        ForgeChoice | None, typer.Option(help="Forge to comment on.", show_default="the pipeline's")
    ] = None,
    pr: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of the pull request.", show_default="the pipeline's", min=1),
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the full diff; the comment links to it.")
    ] = None,
    environment: EnvironmentOption = "",
    plan: Annotated[bool, typer.Option(help="Include the plan (see `avactl plan`).")] = True,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Cluster snapshot for the plan, from `avactl snapshot`.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the comment without sending it.")] = False,
) -> None:
    """Summarize a change in one comment on its pull request; later runs update the same comment.

    A repository with environments gets one comment for each, unless `--environment` names one. The token is in the
    forge's variable, such as GITHUB_TOKEN or GITLAB_TOKEN. Exit codes: 0 written, or nothing to report; 1 the specs
    have errors, which the comment reports; 2 usage error; 3 git or the forge failed.
    """
    from avactl.change.review.comment import whole
    from avactl.change.review.comparison import base_of, look
    from avactl.compiler.layers.environments import environments_of
    from avactl.forges import current_forge, current_run
    from avactl.spec.repository.git import UnknownRevisionError
    from avactl.spec.repository.git_tree import GitTree

    here = current_forge(os.environ)
    # A dry run for a named forge works anywhere, without the variables of its pipelines.
    away = dry_run and forge is not None and (here is None or here.name != forge)
    run = None if away else current_run(os.environ, forge, pr)
    if not dry_run:
        _require_run(run)
    if head is None and run is not None:
        head = "HEAD"
    root = find_root(path)
    known = base or (base_of(root, head or "HEAD", run) if run else None)
    differences, ok = "", True
    names = environments_of(DirTree(root) if head is None else GitTree(root, head))
    for name in names or [""]:
        choose_environment(name)
        try:
            sides = look(root, known or "origin/HEAD", head, [plan_of(snapshot)] if plan else [], alone=not names)
        except UnknownRevisionError as error:
            if known is None and error.revision == "origin/HEAD":
                error.hint = "name the base revision: `--base main`"
            elif base is None and run is not None and error.revision == known:
                error.hint = f"fetch all branches: {find_forge(run.forge).full_clone}"
            raise
        differences += (f"# environment {name}\n" if name else "") + whole(sides.review, sides.source)
        body, mark = _comment_body(sides, run, forge or (run.forge if run else None), artifact, differences)
        if dry_run:
            sys.stdout.write(inert_text(body))  # a log, where lines can be commands
        elif run is not None:
            _publish_comment(run, mark, body, sides.review.quiet)
        ok = ok and sides.review.ok
    if not ok:
        raise typer.Exit(PROBLEMS)


def plan_of(snapshot: Path | None) -> SectionOf:
    """Return the plan section of the comment. Exits if the snapshot is invalid."""
    from avactl.change.review.comment import CommentSection
    from avactl.cli.changes.plan import read_snapshot

    live = read_snapshot(snapshot) if snapshot is not None else None

    def make(before: Compilation, after: Compilation, changes: Diff) -> CommentSection | None:
        from avactl.change.plan.output.markdown import TITLE, render_body
        from avactl.change.plan.planner import declared_clusters, make_plan

        base = before if before.ok else None
        states = {name: live if live and live.cluster == name else None for name in declared_clusters(base, after)}
        plans = [make_plan(base, after, name, state) for name, state in states.items()]
        told = [found for found in plans if found.shown or found.effects]
        return CommentSection(TITLE.lstrip("# "), render_body(told, limit=PLAN)) if told else None

    return make


def _require_run(run: PipelineRun | None) -> None:
    """Exit if the pull request to comment on is unknown, or the token."""
    if run is None:
        hint = "`--dry-run` prints the comment; or set `--forge NAME --pr 7`, with the variables of its pipelines"
        titles = join_words([forge.title for forge in FORGES], "or")
        exit_with(f"not running in a pipeline of {titles}", USAGE, hint)
    if run.number is None:
        exit_with("this pipeline run has no pull request", USAGE, "run it on pull requests only, or set one: `--pr 7`")
    forge = find_forge(run.forge)
    if not run.token:
        exit_with(run.no_token or f"{forge.tokens[0]} is not set", MISSING, forge.token_hint)
    if not run.api:
        exit_with(f"the API of {forge.title} is unknown", USAGE, f"set {forge.name.upper()}_API_URL to its root")


def _comment_body(
    sides: Sides, run: PipelineRun | None, forge: str | None, file: Path | None, differences: str
) -> tuple[str, str]:
    """Return the comment and its marker; `differences` is written to `file`. Without a forge, all could take it."""
    from avactl.change.review.comment import Artifact, compose, marker

    artifact = None
    if file is not None:
        with exit_on_os_error(file, MISSING, "use a writable file"):
            write_file(file, differences)
        artifact = Artifact(file.name, run.link(file.as_posix()) if run else "")
    limit = min(each.comment_limit for each in FORGES if forge is None or each.name == forge)
    return compose(sides.review, sides.identity, sides.source, limit=limit, artifact=artifact), marker(sides.identity)


def _publish_comment(run: PipelineRun, marker: str, body: str, quiet: bool) -> None:
    try:
        from avactl.change.review.publish import connect, publish
        from avactl.forges.comments import ReadOnlyError
    except ImportError:
        exit_with("comments require the package httpx", MISSING, install_command("ci"))

    try:
        comments = connect(run)
        done = publish(comments, marker, body, quiet=quiet)
    except ReadOnlyError as error:
        if _append_to_summary(run, body):
            print(f"no comment; see the job summary: {error}", file=sys.stderr)
        elif run.fork:
            sys.stdout.write(inert_text(body))
            print(f"no comment; see the log: {error}", file=sys.stderr)
        else:
            exit_with(str(error), MISSING, error.hint)
        if not run.fork:
            exit_with("the token is not allowed to write comments", MISSING, error.hint)
        return
    said = {"nothing": "no changes; no comment written", "unchanged": "the comment is up to date"}
    print(said.get(done, f"comment {done} on {comments.noun}"))


def _append_to_summary(run: PipelineRun, body: str) -> bool:
    """Append the comment to the summary page of the run, if there is one."""
    if run.summary is None:
        return False
    try:
        with run.summary.open("a", encoding="utf-8") as file:
            file.write(body)
    except OSError:
        return False
    return True
