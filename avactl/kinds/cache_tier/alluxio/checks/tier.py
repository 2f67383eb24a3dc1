"""Checks of a tier's masters, memory and times: settings with which Alluxio does not start or work."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic
from avactl.kinds.cache_tier.alluxio.checks.properties import check_properties
from avactl.kinds.cache_tier.alluxio.checks.stores import check_stores
from avactl.kinds.cache_tier.alluxio.checks.write_back import write_back
from avactl.kinds.cache_tier.alluxio.pods import FILE_BYTES, files_memory
from avactl.program.dataset_access import cached_files
from avactl.program.ineffective_keys import without_effect
from avactl.program.program import Item, Program, pool_size
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.schema.values import duration_seconds

GIB = 1024**3
MAX_VOLUMES = 6_000
"""Lines of about 150 bytes in a ConfigMap, which Kubernetes limits to 1 MiB."""


def check(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one tier."""
    if item.spec.volume is not None:
        yield without_effect(item, ("spec", "volume"), "Alluxio reads the objects of the stores themselves")
    yield from _check_masters(item, program)
    yield from _check_memory(item)
    yield from check_stores(item)
    yield from write_back(item, program)
    yield from check_properties(item)
    yield from _check_volumes(item, program)
    if item.spec.ttl and duration_seconds(item.spec.ttl) < 3600:
        yield Diagnostic(
            "invalid-value",
            f"spec.ttl: `{item.spec.ttl}` is shorter than Alluxio's one-hour check interval",
            item.span("spec", "ttl"),
            hint="write `1h` or more",
        )


def _check_masters(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
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
    if "memory" in masters.model_fields_set and parse_quantity(masters.memory) < files_memory(item, program):
        yield Diagnostic(
            "masters-too-small",
            f"the datasets of the tier have {files:,} files, and a master of {masters.memory} holds about "
            f"{int(parse_quantity(masters.memory)) * 3 // 4 // FILE_BYTES:,}",
            item.span("spec", "masters", "memory"),
            severity="warning",
            hint=f"write {format_quantity(files_memory(item, program))}, remove the key, or pack the files: "
            "`avactl dataset pack`",
        )
    if parse_quantity(masters.journal) < 10 * GIB:
        yield Diagnostic(
            "journal-too-small",
            f"a journal volume of {masters.journal} is too small for logs, checkpoints and the file table",
            item.span("spec", "masters", "journal"),
            severity="warning",
            hint="write 10Gi or more, plus about 1Gi per million files",
        )


def _check_volumes(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
    versions = sum(len(each.spec.versions) for each in program.datasets() if each.spec.tier == item.name)
    buckets = sum(bucket.tier == item.name for team in program.teams() for bucket in team.spec.buckets)
    if item.spec.fuse.enabled and versions + buckets > MAX_VOLUMES:
        yield Diagnostic(
            "too-many-volumes",
            f"the tier has {versions + buckets:,} versions and buckets, and the list of their volumes holds "
            f"{MAX_VOLUMES:,}",
            item.span("spec", key=True),
            hint="remove versions that no job reads, or use a tier for each group of datasets",
        )


def _check_memory(item: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    parts = [
        (("spec", "masters", "memory"), spec.masters.memory, "a master and its job master", 2),
        (("spec", "workers", "memory"), spec.workers.memory, "a worker and its job worker", 2),
    ]
    if spec.fuse.enabled:
        parts.append((("spec", "fuse", "memory"), spec.fuse.memory, "FUSE", 1))
    for path, memory, what, least in parts:
        if parse_quantity(memory) < least * GIB:
            yield Diagnostic(
                "memory-too-small",
                f"{memory} is not enough for {what}: the Java heap and buffers need more",
                item.span(*path),
                hint=f"write {least}Gi or more",
            )
