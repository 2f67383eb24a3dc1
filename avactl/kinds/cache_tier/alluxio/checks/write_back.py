"""Checks of `writeBack`: data must be safe before a write returns, and pushes must have somewhere to go."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.cache_tier.alluxio.stores import is_foreign_s3
from avactl.kinds.cache_tier.machines import worker_count
from avactl.program.dataset_access import PUSHED
from avactl.program.ineffective_keys import without_effect
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.schema.values import percent_number

Path = tuple[str | int, ...]
_MODE_OF_KEY = {"replicas": "async", "delay": "async", "durable": "push", "push": "push", "evict": "push"}
"""Keys of `writeBack` → the mode that uses them."""
_DURABLE_EXAMPLE = 'durable: {url: "s3://…", endpoint: "https://…", secret: …, capacity: 10Ti}'


def write_back(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of `writeBack`."""
    spec = item.spec
    back = spec.write_back
    path = ("spec", "writeBack")
    if spec.role == "read":
        if "write_back" in spec.model_fields_set:
            yield without_effect(item, path, "a read tier never writes")
        return
    for key, mode in _MODE_OF_KEY.items():
        if key in back.model_fields_set and back.mode != mode:
            yield without_effect(item, (*path, key), f"mode is `{back.mode}`, and only mode `{mode}` uses it")
    if back.mode == "push":
        yield from _check_push(item, program)
    elif back.mode == "async":
        yield from _check_async(item, program)


def _check_async(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
    spec, back, path = item.spec, item.spec.write_back, ("spec", "writeBack")
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
        if is_foreign_s3(store):
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


def _check_push(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
    back = item.spec.write_back
    path: Path = ("spec", "writeBack")
    cluster = program.find_cluster(item.spec.cluster)
    if cluster is not None and not cluster.spec.daemons.cache:
        yield Diagnostic(
            "missing-daemon",
            f"mode `push` needs the cache daemon, which cluster {cluster.name} does not run",
            item.span(*path, "mode"),
            hint=f"write `daemons: {{cache: true}}` in Cluster {cluster.name}, or `mode: through`",
            notes=(Note(cluster.span("spec", "daemons", key=True), f"Cluster {cluster.name}"),),
        )
    if back.evict:
        yield from _check_eviction(item, program)
    writable = [index for index, store in enumerate(item.spec.under_stores) if not store.read_only]
    if len(writable) != 1:
        at: Path = ("spec", "underStores", writable[1]) if writable else (*path, "mode")
        yield Diagnostic(
            "write-back-target",
            f"mode `push` requires one writable under-store, and the tier has {len(writable)}",
            item.span(*at),
            hint="make the others `readOnly`, or declare a tier for each" if writable else "remove its `readOnly`",
        )
    if percent_number(back.push.low) >= percent_number(back.push.high):
        yield Diagnostic(
            "watermark-order",
            f"`low` is {back.push.low} and `high` is {back.push.high}: every push would end at once",
            item.span(*path, "push", "low" if "low" in back.push.model_fields_set else "high"),
            hint=f"write a `low` below {back.push.high}",
        )
    yield from _check_durable_store(item)


def _check_eviction(item: Item[CacheTierSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield a problem if pods read files at the paths that `evict` takes them from."""
    for team in program.teams():
        for index, bucket in enumerate(team.spec.buckets):
            if bucket.tier == item.spec_name:
                yield Diagnostic(
                    "evicted-bucket",
                    f"`evict` moves each file to `/buckets/{bucket.name}{PUSHED}` once it was copied: programs that "
                    f"read it at its path, such as jobs that resume from checkpoints, would not find it",
                    item.span("spec", "writeBack", "evict"),
                    hint="write `evict: false`: files stay on the durable store until they are deleted at their path, "
                    "so its `capacity` must hold all of them",
                    notes=(Note(team.span("spec", "buckets", index, "tier"), f"bucket of Team {team.name}"),),
                )
                return


def _check_durable_store(item: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    durable = item.spec.write_back.durable
    path: Path = ("spec", "writeBack", "durable")
    if durable is None:
        yield Diagnostic(
            "missing-key",
            "mode `push` requires `durable`: without it a write would return before any store has the data",
            item.span("spec", "writeBack", key=True),
            hint=f"add `{_DURABLE_EXAMPLE}`, or write `mode: through`",
        )
        return
    if durable.url and durable.claim:
        yield Diagnostic(
            "conflicting-keys",
            "`url` and `claim` exclude each other",
            item.span(*path, "claim", key=True),
            hint="keep `url` for an object store, `claim` for a shared file system",
            notes=(Note(item.span(*path, "url", key=True), "`url`"),),
        )
    elif not durable.url and not durable.claim:
        yield Diagnostic(
            "missing-key",
            "`durable` needs `url` or `claim`",
            item.span(*path, key=True),
            hint=f"write `{_DURABLE_EXAMPLE}`",
        )
    if durable.capacity is None:
        yield Diagnostic(
            "missing-key",
            "`durable` needs `capacity`: without it `push.high` and `push.low` would be shares of nothing",
            item.span(*path, key=True),
            hint="add `capacity: …`, the bytes that written data may use there",
        )
    if durable.claim and not durable.url:
        for key in ("endpoint", "secret", "options"):
            if key in durable.model_fields_set:
                yield without_effect(item, (*path, key), "a claim is mounted by Kubernetes")
        return
    for index, store in enumerate(item.spec.under_stores):
        one, other = f"{str(durable.url).rstrip('/')}/", f"{store.url.rstrip('/')}/"
        if store.endpoint == durable.endpoint and (one.startswith(other) or other.startswith(one)):
            yield Diagnostic(
                "mount-conflict",
                f"`{durable.url}` and `{store.url}` overlap, so data would be pushed onto itself",
                item.span(*path, "url"),
                hint="use a bucket of its own for `durable`",
                notes=(Note(item.span("spec", "underStores", index, "url"), "the under-store"),),
            )
