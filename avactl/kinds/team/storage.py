"""Team buckets: volumes of those with a cache tier, their directories in the store, and the URLs of all."""

from __future__ import annotations

from typing import Literal

from avactl.program import dataset_access
from avactl.program.cache_engines import engine_of
from avactl.program.lowering import k8s
from avactl.program.lowering.volumes import claimed_volume
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.team import Bucket, TeamSpec


def build_buckets(item: Item[TeamSpec], program: Program, cluster: str, namespace: str) -> list[Manifest]:
    """Return the objects of a team's buckets in one namespace."""
    declared = item.spec.buckets
    if not declared:
        return []
    urls = {bucket.name.upper().replace("-", "_"): bucket.url for bucket in declared}
    result = [k8s.config_map(item, cluster, dataset_access.TEAM_BUCKETS, namespace, urls)]
    for bucket in declared:
        tier = program.tier(bucket.tier) if bucket.tier else None
        if tier is not None and tier.spec.cluster == cluster:
            claim = dataset_access.bucket_claim(bucket.name)
            read = bucket.access == "read"
            result += _build_volume(
                item, program, tier, _tier_path(tier, bucket), claim, cluster, namespace, read_only=read
            )
            pushed = dataset_access.pushed_path(tier, bucket.url)
            if pushed is not None:
                claim = dataset_access.pushed_claim(bucket.name)
                result += _build_volume(item, program, tier, pushed, claim, cluster, namespace, read_only=True)
    return result


def build_prefix_jobs(item: Item[TeamSpec], program: Program, cluster: str) -> list[Manifest]:
    """Return a Job for each cache tier that creates the writable buckets' directories in the store.

    A volume on a directory that does not exist keeps its pods in ContainerCreating, and a new team's bucket is empty.
    """
    paths: dict[str, set[str]] = {}
    for bucket in item.spec.buckets:
        if bucket.tier and bucket.access == "readWrite" and program.tier(bucket.tier).spec.cluster == cluster:
            tier = program.tier(bucket.tier)
            created = {_tier_path(tier, bucket), dataset_access.pushed_path(tier, bucket.url)} - {None}
            paths.setdefault(bucket.tier, set()).update(path for path in created if path)
    found = []
    for name, wanted in sorted(paths.items()):
        tier = program.tier(name)
        create = engine_of(tier).directories
        if create is not None:
            job = k8s.short_name(f"buckets-{item.name}-{name}", 52)
            found.append(create(item, program, tier, job, sorted(wanted)))
    return found


def _tier_path(tier: Item[CacheTierSpec], bucket: Bucket) -> str:
    path = dataset_access.tier_path(tier, bucket.url)
    if path is None:
        raise LookupError(f"no under-store of {tier} holds {bucket.url}")
    return path


def _build_volume(
    item: Item[TeamSpec],
    program: Program,
    tier: Item[CacheTierSpec],
    path: str,
    claim: str,
    cluster: str,
    namespace: str,
    *,
    read_only: bool,
) -> list[Manifest]:
    """Return a PersistentVolume on the tier, and the only claim that can bind it."""
    volume = f"{namespace}-{claim}"
    source = engine_of(tier).volume(tier, program, volume, path, read_only)
    mode: Literal["ReadOnlyMany", "ReadWriteMany"] = "ReadOnlyMany" if read_only else "ReadWriteMany"
    return claimed_volume(item, cluster, volume, claim, namespace, source, mode=mode, component=claim)
