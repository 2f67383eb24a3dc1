"""`avactl pool`: draw pools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import USAGE
from avactl.cli.cluster.cluster_session import (
    Context,
    Kubeconfig,
    SystemNamespace,
    guard_imports,
    tell_target,
    view_cluster,
)
from avactl.cli.common import exit_with, open_repository, report_problems, write_text
from avactl.cli.completion import complete_cluster, complete_pool
from avactl.contracts.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from avactl.kube.identity import IdentityTarget
    from avactl.scheduler.cache.cluster import ClusterCache
    from avactl.scheduler.inspection.cluster_view import ClusterView


def pool(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[POOL]…", help="Pools.", show_default="all", autocompletion=complete_pool),
    ] = None,
    specs: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Draw the pools of a repository with all its workloads, without a cluster."),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(
            help="Cluster that is meant, or drawn from --specs. Default: the only one.",
            autocompletion=complete_cluster,
        ),
    ] = "",
    out: Annotated[str, typer.Option("--out", "-o", help="Output file; - prints.")] = "pool.svg",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
) -> None:
    """Draw pools (SVG): machines by rack, and the jobs on each GPU, or on the cores. For platform administrators.

    With --specs, as the scheduler would place all declared workloads on the empty machines: an estimate.
    """
    if specs is not None:
        _draw(_place_declared(specs, cluster), names, out)
        return

    async def show(view: ClusterView, target: IdentityTarget) -> None:
        tell_target(target)
        _draw(view.cache, names, out)

    view_cluster(show, kubeconfig, context, cluster, system_namespace, everything=True)


def _place_declared(path: Path, cluster: str) -> ClusterCache:
    """Place the declared workloads on the declared machines."""
    from avactl.compiler import compile_tree
    from avactl.diagnostics.suggest import did_you_mean, one_of

    tree, _ = open_repository([path])
    compilation = compile_tree(tree)
    report_problems(compilation, tree)
    known = [item.name for item in compilation.program.clusters()]
    if cluster and cluster not in known:
        exit_with(f"the repository has no Cluster `{cluster}`", USAGE, did_you_mean(cluster, known, "clusters"))
    if not cluster and len(known) != 1:
        exit_with("--specs needs one cluster", USAGE, f"choose it with --cluster: {one_of(known)}")
    with guard_imports():
        from avactl.change.plan.planner import declared_cluster

    return declared_cluster(compilation, cluster or known[0])


def _draw(cache: ClusterCache, names: list[str] | None, out: str) -> None:
    from avactl.diagnostics.suggest import did_you_mean
    from avactl.scheduler.inspection.pool_svg import draw

    nodes = cache.tables.nodes.values()
    known = {info.labels.get("avactl.dev/pool", "") for info in nodes} | cache.tables.pools.keys()
    for name in names or ():
        if name not in known:
            exit_with(f"the cluster has no pool `{name}`", USAGE, did_you_mean(name, known - {""}, "pools"))
    tables = cache.tables
    machines = sum(
        bool(tables.pool_of(info) or tables.state.gpu_count[tables.state.slots[name]])
        for name, info in tables.nodes.items()
        if name in tables.state.slots
    )
    write_text(out, draw(cache, names), ", ".join(names) if names else f"{machines} machines")
