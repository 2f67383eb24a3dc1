"""`avactl snapshot`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import USAGE
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    Kubeconfig,
    connect,
    guard_imports,
    tell_target,
    with_client,
)
from avactl.cli.common import exit_on_os_error
from avactl.contracts.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget


def snapshot(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: standard output.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of avactl's ConfigMaps: the Cluster's systemNamespace.")
    ] = SYSTEM_NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Capture the state of a cluster for `avactl plan --snapshot`. Read-only; contains no secrets.

    For pods, only scheduling data is included: no environment, arguments or images, and only avactl's own annotations.
    """
    with guard_imports():
        from avactl.change.plan.snapshot import capture

    async def take(client: Client, target: IdentityTarget) -> bytes:
        tell_target(target)
        return await capture.take_snapshot(client, namespace)

    text = with_client(connect(kubeconfig, context, cluster), take, cluster, namespace, agent="avactl-snapshot")
    if out is None:
        sys.stdout.buffer.write(text)
        return
    with exit_on_os_error(out, USAGE):
        out.write_bytes(text)
    print(f"{out}: {len(text) / 1e6:.1f} MB", file=sys.stderr)
