"""`avactl serving`: the serving daemon, and the rollouts of services."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
)
from avactl.cli.cluster.tables import Once, show_status
from avactl.cli.options import Output, OutputFormat
from avactl.contracts.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from avactl.kube.client import Client

serving = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="Run the daemon of rollouts, and show the rollouts of services."
)


@serving.command()
def run(
    lease: Annotated[str, typer.Option(help="Lease for leader election; empty: single replica.")] = "",
    listen: Annotated[
        str, typer.Option(help="HOST:PORT for /metrics, /livez, /healthz and /readyz; empty: disabled.")
    ] = "",
    namespace: Annotated[
        str, typer.Option(help="Namespace of the Lease. Default: the pod's own, else avactl-system.")
    ] = "",
    prometheus: Annotated[str, typer.Option(help="URL of Prometheus, for `analysis`; empty: none.")] = "",
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds between passes over the services.")] = 1.0,
    settle: Annotated[
        float, typer.Option(min=0, max=300, help="Seconds that gateways need to see changed Services and weights.")
    ] = 5.0,
    groups: Annotated[
        bool, typer.Option("--groups", help="Roll out services whose replicas have several machines, too.")
    ] = False,
    pools: Annotated[bool, typer.Option("--pools", help="Roll out services with endpoint pickers, too.")] = False,
    kubeconfig: DaemonKubeconfig = None,
) -> None:
    """Run the daemon: carry out canary and blue-green rollouts, and roll bad versions back."""
    with guard_imports():
        from avactl.daemons.serving import daemon
    own = namespace or os.environ.get("POD_NAMESPACE", "") or SYSTEM_NAMESPACE
    options = daemon.ServingOptions(own, lease, listen, prometheus, interval, settle, groups, pools)
    with check_listen(listen):
        asyncio.run(daemon.run(connect(kubeconfig), options))


@serving.command()
def status(
    format: OutputFormat = Output.text,
    once: Once = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Only services of this namespace.", show_default="all")
    ] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Show the rollouts of services, live until Ctrl-C. Read-only."""
    with guard_imports():
        from avactl.daemons.serving.daemon import list_services
        from avactl.daemons.serving.status import service_entries

    async def read(client: Client) -> list[dict[str, Any]]:
        return service_entries(await list_services(client, namespace))

    access = connect(kubeconfig, context, cluster)
    show_status(access, cluster, read, _lay_out_page, lambda found: {"services": found}, format, once)


def _lay_out_page(found: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    if not found:
        return "no service has a canary or blue-green rollout"
    now = time.time()
    table = Table("service", "phase", "stable", "new", "step", "requests", "for", "why", box=None, pad_edge=False)
    for each in found:
        step = f"{each['step']} of {each['steps']}" if each["step"] else ""
        share = f"{each['percent']}%" if each["new"] else ""
        since = duration_text(max(0.0, now - each["since"])) if each["since"] else ""
        why = f"{each['reason']} {each['message']}".strip()
        cells = (each["service"], each["phase"], each["stable"], each["new"], step, share, since, why)
        table.add_row(*map(plain_text, cells))
    return table
