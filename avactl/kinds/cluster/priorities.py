"""The priority classes of a cluster."""

from __future__ import annotations

from avactl.contracts import names
from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.spec.platform.cluster import ClusterSpec

PRIORITIES: tuple[tuple[str, int, bool, str], ...] = (
    (names.SYSTEM_PRIORITY, 1_000_000, True, "avactl's daemons."),
    (names.SERVING_PRIORITY, 100_000, True, "Services, which preempt training jobs."),
    ("avactl-high", 10_000, True, "Training jobs with priority high."),
    (names.WORKSPACE_PRIORITY, 5_000, True, "Interactive workspaces."),
    ("avactl-normal", 1_000, True, "Training jobs."),
    ("avactl-low", 100, False, "Training jobs that use idle capacity and preempt no pods."),
)
"""Name, value, whether its pods preempt lower-priority pods, description."""


def priority_classes(item: Item[ClusterSpec]) -> list[Manifest]:
    """Return the priority classes of one cluster."""
    return [
        k8s.build_manifest(
            item,
            item.name,
            "scheduling.k8s.io/v1",
            "PriorityClass",
            name,
            value=value,
            preemptionPolicy="PreemptLowerPriority" if preempts else "Never",
            description=description,
        )
        for name, value, preempts, description in PRIORITIES
    ]
