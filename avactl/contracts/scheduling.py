"""Configuration of the scheduler and the topology daemon: policy, pools of machines, and quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from avactl.contracts.document import Amount, Bytes, Contract, ContractPart, Count, Label, ObjectName, Seconds, absent

POOL_KEY, QUOTA_KEY = "pool.json", "quota.json"
"""Keys of the ConfigMaps."""
MAX_GPUS = 16
"""GPUs of a machine."""
MAX_NODES = 100_000
MAX_GANG_KINDS, MAX_REPLICA_PATHS = 32, 16
API_VERSION_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/v[0-9][a-z0-9]*\Z"
"""Version of a group with a dot: not of Kubernetes' core, which has the Secrets."""
KIND_PATTERN, RESOURCE_PATTERN = r"^[A-Z][A-Za-z0-9]*\Z", r"^[a-z][a-z0-9]*\Z"
FIELD_PATH_PATTERN = r"^spec(\.([A-Za-z][A-Za-z0-9]*|\*)){1,8}\Z"
FieldPath = Annotated[str, StringConstraints(pattern=FIELD_PATH_PATTERN, max_length=253)]
"""Field of an object, such as `spec.roles.*.replicas`; `*` stands for each entry of a list or map."""
_Name = Annotated[str, Field(min_length=1, max_length=253)]
_Index = Annotated[int, Field(ge=0, lt=MAX_GPUS)]


class ClusterName(Contract):
    """The part of `policy.json` that names the cluster, whatever its other keys are."""

    MAX_BYTES = 64 * 1024
    cluster: ObjectName


class GangKind(ContractPart):
    """Objects of another controller whose pods start together."""

    api_version: Annotated[str, StringConstraints(pattern=API_VERSION_PATTERN, max_length=300)]
    kind: Annotated[str, StringConstraints(pattern=KIND_PATTERN, max_length=63)]
    resource: Annotated[str, StringConstraints(pattern=RESOURCE_PATTERN, max_length=63)]
    """Its name in paths of the API: the plural in lower case."""
    label: Annotated[str, Field(min_length=1, max_length=317)]
    """Label of the pods whose value is the name of the object."""
    replicas: Annotated[tuple[FieldPath, ...], Field(max_length=MAX_REPLICA_PATHS)] = absent(())
    """Fields whose sum is the number of pods; empty for a kind that the scheduler knows."""


KNOWN_GANG_KINDS = (
    GangKind(api_version="ray.io/v1", kind="RayCluster", resource="rayclusters", label="ray.io/cluster"),
    GangKind(
        api_version="jobset.x-k8s.io/v1alpha2",
        kind="JobSet",
        resource="jobsets",
        label="jobset.sigs.k8s.io/jobset-name",
    ),
    GangKind(
        api_version="kubeflow.org/v2beta1",
        kind="MPIJob",
        resource="mpijobs",
        label="training.kubeflow.org/job-name",
    ),
    GangKind(
        api_version="kubeflow.org/v1",
        kind="PyTorchJob",
        resource="pytorchjobs",
        label="training.kubeflow.org/job-name",
    ),
)
"""Kinds whose fields the scheduler knows. A RayJob makes a RayCluster, and a TrainJob a JobSet."""


class PlacementPolicy(ClusterName):
    """`policy.json`: how a cluster places pods."""

    gpu_driver: _Name
    jobs: bool = False
    """True if the scheduler's account may read Jobs, for pods that start after them; older compilers gave no right."""
    pod_groups: bool = False
    """True if the scheduler's account may read PodGroups."""
    taint_rules: bool = False
    """True if the scheduler's account may read DeviceTaintRules."""
    gang_kinds: Annotated[tuple[GangKind, ...], Field(max_length=MAX_GANG_KINDS)] = absent(())
    """Kinds of other controllers that the scheduler's account may read."""
    autoscalers: bool = absent(False)
    """True if the scheduler's account may read which machines autoscalers have ordered."""
    hold_after: Seconds = absent(0)
    """Seconds after which younger pods of a team wait behind a large unit; 0: never."""
    levels: Annotated[tuple[Label, ...], Field(max_length=32)]
    """Node labels of the topology levels, narrowest first."""
    objective: Literal["pack", "links", "spread"] = "pack"
    reconcile: Label = ""
    """How the cluster's objects are applied."""
    scheduler_name: Label = ""
    system_namespace: _Name
    cache_daemon: bool = absent(False)
    """True if the cluster runs the cache daemon, which reports the progress of datasets."""

    @property
    def widest_first(self) -> tuple[str, ...]:
        """Topology levels, widest first."""
        return self.levels[::-1]


class MachineGpuFacts(ContractPart):
    """The GPUs of a machine."""

    model: Label
    count: Annotated[int, Field(ge=1, le=MAX_GPUS)]
    memory_bytes: Bytes


class PcieSwitchFacts(ContractPart):
    """GPUs and NICs below one PCIe switch."""

    socket: Count
    gpus: Annotated[tuple[_Index, ...], Field(max_length=MAX_GPUS)]
    nics: Annotated[tuple[Label, ...], Field(max_length=256)]


