"""The NodePool kind: machines of one type in a cluster."""

from __future__ import annotations

import re
from math import ceil
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.contracts import names
from avactl.spec.schema.base import LabelValue, Model, Resource
from avactl.spec.schema.values import (
    LABEL_KEY_PATTERN,
    Bytes,
    ClusterRef,
    Duration,
    HostPath,
    MachineTypeRef,
    duration_seconds,
    label_key,
    label_value,
    value_error,
)

RESERVED_PREFIXES = (f"{names.GROUP}/", "kubernetes.io/", "k8s.io/")


def _node_label(key: str) -> str:
    if key.startswith(RESERVED_PREFIXES):
        raise value_error(f"label `{key}` is set by avactl or Kubernetes", "choose a prefix of your own")
    return label_key(key)


_LABEL_PATTERN = f"^(?!{'|'.join(RESERVED_PREFIXES)}){LABEL_KEY_PATTERN[1:]}".replace(
    f"{names.GROUP}/", r"avactl\.dev/"
)
NodeLabels = dict[
    Annotated[str, AfterValidator(_node_label), WithJsonSchema({"type": "string", "pattern": _LABEL_PATTERN})],
    LabelValue,
]
"""Labels of nodes. Pools without named nodes may select labels that others set: `topology.kubernetes.io/zone`."""


def _taint_key(value: str) -> str:
    key, equals, rest = value.partition("=")
    taint, colon, effect = rest.partition(":")
    if equals and colon:  # kubectl's notation
        raise value_error(
            f"`{value}` is a complete taint, not a key", f"write `{{key: {key}, value: {taint}, effect: {effect}}}`"
        )
    if value.startswith(f"{names.GROUP}/"):
        hint = "write `capacity: spot` in the pool" if value == names.CAPACITY else "choose a prefix of your own"
        raise value_error(f"taint `{value}` is set by avactl", hint)
    return label_key(value)


