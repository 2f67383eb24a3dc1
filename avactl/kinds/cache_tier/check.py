"""Checks of a CacheTier with any engine: sizes, ordering, directories and pools."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.cache_tier.machines import LevelDirectory, level_directories, tier_pools
from avactl.program.cache_engines import EngineRecord, engine_of
from avactl.program.images import require_image
from avactl.program.ineffective_keys import without_effect
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec

SPEED = {"MEM": 0, "SSD": 1, "HDD": 2}


def check(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one tier."""
    engine = engine_of(item)
    yield from require_image(item, program, engine.image, ("spec", "cluster"))
    yield from _check_storage(item, engine)
    yield from _check_directories(item, program, engine)
    yield from _check_pools(item, program, engine)
    yield from engine.check(item, program)


# -- storage -------------------------------------------------------------------------------------------------------


def _check_storage(item: Item[CacheTierSpec], engine: EngineRecord) -> Iterator[Diagnostic]:
    tiers, reserved = item.spec.workers.tiers, engine.reserved(item)
    space = format_quantity(reserved)
    path: tuple[str | int, ...] = ("spec", "workers", "tiers")
    first: dict[str, int] = {}
    places: dict[str, tuple[int, LevelDirectory]] = {}
    for index, tier in enumerate(tiers):
        before = first.setdefault(tier.medium, index)
        if before != index:
            yield Diagnostic(
                "tier-order",
                f"duplicate medium {tier.medium}: a worker has one tier per medium",
                item.span(*path, index, "medium"),
                label="duplicate",
                hint="merge the two tiers, or remove one",
                notes=(Note(item.span(*path, before, "medium"), "first occurrence"),),
            )
            continue
        if index and SPEED[tier.medium] < SPEED[tiers[index - 1].medium]:
            yield Diagnostic(
                "tier-order",
                f"{tier.medium} is faster than {tiers[index - 1].medium}, but listed after it",
                item.span(*path, index, "medium"),
                hint="list the fastest medium first: "
                f"{', '.join(sorted({t.medium for t in tiers}, key=SPEED.__getitem__))}",
            )
        disks = max(1, len(tier.paths))
        if reserved and parse_quantity(tier.quota) <= disks * reserved:
            each = "tier" if disks == 1 else "of its disks"
            least = format_quantity(disks * reserved)
            yield Diagnostic(
                "tier-too-small",
                f"a tier of {tier.quota} has no usable space: {engine.title} reserves {space} of each {each}",
                item.span(*path, index, "quota"),
                hint=f"write more than {least}, or remove the tier",
            )
        if tier.medium == "MEM":
            for name in ("path", "paths"):
                if getattr(tier, name):
                    yield without_effect(item, (*path, index, name), "a MEM tier has no directory on the machine")
            continue
        for directory in level_directories(item, index):
            before, there = places.setdefault(directory.path, (index, directory))
            if there is not directory:
                media = " and ".join(dict.fromkeys((tiers[before].medium, tier.medium)))
                yield Diagnostic(
                    "mount-conflict",
                    f"{media} share a directory on the machine" if before != index else "a directory is listed twice",
                    item.span(*directory.place),
                    hint="give each tier a directory on its own disk",
                    notes=(Note(item.span(*there.place), f"path of the {tiers[before].medium} tier"),),
                )


def _check_directories(item: Item[CacheTierSpec], program: Program, engine: EngineRecord) -> Iterator[Diagnostic]:
    """Yield directories of machines that the cluster does not offer to cache tiers."""
    cluster = program.cluster(item.spec.cluster)
    offered = cluster.spec.host_directories
    tiers = item.spec.workers.tiers
    paths: list[tuple[tuple[str | int, ...], str]] = [
        (("spec", "workers", "tiers", index, "path"), tier.path) for index, tier in enumerate(tiers) if tier.path
    ]
    paths += [
        (("spec", "workers", "tiers", index, "paths", number), path)
        for index, tier in enumerate(tiers)
        for number, path in enumerate(tier.paths)
    ]
    if engine.host_mount and item.spec.fuse.enabled:
        paths.append((("spec", "fuse", "path"), item.spec.fuse.path))
    for path, directory in paths:
        if not any(f"{directory.rstrip('/')}/".startswith(f"{each.rstrip('/')}/") for each in offered):
            yield Diagnostic(
                "unsafe-path",
                f"cluster `{cluster.name}` does not offer `{directory}` of its machines to cache tiers",
                item.span(*path),
                hint=f"use a directory in {one_of(offered)}, or add it to `hostDirectories` of the cluster",
                notes=(Note(cluster.span("spec", "hostDirectories", key=True), f"Cluster {cluster.name}"),),
            )


def _check_pools(item: Item[CacheTierSpec], program: Program, engine: EngineRecord) -> Iterator[Diagnostic]:
    spec = item.spec
    mine = {pool.name for pool in program.pools(spec.cluster)}
    for index, name in enumerate(spec.workers.pools):
        other = program.find_pool(name)
        if other is None or name in mine:
            continue
        yield Diagnostic(
            "other-cluster",
            f"pool `{name}` is on cluster `{other.spec.cluster}`, but the tier runs on `{spec.cluster}`",
            item.span("spec", "workers", "pools", index),
            hint=f"pools of cluster `{spec.cluster}`: {one_of(sorted(mine))}",
            notes=(Note(other.span("spec", "cluster"), f"pool {name}"),),
        )
    need = engine.worker(item).memory
    for pool in tier_pools(item, program):
        has = program.machine(pool).memory
        if need > parse_quantity(has):
            memory = [tier for tier in spec.workers.tiers if tier.medium == "MEM"]
            where = ("tiers", spec.workers.tiers.index(memory[0]), "quota") if memory else ("memory",)
            yield Diagnostic(
                "pod-never-fits",
                f"a worker needs {format_quantity(need)} of memory, but machines of pool `{pool.name}` have {has}",
                item.span("spec", "workers", *where),
                label=f"plus {spec.workers.memory} for its processes" if memory else "",
                hint="make the MEM tier smaller, or use other `pools`" if memory else "reduce it",
                notes=(Note(pool.span("spec", "machineType"), f"pool {pool.name}"),),
            )
            return
