"""Checks of a CacheTier: sizes, ordering, and settings with which Alluxio does not start or loses data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.pods import pools, worker_count
from avactl.kinds.cache_tier.alluxio.stores import foreign, scheme
from avactl.kinds.cache_tier.check_properties import credentials, properties
from avactl.kinds.feasibility.cache_overhead import worker_memory
from avactl.kinds.fields.images import require_image
from avactl.kinds.fields.values import seconds
from avactl.kinds.program import Item, Program
from avactl.quantity import format_quantity, quantity

GIB = 1024**3
RESERVED = GIB
"""Bytes of each storage tier that Alluxio reserves: alluxio.worker.management.tier.align.reserved.bytes.
A worker with a smaller tier does not start."""

SPEED = {"MEM": 0, "SSD": 1, "HDD": 2}


def check(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one tier."""
    yield from require_image(item, program, "alluxio", ("spec", "cluster"))
    yield from _masters(item)
    yield from _storage(item)
    yield from _directories(item, program)
    yield from _memory(item)
    yield from _pools(item, program)
    yield from _stores(item)
    yield from _write_back(item, program)
    yield from properties(item)
    if item.spec.ttl and seconds(item.spec.ttl) < 3600:
        yield Diagnostic(
            "invalid-value",
            f"spec.ttl: `{item.spec.ttl}` is shorter than Alluxio's one-hour check interval",
            item.span("spec", "ttl"),
            hint="write `1h` or more",
        )


# -- masters -------------------------------------------------------------------------------------------------------


