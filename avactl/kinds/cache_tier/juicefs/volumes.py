"""Volumes of the CSI driver, and the resources of their mount pods."""

from __future__ import annotations

from typing import Literal

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.contracts.names import CACHE_NAMESPACE
from avactl.kinds.cache_tier.juicefs import names
from avactl.kinds.cache_tier.juicefs.options import import_options, read_options
from avactl.program.cache_engines import EngineNeeds
from avactl.program.lowering import k8s
from avactl.program.lowering.volumes import claimed_volume
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec


def _memory_level(item: Item[CacheTierSpec]) -> int:
    return int(sum(parse_quantity(level.quota) for level in item.spec.workers.tiers if level.medium == "MEM"))


def mount_pod_needs(item: Item[CacheTierSpec]) -> EngineNeeds:
    """Return the requests of a mount pod with the MEM level, whose files count as memory of the pod that wrote them."""
    fuse = item.spec.fuse
    return EngineNeeds(str(parse_quantity(fuse.cpu)), int(parse_quantity(fuse.memory)) + _memory_level(item))


def volume(tier: Item[CacheTierSpec], program: Program, name: str, path: str, read_only: bool) -> Body:
    """Return mount options and source of a volume with one directory.

    A volume has a mount pod of its own on each machine, and can never show another directory, whatever pods it shares
    with others. All of a tier's share the cache on the machine's disk.
    """
    return _build_source(tier, program, name, [*read_options(tier), f"subdir={path}"])


def _build_source(tier: Item[CacheTierSpec], program: Program, name: str, options: list[str]) -> Body:
    fuse, formatted = tier.spec.fuse, tier.spec.volume
    if formatted is None:
        raise LookupError(f"{tier} has no volume")
    attributes = k8s.drop_none(
        **{
            "juicefs/mount-image": program.cluster_spec(tier.spec.cluster).images.juicefs,
            "juicefs/mount-cpu-request": fuse.cpu,
            "juicefs/mount-memory-request": fuse.memory,
            "juicefs/mount-memory-limit": format_quantity(mount_pod_needs(tier).memory),
        }
    )
    return {
        "mountOptions": options,
        "csi": {
            "driver": names.DRIVER,
            "fsType": "juicefs",
            "volumeHandle": name,
            "nodePublishSecretRef": {"name": formatted.secret, "namespace": CACHE_NAMESPACE},
            "volumeAttributes": attributes,
        },
    }


def whole_volumes(tier: Item[CacheTierSpec], program: Program) -> list[Manifest]:
    """Return volumes and claims on the whole volume in the cache's namespace: one to read, one to import."""
    return [
        *_build_whole(tier, program, names.reading_claim(tier), "ReadOnlyMany", read_options(tier)),
        *_build_whole(tier, program, names.importing_claim(tier), "ReadWriteMany", import_options()),
    ]


def _build_whole(
    tier: Item[CacheTierSpec],
    program: Program,
    claim: str,
    mode: Literal["ReadOnlyMany", "ReadWriteMany"],
    options: list[str],
) -> list[Manifest]:
    name = names.persistent_volume(claim)
    source = _build_source(tier, program, name, options)
    return claimed_volume(tier, tier.spec.cluster, name, claim, CACHE_NAMESPACE, source, mode=mode, component="volume")
