"""Cluster → namespaces, priority classes, device classes, the placement policy, the daemons with their RBAC, and
the objects that make the GitOps engine follow the repository."""

from __future__ import annotations

from avactl import names
from avactl.kinds.cluster.daemons import SYSTEM_PRIORITY, daemons, policy
from avactl.kinds.cluster.devices import device_classes
from avactl.kinds.cluster.follow import follow
from avactl.kinds.dataset_access import CACHE_NAMESPACE
from avactl.kinds.lowering import k8s, namespaces
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program

PRIORITIES: tuple[tuple[str, int, bool, str], ...] = (
    (SYSTEM_PRIORITY, 1_000_000, True, "avactl's daemons."),
    (names.SERVING_PRIORITY, 100_000, True, "Services, which preempt training jobs."),
    ("avactl-high", 10_000, True, "Training jobs with priority high."),
    ("avactl-workspace", 5_000, True, "Interactive workspaces."),
    ("avactl-normal", 1_000, True, "Training jobs."),
    ("avactl-low", 100, False, "Training jobs that use idle capacity and preempt no pods."),
)
"""Name, value, whether its pods preempt lower-priority pods, description."""


def lower(item: Item, program: Program) -> list[Manifest]:
    """Return the objects of one cluster."""
    config = policy(item)
    return [
        *_namespaces(item, program),
        *_priorities(item),
        *device_classes(item, program),
        config,
        *daemons(item, program, config),
        *follow(item, program),
    ]


def _namespaces(item: Item, program: Program) -> list[Manifest]:
    """Return the platform's namespaces. They hold Secrets and volumes that no spec can recreate, so they are never
    pruned."""
    wanted: list[tuple[str, str, dict[str, str]]] = [(item.spec.system_namespace, "restricted", {})]
    if program.tiers(item.name):
        # FUSE needs /dev/fuse, CAP_SYS_ADMIN and mount propagation to the host: only `privileged` allows that.
        wanted.append((CACHE_NAMESPACE, "privileged", {}))
    wanted += [(namespace.name, namespace.pod_security, namespace.labels) for namespace in item.spec.namespaces]
    return [
        namespaces.manifest(item, program, item.name, name, level, labels, holds_data=True)
        for name, level, labels in wanted
    ]


def _priorities(item: Item) -> list[Manifest]:
    return [
        k8s.manifest(
            item, item.name, "scheduling.k8s.io/v1", "PriorityClass", name,
            value=value, preemptionPolicy="PreemptLowerPriority" if preempts else "Never", description=description,
        )
        for name, value, preempts, description in PRIORITIES
    ]  # fmt: skip
