"""`avactl reconcile`: the built-in GitOps engine."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import INCOMPLETE, USAGE
from avactl.cli.cluster.cluster_session import (
    Context,
    DaemonKubeconfig,
    check_listen,
    chosen_context,
    connect,
    guard_imports,
)
from avactl.cli.common import exit_at_once, exit_with
from avactl.cli.completion import complete_cluster
from avactl.cli.environments import EnvironmentOption
from avactl.cli.options import Output, OutputFormat
from avactl.cli.short_run import prepare_short_run

if TYPE_CHECKING:
    from avactl.apply.reconcile.command import ReconcileRequest


def reconcile(
    path: Annotated[Path, typer.Argument(help="Repository, or a directory in it.", show_default=".")] = Path(),
    once: Annotated[bool, typer.Option("--once", help="Reconcile once (default).")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the branch and revert drift until stopped.")] = False,
    repo: Annotated[str, typer.Option(help="URL of the repository to follow; PATH is then a directory in it.")] = "",
    branch: Annotated[
        str, typer.Option(help="Branch to follow. Default: the work tree; with --watch, HEAD; with --repo, main.")
    ] = "",
    cluster: Annotated[
        str,
        typer.Option(
            help="Cluster to reconcile. Default: the repository's only cluster.", autocompletion=complete_cluster
        ),
    ] = "",
    environment: EnvironmentOption = "",
    kubeconfig: DaemonKubeconfig = None,
    context: Context = "",
    inventory: Annotated[
        str, typer.Option(help="Name of the inventory used for pruning. Default: the cluster's name.")
    ] = "",
    wait: Annotated[bool, typer.Option(help="Wait until applied objects are healthy.")] = True,
    timeout: Annotated[str, typer.Option(help="Maximum time to wait.")] = "5m",
    prune: Annotated[bool, typer.Option(help="Delete objects removed from git.")] = True,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Allow pruning everything if git declares nothing.")
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take over the inventory of another repository, or of a renamed Cluster.",
        ),
    ] = False,
    carries: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLUSTER", help="Another Cluster that the Kubernetes cluster may carry beside this one. Repeatable."
        ),
    ] = None,
    accept_owners: Annotated[
        bool, typer.Option("--accept-owners", help="Apply a commit whose specs only its own `owners` allow.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without writing anything.")] = False,
    leave: Annotated[
        list[str] | None, typer.Option(help="Field manager whose changes are kept, e.g. an operator's. Repeatable.")
    ] = None,
    format: OutputFormat = Output.text,
    interval: Annotated[str, typer.Option(help="With --watch: polling interval of git.")] = "1m",
    resync: Annotated[str, typer.Option(help="With --watch: interval of full drift checks in the cluster.")] = "10m",
    listen: Annotated[str, typer.Option(help="With --watch: HOST:PORT for /metrics, /livez, /readyz.")] = "",
) -> None:
    """Reconcile a cluster with git: apply, wait for health, prune removed objects, revert drift.

    Exit codes: 0 everything is applied and healthy · 1 the specs have errors, nothing was changed · 2 usage error · 3
    git or the cluster is unreachable · 4 changes are pending, with --dry-run · 5 not everything is applied or
    healthy; the next run retries.
    """
    if once and watch:
        exit_with("--once and --watch exclude each other", USAGE)
    if watch and accept_owners:
        exit_with("--watch and --accept-owners exclude each other: a person decides about each commit", USAGE)
    if watch and dry_run:
        exit_with("--watch and --dry-run exclude each other", USAGE)
    if not watch:
        prepare_short_run()
    with guard_imports():
        from avactl.apply.reconcile import command
        from avactl.apply.reconcile.diffing.field_policy import Hands
        from avactl.kube import client  # noqa: F401 - the connection needs it, but is made after a compile
        from avactl.spec.schema.values import parse_duration

        run = command.run
        if watch:  # the daemon's imports take longer than a small run
            from avactl.apply.reconcile.daemon import follow_branch as run

    try:
        request: ReconcileRequest = command.ReconcileRequest(
            path=path,
            connect=partial(connect, kubeconfig, context),
            context=chosen_context(kubeconfig, context),
            repo=repo,
            branch=branch,
            watch=watch,
            cluster=cluster,
            inventory=inventory,
            wait=wait,
            timeout=parse_duration(timeout, "--timeout"),
            prune=prune,
            allow_empty=allow_empty,
            take_over=take_over,
            carries=tuple(carries or ()),
            accept_owners=accept_owners,
            dry_run=dry_run,
            hands=Hands(frozenset(leave or ())),
            json=format is Output.json,
            interval=parse_duration(interval, "--interval"),
            resync=parse_duration(resync, "--resync"),
            listen=listen,
        )
        with check_listen(listen):
            code = asyncio.run(run(request))
    except ValueError as error:
        exit_with(str(error), USAGE)
    except KeyboardInterrupt:
        code = INCOMPLETE  # the next run resumes where this one stopped
    exit_at_once(code)
