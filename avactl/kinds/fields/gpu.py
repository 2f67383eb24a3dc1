"""GPU requests of pods: resources, claims, node selection, and the annotations that the scheduler reads."""

from __future__ import annotations

from typing import Any, NamedTuple

from avactl import names
from avactl.kinds.feasibility.capacity import gpu_model
from avactl.kinds.fields.compute import Compute, GpuLinkCompute
from avactl.kinds.lowering.k8s import compact, manifest
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.program import Item, Program

NO_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Environment of pods without GPUs: CUDA images request all GPUs, which the NVIDIA runtime grants on GPU machines."""


class _Steering(NamedTuple):
    """Node selection shared by all requests for one model in one pool."""

    pools: list[Item]
    select: dict[str, str]
    tolerations: list[Body]


class GpuRequest:
    """GPU allocation for the pods of one role, in the pools where they may run."""

    def __init__(self, item: Item, program: Program, compute: Compute, role: str) -> None:
        self.item = item
        self.cluster = item.cluster
        self.count = compute.gpus
        self.model = gpu_model(program, self.cluster, compute)
        self.rdma = bool(getattr(compute, "rdma", False))
        self.claim_name = f"{item.name}-{role}-gpus"
        self._scheduler = bool(program.cluster_spec(self.cluster).daemons.scheduler)
        wanted = (self.cluster, self.model, compute.pool, tuple(compute.tolerates), self.rdma)
        self._steering: _Steering = program.memo(("gpu steering", *wanted), lambda: _steering(program, *wanted))
        self.pools = self._steering.pools
        self.dra = bool(self.count and self.pools and self.pools[0].spec.allocation == "dra")

    def resources(self) -> dict[str, str]:
        """Return the extended resources of the container."""
        result: dict[str, str] = {}
        if self.count and self.pools and not self.dra:
            result[self.pools[0].spec.resource_name] = str(self.count)
        if self.rdma and self.pools and self.pools[0].spec.rdma_resource:
            result[self.pools[0].spec.rdma_resource] = "1"
        return result

    def env(self) -> list[Body]:
        """Return NVIDIA_VISIBLE_DEVICES: no GPUs, or the devices named in the scheduler's Binding.

        With DRA the driver's CDI files select the devices; without avactl's scheduler the device plugin does.
        """
        if not self.count:
            return [{"name": name, "value": value} for name, value in NO_GPUS.items()]
        if self._scheduler and not self.dra and self.pools and self.pools[0].spec.resource_name.startswith("nvidia."):
            source = {"fieldPath": f"metadata.annotations['{names.DEVICES}']"}
            return [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": source}}]
        return []

    def claim(self, namespace: str) -> list[Manifest]:
        """Return the ResourceClaimTemplate for pools that use DRA."""
        if not self.dra:
            return []
        exactly = {
            "deviceClassName": device_class(str(self.model)),
            "allocationMode": "ExactCount",
            "count": self.count,
        }
        return [
            manifest(
                self.item, self.cluster, "resource.k8s.io/v1", "ResourceClaimTemplate", self.claim_name,
                namespace=namespace, spec={"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
            )
        ]  # fmt: skip

    def pod_fields(self) -> Body:
        """Return the pod-spec fields: claims, node selector, tolerations."""
        select, tolerations = self._steering.select, self._steering.tolerations
        return compact(
            resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": self.claim_name}] if self.dra else None,
            nodeSelector=dict(select) if select else None,
            tolerations=[dict(toleration) for toleration in tolerations] if tolerations else None,
        )


def _steering(
    program: Program, cluster: str, model: str | None, pool: str | None, tolerates: tuple[str, ...], rdma: bool
) -> _Steering:
    pools = program.candidate_pools(cluster, model, pool, tolerates) if model or pool else []
    if rdma:
        pools = [item for item in pools if item.spec.rdma_resource]
    if pools:
        # A pod uses one allocation mode, so pools with another mode are not candidates.
        first = pools[0].spec
        way = (first.allocation, first.resource_name, first.rdma_resource if rdma else None)
        pools = [
            item
            for item in pools
            if (item.spec.allocation, item.spec.resource_name, item.spec.rdma_resource if rdma else None) == way
        ]
    select: dict[str, str] = {}
    if pool:
        select[names.POOL_LABEL] = pool
    if model:
        select[names.GPU_LABEL] = model
    if pools:
        # Labels shared by all candidate pools exclude other machines.
        for key, value in pools[0].spec.labels.items():
            if all(item.spec.labels.get(key) == value for item in pools):
                select.setdefault(key, value)
    taints: dict[tuple[str, str, str], Any] = {}
    for item in pools:
        for taint in item.spec.taints:
            taints.setdefault((taint.key, taint.value, taint.effect), taint)
    tolerations = [
        compact(
            key=taint.key,
            operator="Equal" if taint.value else "Exists",
            value=taint.value or None,
            effect=taint.effect,
        )
        for taint in taints.values()
    ]
    return _Steering(pools, select, tolerations)


def link_annotations(compute: GpuLinkCompute) -> dict[str, str]:
    """Return the scheduler's annotations for the link between a pod's GPUs; empty if it does not matter."""
    if compute.gpus < 2 or compute.link == "any":
        return {}
    return {names.LINK: compute.link, names.LINK_POLICY: compute.link_policy}


def device_class(model: str) -> str:
    """Name of the DRA device class of a GPU model."""
    return f"gpu-{model.lower()}"
