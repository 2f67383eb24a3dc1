"""Whether the workers of several tiers fit on one machine together."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.cache_tier.pods import pools
from avactl.kinds.feasibility.cache_overhead import worker_memory
from avactl.kinds.program import Item, Program
from avactl.quantity import format_quantity, quantity


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Tiers that each put a worker on every machine of a pool, and together want more memory than one has."""
    on_pool: dict[str, list[Item]] = {}
    for tier in program.of("CacheTier"):
        if tier.spec.workers.replicas is None:
            for pool in pools(tier, program):
                on_pool.setdefault(pool.spec_name, []).append(tier)
    told: set[str] = set()
    for name, tiers in on_pool.items():
        pool = program.get("NodePool", name)
        has = quantity(program.machine(pool).memory)
        needs = [worker_memory(tier) for tier in tiers]
        if len(tiers) < 2 or max(needs) > has or sum(needs) <= has:
            continue
        last = tiers[-1]
        if last.spec_name in told:
            continue
        told.add(last.spec_name)
        yield Diagnostic(
            "pod-never-fits",
            f"workers of {len(tiers)} cache tiers want {format_quantity(sum(needs))} of memory on each machine of pool "
            f"`{name}`, which has {format_quantity(has)}",
            last.span("spec", "workers", key=True),
            hint="make a MEM tier smaller, or give the tiers different `pools`",
            notes=tuple(
                Note(tier.span("spec", "workers", key=True), f"{tier}: {format_quantity(need)}")
                for tier, need in zip(tiers[:-1], needs[:-1], strict=True)
            ),
        )
