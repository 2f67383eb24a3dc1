"""Checks of all tiers together: memory and disks of machines, stores, directories."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.cache_tier.check_disks import check_disks
from avactl.kinds.cache_tier.check_together import check_tier_pairs
from avactl.kinds.cache_tier.machines import tier_pools
from avactl.program.cache_engines import engine_of
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of several tiers: memory and disks, shared stores, directories inside each other."""
    yield from check_tier_pairs(program)
    yield from _check_memory(program)
    yield from check_disks(program)


def _check_memory(program: Program) -> Iterator[Diagnostic]:
    """Yield a problem for tiers whose per-machine workers together need more memory than a machine has."""
    on_pool: dict[str, list[Item[CacheTierSpec]]] = {}
    for tier in program.tiers():
        if tier.spec.workers.replicas is None:
            for pool in tier_pools(tier, program):
                on_pool.setdefault(pool.spec_name, []).append(tier)
    told: set[str] = set()
    for name, tiers in on_pool.items():
        pool = program.pool(name)
        has = parse_quantity(program.machine(pool).memory)
        needs = [engine_of(tier).worker(tier).memory for tier in tiers]
        if len(tiers) < 2 or max(needs) > has or sum(needs) <= has:
            continue
        last = tiers[-1]
        if last.spec_name in told:
            continue
        told.add(last.spec_name)
        yield Diagnostic(
            "pod-never-fits",
            f"workers of {len(tiers)} cache tiers need {format_quantity(sum(needs))} of memory on each machine of pool "
            f"`{name}`, which has {format_quantity(has)}",
            last.span("spec", "workers", key=True),
            hint="shrink a MEM tier, or place the tiers on different `pools`",
            notes=tuple(
                Note(tier.span("spec", "workers", key=True), f"{tier}: {format_quantity(need)}")
                for tier, need in zip(tiers[:-1], needs[:-1], strict=True)
            ),
        )
