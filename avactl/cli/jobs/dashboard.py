"""`avactl dashboard`: training jobs as a web page on this machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import MISSING, OK, USAGE
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    Kubeconfig,
    SystemNamespace,
    connect,
    tell_target,
    with_client,
)
from avactl.cli.common import exit_with
from avactl.cli.jobs.session import load_view
from avactl.contracts.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget


def dashboard(
    listen: Annotated[str, typer.Option(help="Loopback address HOST:PORT; port 0 takes a free one.")] = (
        "127.0.0.1:8080"
    ),
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", help="Only jobs of this namespace.", show_default="all that you may see"),
    ] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
) -> None:
    """Show training jobs as a web page on this machine, with your own rights, until Ctrl-C. Read-only.

    With permission to read nodes and all pods, it also shows quotas, and the jobs on the GPUs of all nodes.
    """
    _want_loopback(listen)

    access = connect(kubeconfig, context, cluster)

    async def show(client: Client, target: IdentityTarget) -> None:
        from avactl.kube.listen import ListenError
        from avactl.scheduler.inspection.cluster_view import ClusterView
        from avactl.workbench.jobs.dashboard.server import serve
        from avactl.workbench.jobs.dashboard.source import DashboardSource

        tell_target(target)
        jobs = await load_view(client, namespace, access.namespace)
        view = None
        if not jobs.namespace:
            view = ClusterView(client, system_namespace)
            await view.load()
            if view.hidden.keys() & {"nodes", "pods"}:
                view = None
        try:
            await serve(DashboardSource(jobs, view), listen, _print_address)
        except ListenError as error:
            exit_with(f"`--listen {listen}`: {error}", MISSING)

    with_client(access, show, cluster, system_namespace, connections=0, interrupted=OK)


def _want_loopback(listen: str) -> None:
    from avactl.workbench.jobs.dashboard.server import is_loopback

    if not re.fullmatch(r".+:\d{1,5}", listen):
        exit_with(f"`--listen {listen}` is not HOST:PORT", USAGE)
    try:
        inside = is_loopback(listen)
    except ValueError:
        inside = False
    if not inside:
        hint = "the page shows what you may see, unencrypted; from another machine: `ssh -L 8080:127.0.0.1:8080 HOST`"
        exit_with(f"`--listen {listen}` is not a loopback address", USAGE, hint)


def _print_address(address: str) -> None:
    print(f"open {address}\nCtrl-C ends it", flush=True)
