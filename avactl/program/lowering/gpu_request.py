"""GPU requests of pods: resources, claims, node selection, and the annotations that the scheduler reads."""

from __future__ import annotations

from typing import Any, NamedTuple

from avactl.contracts import names
from avactl.contracts.pod_annotations import DEVICES, GPU_SHARE, LINK, LINK_POLICY
from avactl.program.capacity.capacity import gpu_model
from avactl.program.lowering.k8s import build_manifest, drop_none
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.node_pool import NodePoolSpec
from avactl.spec.schema.compute import Compute, GpuLinkCompute

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
AMD_VISIBLE_DEVICES = "AMD_VISIBLE_DEVICES"
DEVICES_FIELD = DEVICES.field_path
"""Field of a pod with the GPUs that the scheduler chose."""
NO_GPUS = {VISIBLE_DEVICES: "void"}
"""Environment of pods without GPUs: CUDA images request all GPUs, which the NVIDIA runtime grants on GPU machines."""


_AMD_DRIVER = "gpu.amd.com"
_OTHER_VENDORS = ("habana.ai/", "google.com/")
"""Prefixes of device plugins whose runtimes read no variable of devices."""
NVIDIA_DRIVER = "gpu.nvidia.com"
"""DRA driver of NVIDIA GPUs, whose release also has ComputeDomains."""


def has_amd_gpus(program: Program, pool: Item[NodePoolSpec]) -> bool:
    """Return True if pods get GPUs of AMD from the pool: by its device plugin, or by its DRA driver."""
    if pool.spec.allocation == "dra":
        return program.cluster_spec(pool.spec.cluster).gpu_driver == _AMD_DRIVER
    return pool.spec.resource_name.startswith("amd.com/")


def has_nvidia_gpus(program: Program, pool: Item[NodePoolSpec]) -> bool:
    """Return True if pods get GPUs of NVIDIA from the pool: neither of AMD, nor Intel's Gaudi, nor TPUs."""
    other = pool.spec.allocation != "dra" and pool.spec.resource_name.startswith(_OTHER_VENDORS)
    return not other and not has_amd_gpus(program, pool)


def nvidia_pools(program: Program, cluster: str) -> list[Item[NodePoolSpec]]:
    """Pools whose machines have NVIDIA GPUs."""
    return [pool for pool in program.gpu_pools(cluster) if has_nvidia_gpus(program, pool)]


def uses_amd_gpus(program: Program, cluster: str) -> bool:
    """Return True if a pool of the cluster has GPUs of AMD."""
    return program.memo(
        ("amd gpus", cluster),
        lambda: any(has_amd_gpus(program, pool) for pool in program.gpu_pools(cluster)),
    )


def hide_amd_devices(pod: Body) -> None:
    """Set AMD_VISIBLE_DEVICES to `void` in each container: images of ROCm can ask for all GPUs of a machine.

    Containers with GPUs, too: AMD's device plugin and DRA driver hand devices over by themselves, and do not set the
    variable, unlike NVIDIA's. Source: internal/oci of ROCm/container-toolkit.
    """
    for container in (*(pod.get("containers") or ()), *(pod.get("initContainers") or ())):
        env = container.get("env") or ()
        if not any(each.get("name") == AMD_VISIBLE_DEVICES for each in env):
            container["env"] = [*env, {"name": AMD_VISIBLE_DEVICES, "value": "void"}]


class _Steering(NamedTuple):
    """Node selection shared by all requests for one model in one pool."""

    pools: list[Item[NodePoolSpec]]
    select: dict[str, str]
    tolerations: list[Body]


