"""`avactl cache`: the cache daemon, and its state."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from avactl.base.exit_codes import INCOMPLETE, USAGE
from avactl.base.terminal import duration_text
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    DaemonKubeconfig,
    Kubeconfig,
    check_listen,
    connect,
    guard_imports,
    plain_text,
    tell_target,
    with_client,
)
from avactl.cli.cluster.tables import Once, show_status
from avactl.cli.common import exit_with
from avactl.cli.options import Output, OutputFormat
from avactl.contracts.names import CACHE_NAMESPACE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from avactl.contracts.cache import CacheStatus
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget

cache = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="Run the cache daemon, and show or flush what tiers hold."
)
Namespace = Annotated[str, typer.Option(help="Namespace of the cache tiers.")]
_BAR_WIDTH = 24
"""Characters of a bar."""


@cache.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        run()


@cache.command()
def run(
    lease: Annotated[str, typer.Option(help="Lease for leader election; empty: single replica.")] = "",
    listen: Annotated[str, typer.Option(help="HOST:PORT for /metrics, /livez and /readyz; empty: disabled.")] = "",
    namespace: Annotated[
        str, typer.Option(help="Namespace of the cache tiers. Default: the pod's own, else avactl-cache.")
    ] = "",
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds between passes over a tier.")] = 2.0,
    kubeconfig: DaemonKubeconfig = None,
) -> None:
    """Run the daemon: prewarm datasets, write data back, guard drains, follow FUSE mounts."""
    with guard_imports():
        from avactl.contracts.names import CACHE_NAMESPACE
        from avactl.daemons.cache import daemon
    options = daemon.CacheOptions(
        namespace or os.environ.get("POD_NAMESPACE", "") or CACHE_NAMESPACE, lease, listen, interval
    )
    with check_listen(listen):
        asyncio.run(daemon.run(connect(kubeconfig), options))


@cache.command()
def status(
    format: OutputFormat = Output.text,
    once: Once = False,
    namespace: Namespace = CACHE_NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Show tiers and datasets as the daemon reports them, live until Ctrl-C. Read-only."""
    with guard_imports():
        from avactl.contracts.document import dump
        from avactl.daemons.cache.status import StatusWriter

    def read(client: Client) -> Awaitable[CacheStatus]:
        return StatusWriter(client, namespace).read()

    show_status(
        connect(kubeconfig, context, cluster),
        cluster,
        read,
        _lay_out_page,
        lambda status: orjson.loads(dump(status)),
        format,
        once,
    )


@cache.command()
def flush(
    path: Annotated[str, typer.Argument(help="`TIER:/path`, or the path in pods: `/mnt/avactl/TIER/path`.")],
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which the command gives up.")] = 3600.0,
    namespace: Namespace = CACHE_NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Push the files below a path to the object store, and wait until they are verified there.

    Exit codes: 0 all are in the store · 5 some are not after --timeout; the daemon goes on.
    """
    with guard_imports():
        from pydantic import ValidationError

        from avactl.contracts.cache import FlushRequest
        from avactl.contracts.document import explain
        from avactl.daemons.cache.flush import flush as wait_for
    try:
        request = FlushRequest(path=path)
    except ValidationError as error:
        exit_with(f"{path}: {explain(error)}", USAGE)

    async def wait(client: Client, target: IdentityTarget) -> int:
        tell_target(target)
        return await wait_for(client, namespace, request, timeout, lambda text: print(text, file=sys.stderr))

    left = with_client(connect(kubeconfig, context, cluster), wait, cluster, interrupted=INCOMPLETE)
    if left:
        print(f"{path}: not all files are in the object store after {timeout:g} s")
        raise typer.Exit(INCOMPLETE)
    print(f"{path}: all files are in the object store")


def _lay_out_page(status: CacheStatus) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    from avactl.base.quantity import format_quantity

    if not status.model_fields_set:
        return "the cache daemon has written no status so far"
    now = time.time()
    tiers = Table("tier", "role", "fill", "", "workers", "dirty", "oldest", "error", box=None, pad_edge=False)
    for name, tier in sorted(status.tiers.items()):
        measured, pushes = "workers" in tier.model_fields_set, "dirty_bytes" in tier.model_fields_set
        tiers.add_row(
            plain_text(name),
            tier.role or "",
            _share_bar(tier.fill),
            _format_percent(tier.fill),
            str(tier.workers) if measured else "",
            format_quantity(tier.dirty_bytes) if pushes else "",
            duration_text(tier.oldest_dirty_seconds) if tier.dirty_bytes else "",
            plain_text(tier.error),
        )
    datasets = Table("dataset", "warm", "", "files", "rate", "left", "updated", "error", box=None, pad_edge=False)
    for name, dataset in sorted(status.datasets.items()):
        share = dataset.percent / 100
        datasets.add_row(
            plain_text(name),
            _share_bar(share),
            _format_percent(share),
            str(dataset.files) if dataset.updated else "",
            f"{format_quantity(dataset.rate)}/s" if dataset.rate else "",
            duration_text(dataset.eta_seconds) if dataset.eta_seconds else "",
            f"{duration_text(now - dataset.updated)} ago" if dataset.updated else "",
            plain_text(dataset.error),
        )
    parts: list[RenderableType] = [tiers]
    if datasets.row_count:
        parts += ["", datasets]
    if status.errors:
        parts += [
            "",
            *(f"ConfigMap {plain_text(key)}: {plain_text(text)}" for key, text in sorted(status.errors.items())),
        ]
    return Group(*parts)


def _share_bar(share: float) -> str:
    filled = round(_BAR_WIDTH * min(1.0, share))
    return "█" * filled + "░" * (_BAR_WIDTH - filled)


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f}%"
