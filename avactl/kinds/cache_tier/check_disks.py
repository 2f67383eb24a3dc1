"""Check that storage tiers fit on the disks that pools declare, several tiers on one disk together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.cache_tier.machines import level_directories, tier_pools
from avactl.program.cache_engines import EngineRecord, engine_of
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.node_pool import NodePoolSpec

Path = tuple[str | int, ...]


class _Level(NamedTuple):
    """A storage tier of a cache tier on the machines of a pool."""

    tier: Item[CacheTierSpec]
    quota: int
    path: Path
    """Location in the spec."""
    directory: str


def check_disks(program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of storage tiers on pools that declare `disks`."""
    on_pool: dict[str, list[_Level]] = {}
    for tier in program.tiers():
        levels = list(_storage_levels(tier))
        for pool in tier_pools(tier, program) if levels else ():
            if pool.spec.disks:
                on_pool.setdefault(pool.spec_name, []).extend(levels)
    told: set[tuple[str, Path]] = set()
    for name, found in on_pool.items():
        for problem, level in _on_pool(program.pool(name), found):
            if (level.tier.spec_name, level.path) not in told:
                told.add((level.tier.spec_name, level.path))
                yield problem


def _storage_levels(tier: Item[CacheTierSpec]) -> Iterator[_Level]:
    for index in range(len(tier.spec.workers.tiers)):
        for directory in level_directories(tier, index):
            yield _Level(tier, directory.quota, ("spec", "workers", "tiers", index, "quota"), directory.path)


def _on_pool(pool: Item[NodePoolSpec], levels: list[_Level]) -> Iterator[tuple[Diagnostic, _Level]]:
    """Yield the problems on one pool's machines, each with the level that it is about."""
    on_disk: dict[int, list[_Level]] = {}
    for level in levels:
        index = _disk_of_directory(pool, level.directory)
        if index is not None:
            on_disk.setdefault(index, []).append(level)
            continue
        declared = one_of(disk.path for disk in pool.spec.disks)
        message = f"`{level.directory}` is on no disk of pool `{pool.name}`: the tier would fill the system's disk"
        note = Note(pool.span("spec", "disks", key=True), f"disks of pool {pool.name}")
        yield (
            Diagnostic(
                "tier-without-disk",
                message,
                level.tier.span(*level.path[:-1]),
                severity="warning",
                hint=f"set `path` to a directory on {declared}, or declare its disk",
                notes=(note,),
            ),
            level,
        )
    for index, there in on_disk.items():
        disk, last = pool.spec.disks[index], there[-1]
        engine = min((engine_of(level.tier) for level in there), key=lambda each: each.disk_share)
        total = sum(level.quota for level in there)
        if total > parse_quantity(disk.capacity) * engine.disk_share:
            yield _too_large(pool, index, there, total, engine), last


def _disk_of_directory(pool: Item[NodePoolSpec], directory: str) -> int | None:
    """Index of the disk that a directory is on: the one that is mounted deepest above it."""
    above = [
        (len(disk.path.rstrip("/")), index)
        for index, disk in enumerate(pool.spec.disks)
        if f"{directory}/".startswith(f"{disk.path.rstrip('/')}/")
    ]
    return max(above)[1] if above else None


def _too_large(
    pool: Item[NodePoolSpec], index: int, levels: list[_Level], total: int, engine: EngineRecord
) -> Diagnostic:
    disk = pool.spec.disks[index]
    *others, last = levels
    what = f"{len(levels)} storage tiers need" if others else "the tier needs"
    fills = f", of which {engine.title} fills {float(engine.disk_share):.0%}" if engine.disk_share < 1 else ""
    return Diagnostic(
        "tier-too-large",
        f"{what} {format_quantity(total)} on each machine of pool `{pool.name}`, but the disk at `{disk.path}` has "
        f"{disk.capacity}{fills}",
        last.tier.span(*last.path),
        hint="reduce `quota`, or use another disk",
        notes=(
            Note(pool.span("spec", "disks", index, "capacity"), f"disk of pool {pool.name}"),
            *(Note(level.tier.span(*level.path), f"CacheTier {level.tier.spec_name}") for level in others),
        ),
    )
