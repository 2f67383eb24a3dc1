"""`avactl ci`: commands for CI pipelines."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.directories import write_file
from avactl.base.exit_codes import MISSING, PROBLEMS, USAGE
from avactl.base.installation import install_command
from avactl.base.terminal import inert
from avactl.cli.common import accessing, choose_environment, fail
from avactl.cli.environments import EnvironmentOption
from avactl.spec.repository.tree import DirTree, find_root

if TYPE_CHECKING:
    from avactl.change.diff import Diff
    from avactl.change.review.comparison import SectionOf, Sides
    from avactl.change.review.environment import Pipeline
    from avactl.compiler import Compilation

PLAN = 15_000
"""Maximum size of the plan in a comment, in bytes: below a quarter of the smaller forge's comment limit."""

ci = typer.Typer(
    help="Comment on a pull request, from a CI pipeline.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


class ForgeChoice(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    github = "github"
    gitlab = "gitlab"


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

    A repository with environments gets one comment for each, unless `--environment` names one. The token is
    GITHUB_TOKEN or GITLAB_TOKEN. Exit codes: 0 written, or nothing to report; 1 the specs have errors, which the
    comment reports; 2 usage error; 3 git or the forge failed.
    """
    from avactl.change.review.comment import whole
    from avactl.change.review.comparison import base_of, look
    from avactl.change.review.environment import detect
    from avactl.compiler.layers.environments import environments_of
    from avactl.spec.repository.git import UnknownRevisionError
    from avactl.spec.repository.git_tree import GitTree

    pipeline = detect(os.environ, forge.value if forge else None, pr)
    if not dry_run:
        _want_pipeline(pipeline)
    if head is None and pipeline is not None:
        head = "HEAD"
    root = find_root(path)
    known = base or (base_of(root, head or "HEAD", pipeline) if pipeline else None)
    differences, ok = "", True
    names = environments_of(DirTree(root) if head is None else GitTree(root, head))
    for name in names or [""]:
        choose_environment(name)
        try:
            sides = look(root, known or "origin/HEAD", head, [plan_of(snapshot)] if plan else [], alone=not names)
        except UnknownRevisionError as error:
            if known is None and error.revision == "origin/HEAD":
                error.hint = "name the base revision: `--base main`"
            elif base is None and pipeline is not None and error.revision == known:
                error.hint = 'fetch all branches: `fetch-depth: 0` on GitHub, `GIT_DEPTH: "0"` on GitLab'
            raise
        differences += (f"# environment {name}\n" if name else "") + whole(sides.review, sides.source)
        body, mark = _body(sides, pipeline, artifact, differences)
        if dry_run:
            sys.stdout.write(inert(body))  # a log, where lines can be commands
        elif pipeline is not None:
            _publish(pipeline, mark, body, sides.review.quiet)
        ok = ok and sides.review.ok
    if not ok:
        raise typer.Exit(PROBLEMS)


def plan_of(snapshot: Path | None) -> SectionOf:
    """Return the plan section of the comment. Exits if the snapshot is invalid."""
    from avactl.change.review.comment import Section
    from avactl.cli.changes.plan import read_snapshot

    live = read_snapshot(snapshot) if snapshot is not None else None

    def make(before: Compilation, after: Compilation, changes: Diff) -> Section | None:
        from avactl.change.plan.output.markdown import TITLE, render_body
        from avactl.change.plan.planner import clusters, make_plan

        base = before if before.ok else None
        states = {name: live if live and live.cluster == name else None for name in clusters(base, after)}
        plans = [make_plan(base, after, name, state) for name, state in states.items()]
        told = [found for found in plans if found.shown or found.effects]
        return Section(TITLE.lstrip("# "), render_body(told, limit=PLAN)) if told else None

    return make


def _want_pipeline(pipeline: Pipeline | None) -> None:
    """Exit if the pull request to comment on is unknown."""
    if pipeline is None:
        hint = "`--dry-run` prints the comment; or set the forge: `--forge github --pr 7`, with GITHUB_REPOSITORY"
        fail("not running in a GitHub or GitLab pipeline", USAGE, hint)
    if pipeline.number is None:
        fail("this pipeline run has no pull request", USAGE, "run it on pull requests only, or set one: `--pr 7`")
    if not pipeline.token:
        if pipeline.forge == "github":
            hint = "`env: {GITHUB_TOKEN: ${{ github.token }}}` passes the job's own token"
            fail("GITHUB_TOKEN is not set", MISSING, hint)
        from avactl.change.review.gitlab import NEEDED

        why = "CI_JOB_TOKEN cannot write comments, and GITLAB_TOKEN is not set"
        fail(why if pipeline.job_token else "GITLAB_TOKEN is not set", MISSING, NEEDED)


def _body(sides: Sides, pipeline: Pipeline | None, file: Path | None, differences: str) -> tuple[str, str]:
    """Return the comment and its marker; `differences` is written to `file`."""
    from avactl.change.review.comment import Artifact, compose, marker
    from avactl.change.review.environment import LIMITS

    artifact = None
    if file is not None:
        with accessing(file, MISSING, "use a writable file"):
            write_file(file, differences)
        artifact = Artifact(file.name, pipeline.link(file.as_posix()) if pipeline else "")
    limit = LIMITS[pipeline.forge if pipeline else "github"]
    return compose(sides.review, sides.identity, sides.source, limit=limit, artifact=artifact), marker(sides.identity)


def _publish(pipeline: Pipeline, marker: str, body: str, quiet: bool) -> None:
    try:
        from avactl.change.review.forge import ReadOnlyError
        from avactl.change.review.publish import open_forge, publish
    except ImportError:
        fail("comments require the package httpx", MISSING, install_command("ci"))

    try:
        forge = open_forge(pipeline)
        done = publish(forge, marker, body, quiet=quiet)
    except ReadOnlyError as error:
        if not _to_summary(pipeline, body):
            fail(str(error), MISSING, error.hint)
        print(f"no comment; see the job summary: {error}", file=sys.stderr)
        if not pipeline.fork:
            fail("the token is not allowed to write comments", MISSING, error.hint)
        return
    said = {"nothing": "no changes; no comment written", "unchanged": "the comment is up to date"}
    print(said.get(done, f"comment {done} on {forge.noun}"))


def _to_summary(pipeline: Pipeline, body: str) -> bool:
    """Append the comment to the summary page of the run, if there is one."""
    if pipeline.summary is None:
        return False
    try:
        with pipeline.summary.open("a", encoding="utf-8") as file:
            file.write(body)
    except OSError:
        return False
    return True
