"""`avactl scheduler`: the daemon."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.exit_codes import USAGE
from avactl.cli.cluster.cluster_session import DaemonKubeconfig, check_listen, connect, guard_imports
from avactl.cli.common import exit_on_os_error, exit_with


def scheduler(
    config: Annotated[Path, typer.Option("--config", help="Path of policy.json from the Cluster's ConfigMap.")],
    lease: Annotated[str, typer.Option(help="Lease for leader election; empty: single replica.")] = "",
    listen: Annotated[str, typer.Option(help="HOST:PORT for /metrics, /livez and /readyz; empty: disabled.")] = "",
    kubeconfig: DaemonKubeconfig = None,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the Lease and the ConfigMaps. Default: from the policy.")
    ] = None,
    qps: Annotated[
        float,
        typer.Option(
            min=0, help="API requests per second; events have a separate limit of the same size; 0: unlimited."
        ),
    ] = 1000.0,
    burst: Annotated[float, typer.Option(min=1, help="Burst of API requests beyond --qps.")] = 2000.0,
    gang_grace: Annotated[
        float, typer.Option(min=0, help="Seconds that an incomplete gang may hold nodes before it is evicted.")
    ] = 30.0,
) -> None:
    """Run the scheduler for pods with `schedulerName: avactl`."""
    with guard_imports():
        from avactl.contracts.document import DocumentError, load_file
        from avactl.contracts.scheduling import PlacementPolicy
        from avactl.scheduler import daemon
    try:
        with exit_on_os_error(config, USAGE):
            policy = load_file(PlacementPolicy, config)
    except DocumentError as error:
        exit_with(f"{config}: not a placement policy: {error}", USAGE)
    options = daemon.SchedulerOptions(
        namespace or os.environ.get("POD_NAMESPACE", "") or policy.system_namespace,
        lease,
        listen,
        policy=policy,
        qps=qps,
        burst=burst,
        gang_grace=gang_grace,
    )
    with check_listen(listen):
        asyncio.run(daemon.run(connect(kubeconfig, cluster=policy.cluster), options))
