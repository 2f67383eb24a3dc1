"""Checks of a CacheTier: sizes, ordering, and settings with which Alluxio does not start or loses data."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.pods import FILE_BYTES, files_memory, pools
from avactl.kinds.cache_tier.check_properties import properties
from avactl.kinds.cache_tier.check_stores import stores
from avactl.kinds.cache_tier.check_write_back import write_back
from avactl.kinds.dataset_access import cached_files
from avactl.kinds.feasibility.cache_overhead import worker_memory
from avactl.kinds.fields.images import require_image
from avactl.kinds.fields.values import seconds
from avactl.kinds.ineffective_keys import without_effect
from avactl.kinds.program import Item, Program, pool_size
from avactl.quantity import format_quantity, quantity

GIB = 1024**3
RESERVED = GIB
"""Bytes of each storage tier that Alluxio reserves: alluxio.worker.management.tier.align.reserved.bytes.
A worker with a smaller tier does not start."""

SPEED = {"MEM": 0, "SSD": 1, "HDD": 2}


def check(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one tier."""
    yield from require_image(item, program, "alluxio", ("spec", "cluster"))
    yield from _masters(item, program)
    yield from _storage(item)
    yield from _directories(item, program)
    yield from _memory(item)
    yield from _pools(item, program)
    yield from stores(item)
    yield from write_back(item, program)
    yield from properties(item)
    if item.spec.ttl and seconds(item.spec.ttl) < 3600:
        yield Diagnostic(
            "invalid-value",
            f"spec.ttl: `{item.spec.ttl}` is shorter than Alluxio's one-hour check interval",
            item.span("spec", "ttl"),
            hint="write `1h` or more",
        )


# -- masters -------------------------------------------------------------------------------------------------------


def _masters(item: Item, program: Program) -> Iterator[Diagnostic]:
    masters = item.spec.masters
    if masters.replicas % 2 == 0:
        fewer, more = masters.replicas - 1, masters.replicas + 1
        yield Diagnostic(
            "even-quorum",
            f"{masters.replicas} masters tolerate no more failures than {fewer}: a quorum needs a majority",
            item.span("spec", "masters", "replicas"),
            hint=f"write {fewer} or {more}",
        )
    machines = sum(pool_size(pool) for pool in program.pools(item.spec.cluster))
    if 0 < machines < masters.replicas and not program.lacks_machines:
        own = "replicas" in masters.model_fields_set
        yield Diagnostic(
            "masters-share-machine",
            f"{masters.replicas} masters need {masters.replicas} machines, because those on one machine fail together; "
            f"the pools of cluster {item.spec.cluster} have {machines}",
            item.span("spec", "masters", "replicas") if own else item.span("spec", key=True),
            severity="warning",
            label="" if own else f"{masters.replicas} masters by default",
            hint="write `masters: {replicas: 1}`, or add machines",
        )
    files = cached_files(item, program)
    if "memory" in masters.model_fields_set and quantity(masters.memory) < files_memory(item, program):
        yield Diagnostic(
            "masters-too-small",
            f"the datasets of the tier have {files:,} files, and a master of {masters.memory} holds about "
            f"{int(quantity(masters.memory)) * 3 // 4 // FILE_BYTES:,}",
            item.span("spec", "masters", "memory"),
            severity="warning",
            hint=f"write {format_quantity(files_memory(item, program))}, remove the key, or pack the files: "
            "`avactl dataset pack`",
        )
    if quantity(masters.journal) < 10 * GIB:
        yield Diagnostic(
            "journal-too-small",
            f"a journal volume of {masters.journal} is too small for logs, checkpoints and the file table",
            item.span("spec", "masters", "journal"),
            severity="warning",
            hint="write 10Gi or more, plus about 1Gi per million files",
        )


# -- storage -------------------------------------------------------------------------------------------------------


def _storage(item: Item) -> Iterator[Diagnostic]:
    tiers = item.spec.workers.tiers
    path: tuple[str | int, ...] = ("spec", "workers", "tiers")
    first: dict[str, int] = {}
    places: dict[str, int] = {}
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
        if quantity(tier.quota) <= RESERVED:
            yield Diagnostic(
                "tier-too-small",
                f"a tier of {tier.quota} has no usable space: Alluxio reserves 1Gi of each tier",
                item.span(*path, index, "quota"),
                hint="write more than 1Gi, or remove the tier",
            )
        if tier.medium == "MEM":
            if tier.path is not None:
                yield without_effect(item, (*path, index, "path"), "a MEM tier has no directory on the machine")
            continue
        place = names.machine_dir(item, tier.medium, tier.path)
        before = places.setdefault(place, index)
        if before != index:
            yield Diagnostic(
                "mount-conflict",
                f"{tiers[before].medium} and {tier.medium} share a directory on the machine",
                item.span(*path, index, "path"),
                hint="give each tier a directory on its own disk",
                notes=(Note(item.span(*path, before, "path"), f"path of the {tiers[before].medium} tier"),),
            )


def _directories(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Yield directories of machines that the cluster does not offer to cache tiers."""
    cluster = program.get("Cluster", item.spec.cluster)
    offered = cluster.spec.host_directories
    tiers = item.spec.workers.tiers
    paths: list[tuple[tuple[str | int, ...], str]] = [
        (("spec", "workers", "tiers", index, "path"), tier.path) for index, tier in enumerate(tiers) if tier.path
    ]
    if item.spec.fuse.enabled:
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


def _memory(item: Item) -> Iterator[Diagnostic]:
    spec = item.spec
    parts = [
        (("spec", "masters", "memory"), spec.masters.memory, "a master and its job master", 2),
        (("spec", "workers", "memory"), spec.workers.memory, "a worker and its job worker", 2),
    ]
    if spec.fuse.enabled:
        parts.append((("spec", "fuse", "memory"), spec.fuse.memory, "FUSE", 1))
    for path, memory, what, least in parts:
        if quantity(memory) < least * GIB:
            yield Diagnostic(
                "memory-too-small",
                f"{memory} is not enough for {what}: the Java heap and buffers need more",
                item.span(*path),
                hint=f"write {least}Gi or more",
            )


def _pools(item: Item, program: Program) -> Iterator[Diagnostic]:
    spec = item.spec
    mine = {pool.name for pool in program.pools(spec.cluster)}
    for index, name in enumerate(spec.workers.pools):
        pool = program.find("NodePool", name)
        if pool is None or name in mine:
            continue
        yield Diagnostic(
            "other-cluster",
            f"pool `{name}` is on cluster `{pool.spec.cluster}`, but the tier runs on `{spec.cluster}`",
            item.span("spec", "workers", "pools", index),
            hint=f"pools of cluster `{spec.cluster}`: {one_of(sorted(mine))}",
            notes=(Note(pool.span("spec", "cluster"), f"pool {name}"),),
        )
    need = worker_memory(item)
    for pool in pools(item, program):
        has = program.machine(pool).memory
        if need > quantity(has):
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
