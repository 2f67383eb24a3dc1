"""`avactl render`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import PROBLEMS, USAGE
from avactl.base.terminal import use_colour
from avactl.cli.common import (
    ENVIRONMENT,
    SOURCE,
    choose_environment,
    choose_source,
    exit_with,
    open_repository,
    report_problems,
    want_path,
)
from avactl.spec.repository.tree import find_root

if TYPE_CHECKING:
    from avactl.apply.publish import PublishOptions, PublishOutcome


def render(
    path: Annotated[Path, typer.Argument(help="Repository.", show_default=".")] = Path(),
    out: Annotated[str, typer.Option("--out", "-o", help="Output directory; - prints one YAML stream.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite manually changed files; manually added files are kept.")
    ] = False,
    cache: Annotated[bool, typer.Option(help="Cache results between runs.")] = True,
    environment: Annotated[str, typer.Option("--environment", metavar="NAME", help=ENVIRONMENT)] = "",
    source: Annotated[str, typer.Option("--source", metavar="SOURCE", help=SOURCE, show_default=False)] = "",
    publish: Annotated[
        str,
        typer.Option(metavar="BRANCH", help="Render the last commit, commit the result to this branch, and push it."),
    ] = "",
    remote: Annotated[str, typer.Option(help="--publish: remote of the branch.")] = "origin",
    to: Annotated[str, typer.Option(metavar="URL", help="--publish: URL of another repository for the branch.")] = "",
    push: Annotated[bool, typer.Option(help="--publish: push the branch, or only update it locally.")] = True,
    even_if_older: Annotated[
        bool, typer.Option("--even-if-older", help="--publish: even if the branch has a newer or unrelated commit.")
    ] = False,
    let_go: Annotated[
        bool, typer.Option("--let-go", help="--publish: even if Flux would delete objects that it no longer follows.")
    ] = False,
) -> None:
    """Write the Kubernetes objects, one file each. The directory is replaced as a whole, and only on success.

    With --publish they become one commit on a branch for Flux or Argo CD. It is never force-pushed.
    """
    choose_environment(environment)
    choose_source(source)
    only = {"--to": to, "--even-if-older": even_if_older, "--let-go": let_go, "--no-push": not push}
    if not publish:
        lost = [name for name, given in only.items() if given]
        if lost:
            exit_with(f"{lost[0]} requires --publish", USAGE, "add `--publish BRANCH`")
        _write(path, out, force, cache)
        return
    if out or force:
        exit_with(f"{'--out' if out else '--force'} and --publish exclude each other", USAGE, "render twice")
    if to and not push:
        exit_with("--to and --no-push exclude each other", USAGE, "remove one of them")
    from avactl.apply.publish import PublishOptions

    _publish(path, PublishOptions(publish, remote, to or None, push, even_if_older, let_go))


def _write(path: Path, out: str, force: bool, cache: bool) -> None:
    from avactl.apply.files.render import print_objects, write_objects

    if not out:
        exit_with("`render` requires a destination", USAGE, "`-o DIR` writes files, `-o -` prints")
    tree, _ = open_repository([path])
    if out == "-":
        report_problems(print_objects(tree, sys.stdout.buffer), tree)
        return
    compiled, written = write_objects(tree, out, use_cache=cache, force=force)
    report_problems(compiled, tree)
    if written is not None:
        total = written.written + written.kept
        print(f"{out}: {total} objects ({written.written} written, {written.kept} kept, {written.deleted} deleted)")


def _publish(path: Path, options: PublishOptions) -> None:
    from avactl.apply.publish import looks_elsewhere, publish_commit
    from avactl.diagnostics.text import render_problems

    want_path(path)
    compilation, outcome = publish_commit(find_root(path), options)
    if compilation.diagnostics:
        sys.stderr.write(
            render_problems(compilation.diagnostics, compilation.program.read_file, use_colour(sys.stderr))
        )
    if outcome is None:
        sys.exit(PROBLEMS)
    for line in looks_elsewhere(compilation, options.branch):
        print(f"warning: {line}", file=sys.stderr)
    for line in outcome.foreign:
        print(f"{options.branch}: {line}: not a commit by avactl; its files are restored from the specs")
    print(f"{options.branch}: {_said(outcome)}")


def _said(outcome: PublishOutcome) -> str:
    source, before = outcome.source[:10], (outcome.before or "")[:10]
    if outcome.older:
        return f"already has {before}, which is newer than {source}; nothing published"
    if outcome.commit is None:
        return f"unchanged since {before}: {outcome.objects} objects from {source}"
    kept = outcome.objects - outcome.written
    count = f"{outcome.objects} objects ({outcome.written} written, {kept} kept, {outcome.deleted} deleted)"
    return f"{outcome.commit[:10]}: {count}, of {source}"
