"""`avactl pool`: draw pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from avactl.cli.cluster.cluster_session import Context, Kubeconfig, SystemNamespace, viewing
from avactl.cli.common import fail, write_text
from avactl.cli.completion import pools
from avactl.exit_codes import USAGE

if TYPE_CHECKING:
    from avactl.scheduler.inspection.cluster_view import ClusterView


def pool(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[POOL]…", help="Pools.", show_default="all", autocompletion=pools)
    ] = None,
    out: Annotated[str, typer.Option("--out", "-o", help="Output file; - prints.")] = "pool.svg",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    system_namespace: SystemNamespace = "avactl-system",
) -> None:
    """Draw pools (SVG): machines by rack, and the jobs on each GPU. For platform administrators."""
    from avactl.diagnostics.suggest import did_you_mean

    async def show(view: ClusterView) -> None:
        from avactl.scheduler.inspection.pool_svg import draw

        known = {
            info.labels.get("avactl.dev/pool", "") for info in view.cache.tables.nodes.values()
        } | view.cache.tables.pools.keys()
        for name in names or ():
            if name not in known:
                fail(f"the cluster has no pool `{name}`", USAGE, did_you_mean(name, known - {""}, "pools"))
        machines = sum(1 for slot in view.cache.tables.state.slots.values() if view.cache.tables.state.gpu_count[slot])
        told = ", ".join(names) if names else f"{machines} machines with GPUs"
        write_text(out, draw(view.cache, names), told)

    viewing(show, kubeconfig, context, system_namespace, everything=True)
