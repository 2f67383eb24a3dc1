"""`avactl reconcile`: the built-in GitOps engine."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.cli.cluster.cluster_session import Context, DaemonKubeconfig, connection, listening, packages
from avactl.cli.common import INCOMPLETE, MISSING, USAGE, fail
from avactl.cli.plain import start_quickly

if TYPE_CHECKING:
    from avactl.reconcile.command import Request


def reconcile(
    path: Annotated[Path, typer.Argument(help="Repository, or a directory of it.", show_default=".")] = Path(),
    once: Annotated[bool, typer.Option("--once", help="One run; the default.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the branch, and put drift back, until stopped.")
    ] = False,
    repo: Annotated[str, typer.Option(help="URL of the repository to follow; PATH is then a directory in it.")] = "",
    branch: Annotated[
        str, typer.Option(help="Branch to follow. Default: what lies in PATH; with --watch and --repo, HEAD and main.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="Cluster to apply. Default: the only one of the repository.")] = "",
    kubeconfig: DaemonKubeconfig = None,
    context: Context = "",
    inventory: Annotated[str, typer.Option(help="Name of what is pruned together. Default: the cluster's name.")] = "",
    wait: Annotated[bool, typer.Option(help="Wait until what was applied is healthy.")] = True,
    timeout: Annotated[str, typer.Option(help="Longest wait.")] = "5m",
    prune: Annotated[bool, typer.Option(help="Delete what left git.")] = True,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Prune all where git declares nothing.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Make another repository's objects and inventory this one's.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    leave: Annotated[
        list[str] | None, typer.Option(help="A field manager whose additions stay, e.g. an operator's. Repeatable.")
    ] = None,
    output: Annotated[str, typer.Option("--output", help="text or json.")] = "text",
    interval: Annotated[str, typer.Option(help="With --watch: between two looks at git.")] = "1m",
    resync: Annotated[str, typer.Option(help="With --watch: between two looks at everything in the cluster.")] = "10m",
    listen: Annotated[str, typer.Option(help="With --watch: HOST:PORT of /metrics, /livez, /readyz.")] = "",
) -> None:
    """Make a cluster as git says: apply, wait for health, prune what left git, put drift back.

    Exit codes: 0 all is applied and healthy · 1 the specs have errors, nothing was changed · 2 wrong usage · 3 git or
    the cluster cannot be reached · 4 with --dry-run, there is something to do · 5 something was refused or is not
    healthy; the next run goes on.
    """
    if once and watch:
        fail("--once and --watch exclude each other", USAGE)
    if output not in ("text", "json"):
        fail(f"--output is text or json, not {output}", USAGE)
    if watch and dry_run:
        fail("--watch and --dry-run exclude each other", USAGE)
    if not watch:
        start_quickly()
    with packages():
        from avactl.reconcile import command

        run = command.run
        if watch:  # the daemon's imports take longer than a small run
            from avactl.reconcile.daemon import follow as run
    from avactl.source.git import GitError

    try:
        request: Request = command.Request(
            path=path,
            repo=repo,
            branch=branch,
            watch=watch,
            cluster=cluster,
            access=connection(kubeconfig, context),
            inventory=inventory,
            wait=wait,
            timeout=command.duration(timeout, "--timeout"),
            prune=prune,
            allow_empty=allow_empty,
            take_over=take_over,
            dry_run=dry_run,
            leave=tuple(leave or ()),
            json=output == "json",
            interval=command.duration(interval, "--interval"),
            resync=command.duration(resync, "--resync"),
            listen=listen,
        )
        with listening(listen):
            code = asyncio.run(run(request))
    except ValueError as error:
        fail(str(error), USAGE)
    except GitError as error:
        fail(str(error), MISSING, error.hint)
    except KeyboardInterrupt:
        # The next run goes on where this one was.
        os._exit(INCOMPLETE)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking all objects apart first takes longer than to compile them
