"""Nodes as the scheduler caches them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from sys import intern
from typing import Any

from avactl.base.quantity import resource_amount
from avactl.contracts import names
from avactl.hardware.plugin_sharing import find_plugin_sharing
from avactl.kube.timestamps import unix_time_or
from avactl.scheduler.objects.node_faults import NodeFault, faults_of, read_faults, read_true_conditions
from avactl.scheduler.objects.node_rules import Obstacle, ObstacleKind

MAX_RESOURCES = 128
"""Maximum number of resources that are read from one node."""
_MAX_FAULTS_SHOWN = 4


class NodeInfo:
    """One node."""

    __slots__ = (
        "allocatable",
        "closed",
        "cordoned",
        "cordoned_at",
        "devices",
        "differs",
        "faults",
        "features",
        "gpu_resource",
        "labels",
        "name",
        "reported_faults",
        "source",
        "taints",
        "true_conditions",
        "unusable_gpus",
        "withdrawn",
    )

    def __init__(self, item: Mapping[str, Any]) -> None:
        metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
        self.name: str = intern(metadata["name"])
        self.labels = {intern(key): intern(value) for key, value in (metadata.get("labels") or {}).items()}
        self.taints: tuple[dict[str, Any], ...] = tuple(
            {key: value for key, value in taint.items() if key != "timeAdded"} for taint in spec.get("taints") or ()
        )
        self.cordoned = bool(spec.get("unschedulable"))
        cordoned_at = (metadata.get("annotations") or {}).get(names.CORDONED_AT)
        self.cordoned_at = unix_time_or(0.0, cordoned_at) if cordoned_at else 0.0
        """When the scheduler cordoned it last, also if it is not cordoned any more; Unix time, 0: never."""
        conditions = status.get("conditions") or ()
        self.differs = any(
            each["type"] == names.TOPOLOGY_CONDITION and each["status"] == "False" for each in conditions
        )
        """True if its GPUs or links differ from its machine type (`avactl topo watch`)."""
        self.reported_faults = read_faults(conditions)
        self.true_conditions = read_true_conditions(conditions)
        self.faults: Sequence[NodeFault] = self.reported_faults
        """Faults that its conditions report, by the rules of its pool."""
        self.features = frozenset(status.get("declaredFeatures") or ())
        """Features declared by its kubelet."""
        given = status.get("allocatable") or {}
        self.source: Mapping[str, Any] = (
            given if len(given) <= MAX_RESOURCES else dict(list(given.items())[:MAX_RESOURCES])
        )
        self.allocatable = {intern(name): resource_amount(name, text) for name, text in self.source.items()}
        self.withdrawn = _withdrawn_devices(status.get("capacity") or {}, self.allocatable)
        """Devices that device plugins have withdrawn as unhealthy, by extended resource."""
        self.unusable_gpus: Obstacle | None = None
        """Why pods do not get GPUs here; None if they do."""
        self.closed: Obstacle | None = None
        """Why no pods start here, with or without GPUs; None if they do."""
        self.gpu_resource = ""
        """Extended resource of its GPUs; empty if there is none."""

        self.devices = 0
        """GPUs that a driver publishes in ResourceSlices."""

    def describe_unusable_gpus(self) -> str:
        """Return why pods do not get its GPUs, and what to do; empty if they do."""
        obstacle = self.unusable_gpus
        if obstacle is None:
            return ""
        if obstacle.kind is ObstacleKind.FAULT:
            return self.describe_faults()
        if obstacle.kind is ObstacleKind.WITHDRAWN:
            number = self.withdrawn.get(self.gpu_resource, 0)
            return (
                f"the device plugin has withdrawn {number} of them, without saying which; repair them, let the "
                "node daemon name them (`daemons: {topology: true}`) or the kubelet choose (`devicesChosenBy: kubelet` "
                "in the pool), or use DRA"
            )
        sharing = find_plugin_sharing(self.labels, self.allocatable)
        return f"the device plugin shares them ({obstacle.subject}); {sharing.remedy if sharing else ''}"

    def apply_fault_conditions(self, fault_conditions: Collection[str]) -> None:
        """Count the conditions that the node's pool names as faults."""
        self.faults = faults_of(self.reported_faults, self.true_conditions, fault_conditions)

    def describe_faults(self) -> str:
        """Return the faults that its conditions report; empty if there are none."""
        more = len(self.faults) - _MAX_FAULTS_SHOWN
        return "; ".join([*map(str, self.faults[:_MAX_FAULTS_SHOWN]), *([f"… and {more} more"] if more > 0 else [])])

    def same(self, other: NodeInfo) -> bool:
        """Return True if nothing relevant changed: most updates are heartbeats."""
        return (
            self.source == other.source
            and self.labels == other.labels
            and self.taints == other.taints
            and self.cordoned == other.cordoned
            and self.cordoned_at == other.cordoned_at
            and self.features == other.features
            and self.differs == other.differs
            and self.withdrawn == other.withdrawn
            and self.reported_faults == other.reported_faults
            and self.true_conditions == other.true_conditions
        )


def _withdrawn_devices(capacity: Mapping[str, Any], allocatable: Mapping[str, int]) -> dict[str, int]:
    """Return how many devices the kubelet counts and does not hand out: plugins report them as unhealthy, or restart.

    Which of the devices they are, the API does not say.
    """
    missing = {
        name: resource_amount(name, capacity[name]) - amount
        for name, amount in allocatable.items()
        if "/" in name and name in capacity
    }
    return {name: number for name, number in missing.items() if number > 0}