def _masters(item: Item) -> Iterator[Diagnostic]:
    masters = item.spec.masters
    if masters.replicas % 2 == 0:
        fewer, more = masters.replicas - 1, masters.replicas + 1
        yield Diagnostic(
            "even-quorum",
            f"{masters.replicas} masters tolerate no more failures than {fewer}: a quorum needs a majority",
            item.span("spec", "masters", "replicas"),
            hint=f"write {fewer} or {more}",
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
                yield _without_effect(item, (*path, index, "path"), "a MEM tier has no directory on the machine")
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


# -- under-stores --------------------------------------------------------------------------------------------------


def _stores(item: Item) -> Iterator[Diagnostic]:
    mounts: dict[str, int] = {}
    urls: list[tuple[str, int]] = []
    for index, store in enumerate(item.spec.under_stores):
        path = ("spec", "underStores", index)
        place = store.mount.rstrip("/")
        yield from _mount(item, path, store, place)
        before = mounts.setdefault(place, index)
        if before != index:
            yield Diagnostic(
                "mount-conflict",
                f"two under-stores are mounted at `{store.mount}`",
                item.span(*path, "mount"),
                hint="give each a directory of its own",
                notes=(Note(item.span("spec", "underStores", before, "mount"), "first mount"),),
            )
        url = store.url.rstrip("/") + "/"
        for other, at in urls:
            if url.startswith(other) or other.startswith(url):
                yield Diagnostic(
                    "mount-conflict",
                    f"`{store.url}` and `{other.rstrip('/')}` overlap, which Alluxio rejects",
                    item.span(*path, "url"),
                    hint="mount only the outer one, which includes the inner one; or declare a second tier",
                    notes=(Note(item.span("spec", "underStores", at, "url"), "other mount"),),
                )
                break
        urls.append((url, index))
        yield from _store(item, path, store)


def _mount(item: Item, path: tuple[str | int, ...], store: Any, place: str) -> Iterator[Diagnostic]:
    parts = place.count("/")
    if not place:
        yield Diagnostic(
            "mount-conflict",
            "an under-store cannot be mounted at `/`, the root of the cache",
            item.span(*path, "mount"),
            hint=f"write a directory, e.g. `mount: /{store.url.partition('://')[2].split('/')[0]}`",
        )
    elif parts > 1:
        yield Diagnostic(
            "mount-conflict",
            f"`{store.mount}` is {parts} levels deep: its parent directories would not be in any store",
            item.span(*path, "mount"),
            hint=f"use a single level, e.g. `mount: /{place.strip('/').replace('/', '-')}`",
        )


def _store(item: Item, path: tuple[str | int, ...], store: Any) -> Iterator[Diagnostic]:
    kind = scheme(store)
    name = store.url.partition("://")[0]
    if kind.needs_endpoint and store.endpoint is None:
        yield Diagnostic(
            "missing-key",
            f"a store at `{name}://` requires `endpoint`",
            item.span(*path, "url"),
            hint="add `endpoint: https://…`",
        )
    elif store.endpoint is not None and kind.endpoint is None:
        yield _without_effect(item, (*path, "endpoint"), f"stores at `{name}://` have no endpoint")
    missing = [option for option in kind.needs_options if option not in store.options]
    if missing:
        yield Diagnostic(
            "missing-key",
            f"a store at `{name}://` requires {one_of(missing).replace(' or ', ' and ')}",
            item.span(*path, "url"),
            hint=f"add `options: {{{', '.join(f'{option}: …' for option in missing)}}}`",
        )
    if store.secret is not None and kind.access_key is None:
        yield _without_effect(item, (*path, "secret"), f"stores at `{name}://` do not use access keys")
    yield from credentials(item, (*path, "options"), store.options)


# -- writing back --------------------------------------------------------------------------------------------------


def _write_back(item: Item, program: Program) -> Iterator[Diagnostic]:
    spec = item.spec
    back = spec.write_back
    path = ("spec", "writeBack")
    if spec.role == "read":
        if "write_back" in spec.model_fields_set:
            yield _without_effect(item, path, "a read tier never writes")
        return
    if back.mode != "async":
        for name, key in (("replicas", "replicas"), ("delay", "delay")):
            if name in back.model_fields_set:
                yield _without_effect(item, (*path, key), "mode `through` writes to the store immediately")
        return
    if back.replicas == 1:
        yield Diagnostic(
            "unsafe-write-back",
            "with one replica, losing a worker loses data that is not yet persisted",
            item.span(*path, "replicas"),
            hint="write `replicas: 2` or more, or `mode: through`",
        )
    workers = worker_count(item, program)
    if workers and back.replicas > workers:
        yield Diagnostic(
            "unsafe-write-back",
            f"{back.replicas} replicas need {back.replicas} workers, but the tier has {workers}: every write would "
            "fail",
            item.span(*path, "replicas") if "replicas" in back.model_fields_set else item.span(*path, "mode"),
            label="" if "replicas" in back.model_fields_set else f"`replicas` is {back.replicas} by default",
            hint="add workers, or write `mode: through`",
        )
    if all(tier.medium == "MEM" for tier in spec.workers.tiers):
        yield Diagnostic(
            "unsafe-write-back",
            "data not yet persisted is only in memory and is lost in a power failure",
            item.span(*path, "mode"),
            severity="warning",
            hint="add an SSD tier, or write `mode: through`",
        )
    for index, store in enumerate(spec.under_stores):
        if foreign(store):
            yield Diagnostic(
                "async-persist-risk",
                f"`{store.url}` is not Amazon S3: on Ceph, files can stay unpersisted after a worker is lost",
                item.span("spec", "underStores", index, "endpoint"),
                severity="warning",
                hint="write `mode: through`, or monitor files in state `TO_BE_PERSISTED` "
                "(Alluxio issues #13941 and #14685)",
                notes=(Note(item.span(*path, "mode"), "mode async"),),
            )
            break


def _without_effect(item: Item, path: tuple[str | int, ...], why: str) -> Diagnostic:
    return Diagnostic(
        "without-effect",
        f"`{path[-1]}` has no effect here: {why}",
        item.span(*path, key=True),
        severity="warning",
        hint="remove the key",
    )