class Taint(Model):
    """A taint of the pool's nodes; the pool's own pods tolerate it."""

    key: Annotated[str, AfterValidator(_taint_key)] = Field(description="Key of the taint.")
    value: Annotated[str, AfterValidator(label_value)] = Field("", description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = Field("NoSchedule", description="Effect.")


class Disk(Model):
    """A local disk of each machine, for cache tiers."""

    path: HostPath = Field(description="Directory that it is mounted at.")
    capacity: Bytes = Field(description="Capacity of its file system, in bytes.")


class Autoscaling(Model):
    """Bounds of a pool scaled by an external autoscaler (cluster autoscaler, Karpenter)."""

    min: Annotated[int, Field(ge=0, le=100_000)] = Field(0, description="Minimum number of machines.")
    max: Annotated[int, Field(ge=1, le=100_000)] = Field(
        description="Maximum number of machines; capacity checks use it."
    )
    preempt_after: Duration | None = Field(
        None,
        description="Time for which avactl's scheduler preempts nobody for a pod that fits on a machine of this pool "
        "that is on its way. Default: it does not wait.",
    )
    node_groups: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(
        default_factory=list,
        max_length=64,
        description="Names of the pool's node groups in the status of Cluster Autoscaler (ConfigMap "
        "cluster-autoscaler-status in kube-system), for `preemptAfter`. Karpenter's NodeClaims are known by their "
        "labels.",
    )


_NVIDIA_RESOURCES = "nvidia."
"""Prefix of the resources of NVIDIA's device plugin, the only one of which pods can choose the devices."""
_NODE_PATTERN = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
_NODE_RANGE = re.compile(r"([-.a-z0-9]*)\[([0-9]{1,6})-[0-9]{1,6}\]([-.a-z0-9]*)").fullmatch
"""Slurm's format of several names: `gpu[01-16]`."""


def _node_name(value: str) -> str:
    if not re.fullmatch(_NODE_PATTERN, value) or len(value) > 253:
        hint = "use lowercase letters, digits, `-` and `.`"
        if several := _NODE_RANGE(value):
            second = str(int(several[2]) + 1).zfill(len(several[2]))
            names = (f"{several[1]}{number}{several[3]}" for number in (several[2], second))
            hint = f"write each name: `[{', '.join(names)}, …]`"
        raise value_error(f"`{value[:80]}` is not the name of a node", hint)
    return value


NodeName = Annotated[
    str,
    AfterValidator(_node_name),
    WithJsonSchema({"type": "string", "pattern": _NODE_PATTERN, "maxLength": 253}),
]


ConditionType = Annotated[
    str, Field(pattern=r"^([A-Za-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$", max_length=316)
]


class NodePoolSpec(Model):
    """Machines of one type. Set one of `count`, `nodes`, `autoscaling`."""

    cluster: ClusterRef = Field(description="Cluster that the machines belong to.")
    machine_type: MachineTypeRef = Field(description="Machine type: a MachineType spec or a shipped type.")
    count: Annotated[int, Field(ge=1, le=100_000)] | None = Field(None, description="Number of machines.")
    nodes: list[NodeName] | None = Field(
        None, min_length=1, description="Names of the nodes, which avactl then labels and taints."
    )
    autoscaling: Autoscaling | None = Field(None, description="Bounds of an autoscaled pool.")
    labels: NodeLabels = Field(default_factory=dict, description="Node labels; the pool's pods select them.")
    taints: list[Taint] = Field(default_factory=list, description="Node taints; the pool's pods tolerate them.")
    capacity: Literal["onDemand", "spot"] = Field(
        "onDemand",
        description="`spot`: machines that the provider may take back. avactl taints them, and only specs with `spot` "
        "run there.",
    )
    reclaim_notice: Duration = Field(
        "30s", description="Time between the provider's notice and the end of a spot machine."
    )
    price: Annotated[float | int, Field(ge=0, le=1_000_000)] | None = Field(
        None,
        description="Price per GPU-hour, including the GPU's share of the machine, for plans. Default: that of the GPU "
        "model in the Cluster's `prices`.",
    )
    disks: list[Disk] = Field(
        default_factory=list,
        max_length=64,
        description="Local disks for cache tiers; the sizes of their storage tiers are checked against them.",
    )
    allocation: Literal["dra", "devicePlugin"] = Field(
        "devicePlugin",
        description="How pods get GPUs: ResourceClaims (DRA), or the extended resource of a device plugin.",
    )
    devices_chosen_by: Literal["scheduler", "kubelet"] | None = Field(
        None,
        description="Who chooses the GPUs of a pod, with `allocation: devicePlugin`. `scheduler`: avactl's, by "
        "`NVIDIA_VISIBLE_DEVICES`, which the nodes must honour (`avactl doctor`). `kubelet`: the kubelet and the "
        "device plugin, as with CDI, the default of the GPU Operator since 25.10. Default for NVIDIA's GPUs: not "
        "known, so that shares and required links between a part of the GPUs are refused; for others `kubelet`.",
    )
    resource_name: str = Field(
        "nvidia.com/gpu",
        description="Extended resource of the device plugin.",
        pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
    )
    rdma_resource: str | None = Field(
        None, description="Extended resource of RDMA NICs, e.g. `rdma/hca`.", pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$"
    )

    on_fault: Literal["avoid", "evict", "drain"] = Field(
        "avoid",
        description="What avactl's scheduler does when a fault of a GPU or machine is reported. `avoid`: no new pods "
        "get the GPU, and those that run stay. `evict`: pods whose GPU cannot go on are stopped with their gang, may "
        "save, and start elsewhere. `drain`: no pod starts on the machine, and all leave it, until it is repaired.",
    )
    fault_conditions: list[ConditionType] = Field(
        default_factory=list,
        max_length=64,
        description="Types of node conditions that report a fault of the machine while they are `True`, beside those "
        "that avactl knows: of a Node Problem Detector with checks of your own.",
    )

    on_failed_pods: Literal["avoid", "cordon"] = Field(
        "avoid",
        description="What avactl's scheduler does with a machine on which pods of jobs of different teams fail before "
        "their programs run. `avoid`: pods take it last. `cordon`: it is also cordoned, until an administrator "
        "uncordons it; at most a tenth of the pool's machines, and one of fewer than ten.",
    )

    @property
    def is_spot(self) -> bool:
        """True if the provider may take the machines back."""
        return self.capacity == names.SPOT

    @property
    def preemption_delay(self) -> int:
        """Seconds for which preemptions wait for a machine that is on its way; 0: they do not."""
        scaling = self.autoscaling
        return 0 if scaling is None or scaling.preempt_after is None else ceil(duration_seconds(scaling.preempt_after))

    @property
    def honours_scheduler(self) -> bool:
        """True if pods certainly get the GPUs that avactl's scheduler chose."""
        return self.allocation == "dra" or (self.devices_chosen_by == "scheduler" and not self.kubelet_chooses)

    @property
    def kubelet_chooses(self) -> bool:
        """True if the kubelet and the device plugin choose the GPUs of a pod."""
        if self.allocation == "dra":
            return False
        return self.devices_chosen_by == "kubelet" or not self.resource_name.startswith(_NVIDIA_RESOURCES)

    @property
    def all_taints(self) -> list[Taint]:
        """Taints of the nodes: the declared ones, and that of spot machines."""
        own = [Taint.model_construct(key=names.CAPACITY, value=names.SPOT, effect="NoSchedule")] if self.is_spot else []
        return [*self.taints, *own]


class NodePool(Resource):
    """Machines of one type in one cluster, and how pods get their GPUs.

    Compiles to the pool's topology ConfigMap, which the scheduler reads, and to labels and taints of the named
    nodes; never to the machines themselves. Machines of a pool without named nodes must register with the labels and
    taints listed in the ConfigMap.
    """

    KIND: ClassVar[str] = "NodePool"
    SCOPE: ClassVar[Literal["platform"]] = "platform"
    kind: Literal["NodePool"] = Field("NodePool", description="`NodePool`.")
    spec: NodePoolSpec = Field(description="The pool.")
