"""`avactl render`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.cli import plain
from avactl.cli.common import MISSING, PROBLEMS, USAGE, colour, fail, find_root, render_problems

if TYPE_CHECKING:
    from avactl.emit.publish import Options, Outcome


def render(
    path: Annotated[Path, typer.Argument(help="Repository.", show_default=".")] = Path(),
    out: Annotated[str, typer.Option("--out", "-o", help="Output directory; - prints one YAML stream.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite manually changed files; manually added files are kept.")
    ] = False,
    cache: Annotated[bool, typer.Option(help="Cache results between runs.")] = True,
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
    only = {"--to": to, "--even-if-older": even_if_older, "--let-go": let_go, "--no-push": not push}
    if not publish:
        lost = [name for name, given in only.items() if given]
        if lost:
            fail(f"{lost[0]} requires --publish", USAGE, "add `--publish BRANCH`")
        raise typer.Exit(plain.render(path, out, force, cache))
    if out or force:
        fail(f"{'--out' if out else '--force'} and --publish exclude each other", USAGE, "render twice")
    if to and not push:
        fail("--to and --no-push exclude each other", USAGE, "remove one of them")
    from avactl.emit.publish import Options

    _publish(path, Options(publish, remote, to or None, push, even_if_older, let_go))


def _publish(path: Path, options: Options) -> None:
    from avactl.emit.publish import PublishError, looks_elsewhere, publish
    from avactl.source.git import GitError

    if not path.exists():
        fail(f"{path}: no such file or directory", USAGE)
    try:
        compilation, outcome = publish(find_root(path), options)
    except (PublishError, GitError) as error:
        fail(str(error), MISSING, error.hint)
    if compilation.diagnostics:
        sys.stderr.write(render_problems(compilation, colour(sys.stderr)))
    if outcome is None:
        raise typer.Exit(PROBLEMS)
    for line in looks_elsewhere(compilation, options.branch):
        print(f"warning: {line}", file=sys.stderr)
    for line in outcome.foreign:
        print(f"{options.branch}: {line}: not a commit by avactl; its files are restored from the specs")
    print(f"{options.branch}: {_said(outcome)}")


def _said(outcome: Outcome) -> str:
    source, before = outcome.source[:10], (outcome.before or "")[:10]
    if outcome.older:
        return f"already has {before}, which is newer than {source}; nothing published"
    if outcome.commit is None:
        return f"unchanged since {before}: {outcome.objects} objects from {source}"
    kept = outcome.objects - outcome.written
    count = f"{outcome.objects} objects ({outcome.written} written, {kept} kept, {outcome.deleted} deleted)"
    return f"{outcome.commit[:10]}: {count}, of {source}"
