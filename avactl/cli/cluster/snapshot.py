"""`avactl snapshot`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import USAGE
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    Kubeconfig,
    connection,
    packages,
    refused,
    tell_target,
)
from avactl.cli.common import accessing

if TYPE_CHECKING:
    from avactl.kube.access import Access


def snapshot(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Output file. Default: standard output.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of avactl's ConfigMaps: the Cluster's systemNamespace.")
    ] = "avactl-system",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Capture the state of a cluster for `avactl plan --snapshot`. Read-only; contains no secrets.

    For pods, only scheduling data is included: no environment, arguments or images, and only avactl's own annotations.
    """
    with packages():
        from avactl.change.plan.snapshot import capture  # noqa: F401 - what reads snapshots schedules too
    text = asyncio.run(_take(connection(kubeconfig, context, cluster), cluster, namespace))
    if out is None:
        sys.stdout.buffer.write(text)
        return
    with accessing(out, USAGE):
        out.write_bytes(text)
    print(f"{out}: {len(text) / 1e6:.1f} MB", file=sys.stderr)


async def _take(found: Access, cluster: str, namespace: str) -> bytes:
    from avactl.change.plan.snapshot.capture import take
    from avactl.kube.client import ApiError, Client, UnreachableError
    from avactl.kube.identity import identify

    async with Client(found, "avactl-snapshot", connections=8) as client:
        try:
            tell_target(await identify(client, cluster, namespace))
            return await take(client, namespace)
        except (ApiError, UnreachableError) as error:
            refused(error, found)
