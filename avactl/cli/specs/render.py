"""`avactl render`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.cli import plain
from avactl.cli.common import fail
from avactl.exit_codes import MISSING, PROBLEMS, USAGE
from avactl.source.tree import find_root
from avactl.terminal import colour

if TYPE_CHECKING:
    from avactl.emit.publish import Options, Outcome


def render(
    path: Annotated[Path, typer.Argument(help="Repository.", show_default=".")] = Path(),
    out: Annotated[str, typer.Option("--out", "-o", help="Directory to write; - prints one YAML stream.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files changed by hand, and leave those added by hand.")
    ] = False,
    cache: Annotated[bool, typer.Option(help="Keep results between runs.")] = True,
    publish: Annotated[
        str, typer.Option(metavar="BRANCH", help="Commit the files of the last commit to this branch, and push it.")
    ] = "",
    remote: Annotated[str, typer.Option(help="--publish: remote that has the branch.")] = "origin",
    to: Annotated[str, typer.Option(metavar="URL", help="--publish: another repository that has the branch.")] = "",
    push: Annotated[bool, typer.Option(help="--publish: push; or only a branch of this repository.")] = True,
    even_if_older: Annotated[
        bool, typer.Option("--even-if-older", help="--publish: also where the branch has a newer or unrelated commit.")
    ] = False,
    let_go: Annotated[
        bool, typer.Option("--let-go", help="--publish: also where Flux would delete what it no longer follows.")
    ] = False,
) -> None:
    """Write the Kubernetes objects, one file each; the directory is replaced as a whole, and only if all is well.

    With --publish they become one commit on a branch, which Flux or Argo CD follows. Nothing is ever forced.
    """
    only = {"--to": to, "--even-if-older": even_if_older, "--let-go": let_go, "--no-push": not push}
    if not publish:
        lost = [name for name, given in only.items() if given]
        if lost:
            fail(f"{lost[0]} belongs to --publish", USAGE, "add `--publish BRANCH`")
        raise typer.Exit(plain.render(path, out, force, cache))
    if out or force:
        fail(f"{'--out' if out else '--force'} and --publish exclude each other", USAGE, "render in two calls")
    if to and not push:
        fail("--to names another repository, and --no-push leaves all others alone", USAGE, "leave out one of the two")
    from avactl.emit.publish import Options

    _publish(path, Options(publish, remote, to or None, push, even_if_older, let_go))


def _publish(path: Path, options: Options) -> None:
    from avactl.diagnostics.text import render_problems
    from avactl.emit.publish import PublishError, looks_elsewhere, publish
    from avactl.source.git import GitError

    if not path.exists():
        fail(f"{path}: no such file or directory", USAGE)
    try:
        compilation, outcome = publish(find_root(path), options)
    except (PublishError, GitError) as error:
        fail(str(error), MISSING, error.hint)
    if compilation.diagnostics:
        sys.stderr.write(render_problems(compilation.diagnostics, compilation.program.read_file, colour(sys.stderr)))
    if outcome is None:
        raise typer.Exit(PROBLEMS)
    for line in looks_elsewhere(compilation, options.branch):
        print(f"warning: {line}", file=sys.stderr)
    for line in outcome.foreign:
        print(f"{options.branch}: {line}: avactl did not make this commit; its own files are as the specs say again")
    print(f"{options.branch}: {_said(outcome)}")


def _said(outcome: Outcome) -> str:
    source, before = outcome.source[:10], (outcome.before or "")[:10]
    if outcome.older:
        return f"has {before} already, which is newer than {source}; nothing published"
    if outcome.commit is None:
        return f"nothing changed since {before}: {outcome.objects} objects, of {source}"
    kept = outcome.objects - outcome.written
    count = f"{outcome.objects} objects ({outcome.written} written, {kept} kept, {outcome.deleted} deleted)"
    return f"{outcome.commit[:10]}: {count}, of {source}"
