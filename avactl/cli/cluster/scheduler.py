"""`avactl scheduler`: the daemon."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.cluster.cluster_session import DaemonKubeconfig, connection, listening, packages
from avactl.cli.common import fail
from avactl.exit_codes import USAGE


def scheduler(
    config: Annotated[Path, typer.Option("--config", help="policy.json, as the Cluster compiles it.")],
    lease: Annotated[str, typer.Option(help="Lease of the leader election; empty: this is the only replica.")] = "",
    listen: Annotated[str, typer.Option(help="HOST:PORT of /metrics, /livez and /readyz; empty: none.")] = "",
    kubeconfig: DaemonKubeconfig = None,
    namespace: Annotated[
        str | None, typer.Option(help="Of the Lease and the ConfigMaps. Default: as the policy says.")
    ] = None,
    qps: Annotated[float, typer.Option(min=0, help="Requests a second; events have as much again; 0: any.")] = 1000.0,
    burst: Annotated[float, typer.Option(min=1, help="Requests at once beyond that.")] = 2000.0,
    gang_grace: Annotated[
        float, typer.Option(min=0, help="Seconds for which a part of a gang may hold machines before it is stopped.")
    ] = 30.0,
) -> None:
    """Run the scheduler for pods with `schedulerName: avactl`."""
    with packages():
        from avactl.scheduler import daemon
        from avactl.scheduler.objects.config import Policy
    try:
        policy = Policy.read(config)
    except OSError as error:
        fail(f"{config}: {(error.strerror or str(error)).lower()}", USAGE)
    except ValueError as error:
        fail(str(error), USAGE)
    options = daemon.Options(
        policy=policy,
        lease=lease,
        namespace=namespace or os.environ.get("POD_NAMESPACE", ""),
        listen=listen,
        qps=qps,
        burst=burst,
        gang_grace=gang_grace,
    )
    with listening(listen):
        asyncio.run(daemon.run(connection(kubeconfig), options))
