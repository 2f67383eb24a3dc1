"""Headline facts of a tier for `diff` and `graph`."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.kinds.cache_tier.machines import worker_count
from avactl.program.cache_engines import engine_of
from avactl.program.program import Item, Program
from avactl.program.registry import Fact
from avactl.spec.platform.cache_tier import CacheTierSpec


def facts(item: Item[CacheTierSpec], program: Program) -> Mapping[str, Fact]:
    """Return the headline numbers of one tier."""
    spec = item.spec
    workers = worker_count(item, program)
    result: dict[str, Fact] = {
        "role": spec.role if spec.role == "read" else f"write, {spec.write_back.mode}",
        **({"masters": spec.masters.replicas} if engine_of(item).shared else {"engine": spec.engine}),
        "workers": workers or "one a machine",
    }
    for tier in spec.workers.tiers:
        label = "RAM" if tier.medium == "MEM" else tier.medium
        total = format_quantity(parse_quantity(tier.quota) * workers)
        result[label] = f"{total} ({tier.quota} a worker)" if workers else f"{tier.quota} a worker"
    result["under-stores"] = len(spec.under_stores)
    if spec.ttl:
        result["freed after"] = spec.ttl
    return result


def tier_capacity(item: Item[CacheTierSpec], program: Program) -> int | None:
    """Return the bytes of data that a tier holds: over all workers, or on each machine if every one has its own copy.

    None if the number of workers is unknown.
    """
    workers = worker_count(item, program)
    if not workers or any(pool in {name for _, name in program.broken} for pool in item.spec.workers.pools):
        return None
    engine = engine_of(item)
    each = sum(int(parse_quantity(tier.quota)) - engine.reserved(item) for tier in item.spec.workers.tiers)
    return each * workers if engine.shared else each