class GpuRequest:
    """GPU allocation for the pods of one role, in the pools where they may run."""

    def __init__(self, item: Item, program: Program, compute: Compute, role: str, pods: int = 1) -> None:
        """`pods` is the number of pods of the role that exchange data."""
        self.item = item
        self._program = program
        self.cluster = item.cluster
        self.count = compute.visible_gpus
        self._shared = compute.shares_gpu
        self.model = gpu_model(program, self.cluster, compute)
        self.rdma: bool | int = getattr(compute, "rdma", False)
        self.claim_name = f"{item.name}-{role}-gpus"
        self._scheduler = bool(program.cluster_spec(self.cluster).daemons.scheduler)
        wanted = (self.cluster, self.model, compute.pool, tuple(compute.tolerates), bool(self.rdma))
        self._steering = program.memo(("gpu steering", *wanted), lambda: _gpu_steering(program, *wanted))
        self.pools = self._steering.pools
        self.dra = bool(self.count and self.pools and self.pools[0].spec.allocation == "dra")
        self.nics = nic_count(program, self.pools, self.count, self.rdma)
        self.domain_name = f"{item.name}-{role}" if self._spans_machines(program, compute, pods) else None

    def _spans_machines(self, program: Program, compute: Compute, pods: int) -> bool:
        """Return True if the pods exchange data over NVLink between machines.

        A node has one channel, so each pod must take all GPUs of its machine.
        """
        driver = program.cluster_spec(self.cluster).gpu_driver
        if pods < 2 or not self.dra or getattr(compute, "link", None) != "nvlink" or driver != NVIDIA_DRIVER:
            return False
        machines = [program.machine(pool) for pool in self.pools]
        return all(
            machine.nvlink is not None
            and (machine.nvlink.domain or 0) > machine.gpu_count
            and machine.gpu_count == self.count
            for machine in machines
        )

    @property
    def on_spot(self) -> bool:
        """True if the pods may run on spot machines."""
        return any(toleration["key"] == names.CAPACITY for toleration in self._steering.tolerations)

    @property
    def claims(self) -> dict[str, str]:
        """Claims of the pod and the container: name → ResourceClaimTemplate."""
        found = {"gpus": self.claim_name} if self.dra else {}
        return found if self.domain_name is None else {**found, "nvlink": f"{self.domain_name}-nvlink"}

    def resources(self) -> dict[str, str]:
        """Return the extended resources of the container."""
        result: dict[str, str] = {}
        if self.count and self.pools and not self.dra and not self._shared:
            result[self.pools[0].spec.resource_name] = str(self.count)
        if self.rdma and self.pools and self.pools[0].spec.rdma_resource:
            result[self.pools[0].spec.rdma_resource] = str(self.nics)
        return result

    def rdma_nics(self, program: Program, host_network: bool) -> tuple[str, ...]:
        """Return the names of the machines' RDMA NICs, if the pods see them under these names wherever they run.

        They do in the host's network, and with NVIDIA's shared device plugin (resources `rdma/…`). An SR-IOV plugin
        gives a pod a virtual NIC with a name of its own.
        """
        if not self.rdma or not self.pools:
            return ()
        if not host_network and not shares_nics(self.pools[0]):
            return ()
        found = {tuple(nic.name for nic in program.machine(pool).nics if nic.rdma) for pool in self.pools}
        return found.pop() if len(found) == 1 else ()

    def env(self) -> list[Body]:
        """Return NVIDIA_VISIBLE_DEVICES: no GPUs, or the devices named in the scheduler's Binding.

        With DRA the driver's CDI files select the devices, and set it to `void` too. Where the kubelet chooses them,
        or without avactl's scheduler, the device plugin sets it. Pods with GPUs of others get none of NVIDIA.
        """
        others = bool(self.pools) and not has_nvidia_gpus(self._program, self.pools[0])
        if not self.count or self.dra or others:
            return [{"name": name, "value": value} for name, value in NO_GPUS.items()]
        if self._scheduler and self.pools and not self.pools[0].spec.kubelet_chooses:
            return [{"name": VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"fieldPath": DEVICES_FIELD}}}]
        return []

    def claim(self, namespace: str) -> list[Manifest]:
        """Return the ResourceClaimTemplate for pools that use DRA, and the ComputeDomain for NVLink between machines.

        NVIDIA's driver creates the domain's ResourceClaimTemplate, and starts an IMEX daemon on the machine of each
        pod that claims from it. Source: api/nvidia.com/resource/v1beta1/computedomain.go of
        kubernetes-sigs/dra-driver-nvidia-gpu; with 0 nodes a domain follows its pods.
        """
        if not self.dra:
            return []
        exactly = {
            "deviceClassName": device_class(str(self.model)),
            "allocationMode": "ExactCount",
            "count": self.count,
        }
        found = [
            build_manifest(
                self.item,
                self.cluster,
                "resource.k8s.io/v1",
                "ResourceClaimTemplate",
                self.claim_name,
                namespace=namespace,
                spec={"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
            )
        ]
        if self.domain_name is not None:
            channel = {"resourceClaimTemplate": {"name": self.claims["nvlink"]}, "allocationMode": "Single"}
            found.append(
                build_manifest(
                    self.item,
                    self.cluster,
                    "resource.nvidia.com/v1beta1",
                    "ComputeDomain",
                    self.domain_name,
                    namespace=namespace,
                    spec={"numNodes": 0, "channel": channel},
                )
            )
        return found

    def pod_fields(self) -> Body:
        """Return the pod-spec fields: claims, node selector, tolerations."""
        select, tolerations = self._steering.select, self._steering.tolerations
        return drop_none(
            resourceClaims=[
                {"name": name, "resourceClaimTemplateName": template} for name, template in self.claims.items()
            ]
            or None,
            nodeSelector=dict(select) if select else None,
            tolerations=[dict(toleration) for toleration in tolerations] if tolerations else None,
        )


def _gpu_steering(
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
    select: dict[str, str] = {names.CAPACITY: names.SPOT} if names.SPOT_ONLY in tolerates else {}
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
        for taint in item.spec.all_taints:
            taints.setdefault((taint.key, taint.value, taint.effect), taint)
    tolerations = [
        drop_none(
            key=taint.key,
            operator="Equal" if taint.value else "Exists",
            value=taint.value or None,
            effect=taint.effect,
        )
        for taint in taints.values()
    ]
    return _Steering(pools, select, tolerations)


def nic_count(program: Program, pools: list[Item[NodePoolSpec]], gpus: int, rdma: bool | int) -> int:
    """Return the number of RDMA NICs of a pod: the given one, or that of its GPUs by the machine type, at least one.

    Shares are rounded down: together, the pods of a machine do not request more NICs than it has, and all of its GPUs
    can be used. Only where it has fewer NICs than pods, it has too few.
    NVIDIA's shared device plugin (resources `rdma/…`) gives all NICs of a machine for a count of 1.
    Source: https://github.com/Mellanox/k8s-rdma-shared-dev-plugin
    """
    if rdma is not True:
        return int(rdma)
    machines = [program.machine(pool) for pool in pools if not shares_nics(pool)]
    shares = [sum(nic.rdma for nic in each.nics) * gpus // max(1, each.gpu_count) for each in machines]
    return max(1, min(shares, default=1))


def shares_nics(pool: Item[NodePoolSpec]) -> bool:
    """Return True if the pods of a machine share its RDMA NICs."""
    return str(pool.spec.rdma_resource).startswith("rdma/")


def gpu_annotations(compute: Compute) -> dict[str, str]:
    """Return the scheduler's annotations for a pod's part of a GPU, or for the link between its GPUs."""
    if compute.shares_gpu:
        # Such a pod selects nodes like one with a whole GPU; the scheduler chooses the device.
        return {GPU_SHARE.name: format(compute.gpus, "g")}
    if compute.gpus < 2 or not isinstance(compute, GpuLinkCompute) or compute.link == "any":
        return {}
    return {LINK.name: compute.link, LINK_POLICY.name: compute.link_policy}


def share_env(compute: Compute) -> dict[str, str]:
    """Return variables of a pod with a part of a GPU: TensorFlow and JAX take the memory of the whole GPU otherwise."""
    if not compute.shares_gpu:
        return {}
    return {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": format(compute.gpus, "g")}


def device_class(model: str) -> str:
    """Name of the DRA device class of a GPU model."""
    return f"gpu-{model.lower()}"
