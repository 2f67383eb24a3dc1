"""Headline facts of a Cluster."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.program.program import Item, Program, pool_size
from avactl.program.registry import Fact
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.platform.prices import Prices


def facts(item: Item[ClusterSpec], program: Program) -> Mapping[str, Fact]:
    """Version, machines, GPUs by model, daemons, placement."""
    gpus: dict[str, int] = {}
    machines = 0
    for pool in program.pools(item.name):
        per_machine = program.machine(pool).gpus
        machines += pool_size(pool)
        if per_machine is not None:
            gpus[per_machine.model] = gpus.get(per_machine.model, 0) + per_machine.count * pool_size(pool)
    daemons = [
        name for name in ("scheduler", "topology", "cache", "serving", "delivery") if getattr(item.spec.daemons, name)
    ]
    return {
        "Kubernetes": item.spec.kubernetes_version,
        "machines": machines,
        "GPUs": ", ".join(f"{count} {model}" for model, count in sorted(gpus.items())) or None,
        "teams": len(program.teams(item.name)),
        "daemons": ", ".join(daemons) or None,
        "placement": item.spec.placement.objective,
        "applied by": item.spec.reconcile.mode,
        "prices": _format_prices(item.spec.prices),
    }


def _format_prices(prices: Prices | None) -> Fact:
    """`V100 2.1, P100 0.9, core 0.02 EUR per hour`."""
    if prices is None:
        return None
    others = {"core": prices.cpu, "GiB": prices.memory}
    found = {**prices.gpus, **{name: price for name, price in others.items() if price is not None}}
    return f"{', '.join(f'{name} {price:g}' for name, price in found.items())} {prices.currency} per hour"
