"""`avactl run`: a job from a spec file, by a commit on a branch, or at once as an experiment that expires."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import MISSING, PROBLEMS, USAGE
from avactl.base.terminal import count_text, inert_text, use_colour
from avactl.cli.changes.diff import head_problems
from avactl.cli.cluster.cluster_session import Context, Kubeconfig, connect, plain_text, tell_target, with_client
from avactl.cli.common import exit_with
from avactl.cli.environments import EnvironmentOption

if TYPE_CHECKING:
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget
    from avactl.workbench.jobs.branch import BranchChange
    from avactl.workbench.jobs.experiment import Experiment

_LIVES, _KEEP = "4h", "1h"


def run(
    file: Annotated[Path, typer.Argument(help="Spec file with a training job.")],
    now: Annotated[
        bool, typer.Option("--now", help="Do not commit: apply the job at once, as an experiment that expires.")
    ] = False,
    lives: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="With --now: longest lifetime, including time in the queue.",
            show_default=_LIVES,
        ),
    ] = "",
    keep: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="With --now: how long pods and logs are kept after the end.", show_default=_KEEP
        ),
    ] = "",
    base: Annotated[str, typer.Option(metavar="REV", help="Commit to build on.")] = "HEAD",
    branch: Annotated[str, typer.Option(help="Name of the branch.", show_default="run/JOB-COMMIT")] = "",
    message: Annotated[str, typer.Option("--message", "-m", help="Commit message.", show_default="Run JOB")] = "",
    remote: Annotated[str, typer.Option(help="Remote to push to, if there is one.")] = "origin",
    push: Annotated[bool, typer.Option(help="Push the branch.")] = True,
    environment: EnvironmentOption = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Run a job from a spec file: commit it on a new branch, for review and for the engine that follows git.

    The file is compiled on top of the last commit; other uncommitted files are not included. Work tree, index and the
    current branch are not touched.
    """
    from avactl.workbench.jobs.branch import change_of, check

    if now and (branch or message):
        exit_with("`--branch` and `--message` are of a commit, which `--now` does not make", USAGE)
    if not now and (lives or keep):
        exit_with("`--for` and `--keep` are of an experiment", USAGE, "add `--now`")
    change = change_of(file, base)
    _want_valid(change)
    check(change)
    if now:
        _start(change, lives or _LIVES, keep or _KEEP, kubeconfig, context)
    else:
        _commit(change, branch, message, remote if push else "")


def _want_valid(change: BranchChange) -> None:
    """Print the problems of the file, and exit with PROBLEMS if there are errors."""
    if not change.after.ok:
        sys.stderr.write(head_problems(change.after, use_colour(sys.stderr)))
        sys.exit(PROBLEMS)


def _parse_duration(text: str, option: str) -> int:
    from avactl.spec.schema.values import parse_duration

    try:
        return max(1, round(parse_duration(text, option)))
    except ValueError as error:
        exit_with(str(error), USAGE)


def _commit(change: BranchChange, branch: str, message: str, remote: str) -> None:
    from avactl.apply.publish.store import PublishError
    from avactl.change.diff.compare import compare
    from avactl.change.diff.text import render_text
    from avactl.workbench.jobs import branch as branches

    store, jobs = change.store, change.jobs
    titles = ", ".join(f"{item.team}/{item.spec_name}" for item in jobs[:3]) + (", …" if len(jobs) > 3 else "")
    name, commit = branches.commit(change, branch, message or f"Run {titles}")
    sys.stdout.write(render_text(compare(change.before, change.after), colour=use_colour(), objects=False))
    print(f"branch {name}: {change.path} on {change.base[:10]}")
    left = branches.count_other_changes(store, change.path)
    if left:
        print(f"{count_text(left, 'other file')} with uncommitted changes not included")
    try:
        pushed = bool(remote) and branches.push(change, name, commit, remote)
    except PublishError as error:
        exit_with(f"{error}; the branch {name} is in this repository", MISSING, error.hint)
    if pushed:
        first = f"open a pull request from {name}"
    else:
        first = f"`git push REMOTE {name}` and a pull request, or `git merge {name}`"
    print(f"pushed to {remote}" if pushed else "not pushed")
    print(inert_text(f"next: {first}; once it is merged and applied, `avactl wait {jobs[0].ns}/{jobs[0].name}`"))


def _start(change: BranchChange, lives: str, keep: str, kubeconfig: Path | None, context: str) -> None:
    from avactl.workbench.jobs.experiment import make_experiment, rename_job

    change, item = rename_job(change, change.jobs[0])
    _want_valid(change)
    wanted = make_experiment(change, item, _parse_duration(lives, "--for"), _parse_duration(keep, "--keep"))
    cluster = item.cluster
    system_namespace = change.after.program.cluster_spec(cluster).system_namespace

    async def work(client: Client, target: IdentityTarget) -> None:
        tell_target(target)
        await _apply(client, wanted)

    with_client(connect(kubeconfig, context, cluster), work, cluster, system_namespace)
    place = f"{wanted.namespace}/{wanted.name}"
    leader = wanted.objects[0]["metadata"]["name"]
    created = f"{place} created: {count_text(len(wanted.objects), 'object')}"
    print(f"{created}; ends after {lives} at the latest, deleted {keep} later")
    print(f"next: `avactl logs {place} -f`; to stop it, `kubectl delete job {leader} -n {wanted.namespace}`")


async def _apply(client: Client, wanted: Experiment) -> None:
    from avactl.workbench.jobs.experiment import ExperimentRefusedError, start

    try:
        await start(client, wanted)
    except ExperimentRefusedError as error:
        hint = (
            "leave out `--now`: a spec in git has the rights that it needs, after a review" if error.forbidden else ""
        )
        exit_with(plain_text(str(error)), MISSING, hint)