class NvlinkFacts(ContractPart):
    """The NVLinks of a machine."""

    generation: Count = 0
    link_gbps: Amount
    pairs: Annotated[tuple[tuple[_Index, _Index, Count], ...], Field(max_length=MAX_GPUS * MAX_GPUS)]
    """Two GPUs, and the number of links between them."""
    switch_links: Count
    domain: Count | None = None
    """GPUs in one NVLink domain, if it spans machines."""


class NicFacts(ContractPart):
    """A network interface card."""

    name: Label
    socket: Count
    gbit_per_second: Amount
    rdma: bool


class BandwidthFacts(ContractPart):
    """Bandwidths of a machine in GB/s per direction."""

    cross_socket_gbps: Amount
    same_socket_gbps: Amount
    pcie_switch_gbps: Amount


class MachineFacts(ContractPart):
    """The hardware of a machine type. All defaults are resolved: every GPU is under a switch."""

    gpus: MachineGpuFacts | None = absent(None)
    """Absent: a machine with CPUs only."""
    cpu: Amount
    memory_bytes: Bytes
    sockets: Count = 0
    switches: Annotated[tuple[PcieSwitchFacts, ...], Field(max_length=256)]
    nvlink: NvlinkFacts | None = None
    nics: Annotated[tuple[NicFacts, ...], Field(max_length=256)]
    bandwidth: BandwidthFacts

    @model_validator(mode="after")
    def _validate_indices(self) -> MachineFacts:
        gpus = self.gpus.count if self.gpus is not None else 0
        if sorted(gpu for switch in self.switches for gpu in switch.gpus) != list(range(gpus)):
            raise ValueError(f"must have {gpus} GPUs, each under exactly one switch")
        if self.nvlink is not None and any(max(first, second) >= gpus for first, second, _ in self.nvlink.pairs):
            raise ValueError(f"has `nvlink.pairs` of other than its {gpus} GPUs")
        return self


class PoolAllocation(ContractPart):
    """How pods of a pool get GPUs and RDMA NICs."""

    method: Literal["dra", "devicePlugin"]
    device_class: Label | None = absent(None)
    driver: Label | None = absent(None)
    resource: Label | None = absent(None)
    """Extended resource, of device plugins."""
    rdma_resource: Label | None = absent(None)
    devices_chosen_by: Literal["scheduler", "kubelet"] = absent("scheduler")
    """The one who chooses the GPUs of device plugins. Absent: the scheduler, by a variable of the container."""


class PoolSize(ContractPart):
    """Number of machines: declared, named, or within bounds."""

    count: Count | None = absent(None)
    nodes: Annotated[tuple[Label, ...], Field(max_length=MAX_NODES)] | None = absent(None)
    min: Count | None = absent(None)
    max: Count | None = absent(None)


class PoolTaint(ContractPart):
    """A taint of a pool's nodes."""

    key: Label
    value: Label | None = absent(None)
    effect: Label


class PoolFacts(Contract):
    """`pool.json`: a node pool and its machines."""

    MAX_BYTES = 1 << 20
    version: Count = 1
    pool: _Name
    machine_type: Label = ""
    size: PoolSize = PoolSize()
    allocation: PoolAllocation
    levels: Annotated[tuple[Label, ...], Field(max_length=32)] = ()
    node_labels: Mapping[Label, Label] = Field(default={}, max_length=1000)
    node_taints: Annotated[tuple[PoolTaint, ...], Field(max_length=1000)] = ()
    on_fault: Literal["avoid", "evict", "drain"] = absent("avoid")
    """The effect of a fault on the pods of a machine."""
    on_failed_pods: Literal["avoid", "cordon"] = absent("avoid")
    """The effect on a machine on which pods of several teams fail before they run."""
    preempt_after: Seconds = absent(0)
    """Seconds for which preemptions wait for a machine that is on its way; 0: they do not."""
    node_groups: Annotated[tuple[Annotated[str, Field(max_length=512)], ...], Field(max_length=64)] = absent(())
    """The pool's node groups in the status of Cluster Autoscaler."""
    fault_conditions: Annotated[tuple[Label, ...], Field(max_length=64)] = absent(())
    """Types of node conditions that report faults of the machine while they are true, beside those that it knows."""
    machine: MachineFacts


class GpuLimit(ContractPart):
    """Limit of a team on the GPUs of one model."""

    gpu: Label
    guaranteed: Count
    borrow: Count
    weight: Annotated[int, Field(ge=1, le=10**9)]
    per_member: Count | None = absent(None)
    """GPUs that each member of the team may use; None: all of the team's."""


class MachineShape(ContractPart):
    """Guaranteed whole machines."""

    machines: Count
    gpus: Count
    gpu: Label


class TeamLeaf(Contract):
    """`quota.json`: a team, its namespaces, its quota."""

    version: Count = 1
    team: _Name
    namespaces: Annotated[tuple[Label, ...], Field(max_length=10_000)]
    gpus: Annotated[tuple[GpuLimit, ...], Field(max_length=1000)]
    shapes: Annotated[tuple[MachineShape, ...], Field(max_length=1000)]
    cpu: Amount | None = absent(None)
    """Cores."""
    memory_bytes: Bytes | None = absent(None)
