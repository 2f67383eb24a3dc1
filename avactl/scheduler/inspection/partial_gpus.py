"""Parts of GPUs (MIG) allocated to claims, which the placement engine does not book."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from avactl.hardware.placement.allocation import MILLI_PER_GPU
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.dra.resource_claim import ResourceClaim
from avactl.scheduler.dra.resource_slices import Key, SliceDevice
from avactl.scheduler.objects.pod_info import PodInfo


class GpuPart(NamedTuple):
    """A part of one GPU."""

    node: str
    gpu: int
    milli: int
    """Share of the GPU, by the counter that it uses most."""


def of_claim(cache: ClusterCache, claim: ResourceClaim) -> Iterator[GpuPart]:
    """Return the parts of GPUs that a claim holds."""
    for result in claim.results:
        if not result.admin and cache.dra.place(result.key) is None:
            part = _part(cache, result.key)
            if part is not None:
                yield part


def of_pod(cache: ClusterCache, pod: PodInfo) -> int:
    """Return the parts of GPUs that a pod holds, in milli."""
    return sum(part.milli for claim in cache.claims.counted_claims(pod) for part in of_claim(cache, claim))


def by_node(cache: ClusterCache) -> dict[str, list[tuple[ResourceClaim, GpuPart]]]:
    """Return all parts by node."""
    found: dict[str, list[tuple[ResourceClaim, GpuPart]]] = {}
    for claim in cache.dra.claims.values():
        for part in of_claim(cache, claim):
            found.setdefault(part.node, []).append((claim, part))
    return found


def _part(cache: ClusterCache, key: Key) -> GpuPart | None:
    """Return the GPU that consumes the same counters; None if the device is not a part of a GPU."""
    device = cache.dra.devices.find(key)
    node = cache.dra.devices.node_of(key)
    if device is None or not device.counters or not node:
        return None
    for number, gpu in enumerate(cache.dra.gpus(node)):
        milli = _share(device, gpu)
        if milli:
            return GpuPart(node, number, milli)
    return None


def _share(device: SliceDevice, gpu: SliceDevice) -> int:
    whole = {(group, name): amount for group, name, amount in gpu.counters}
    shares = [amount / whole[group, name] for group, name, amount in device.counters if whole.get((group, name))]
    return min(MILLI_PER_GPU, int(MILLI_PER_GPU * max(shares, default=0)))
