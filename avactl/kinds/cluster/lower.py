"""Cluster → namespaces, priority classes, device classes, admission policies, the placement policy, the daemons with
their RBAC, and the objects that make the GitOps engine follow the repository."""

from __future__ import annotations

from avactl.contracts import names
from avactl.contracts.names import CACHE_NAMESPACE
from avactl.kinds.cluster.daemons import admission, guard, monitoring, rbac
from avactl.kinds.cluster.daemons.lower import build_daemons, placement_policy
from avactl.kinds.cluster.devices import device_classes
from avactl.kinds.cluster.follow import build_engine_objects
from avactl.kinds.cluster.priorities import priority_classes
from avactl.program.lowering import k8s, namespaces
from avactl.program.lowering.rights import build_role
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec

DEFAULT_DENY = "avactl-default-deny"
"""NetworkPolicy of the caches' namespace."""


def lower(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    """Return the objects of one cluster."""
    config = placement_policy(item, program)
    return [
        *_build_namespaces(item, program),
        *_build_cache_isolation(item, program),
        *guard.guard_policies(item),
        *priority_classes(item),
        *device_classes(item, program),
        *admission.admission_policies(item, program),
        config,
        *_build_identity(item),
        *build_daemons(item, program, config),
        *monitoring.build_monitoring(item, program),
        *build_engine_objects(item, program),
    ]


def _build_identity(item: Item[ClusterSpec]) -> list[Manifest]:
    """Return the role and binding by which everybody with an account may ask which Cluster this is."""
    everybody = k8s.role_reference("Group", "system:authenticated")
    return build_role(item, item.name, names.IDENTITY, item.spec.system_namespace, rbac.identity_rules(), [everybody])


def _build_namespaces(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    """Return the platform's namespaces. They hold Secrets and volumes that no spec can recreate, so they are never
    pruned."""
    wanted: list[tuple[str, str, dict[str, str]]] = [(item.spec.system_namespace, "restricted", {})]
    if program.tiers(item.name):
        # FUSE needs /dev/fuse, CAP_SYS_ADMIN and mount propagation to the host: only `privileged` allows that.
        wanted.append((CACHE_NAMESPACE, "privileged", {}))
    wanted += [(namespace.name, namespace.pod_security, namespace.labels) for namespace in item.spec.namespaces]
    return [
        namespaces.build_namespace(item, program, item.name, name, level, labels, holds_data=True)
        for name, level, labels in wanted
    ]


def _build_cache_isolation(item: Item[ClusterSpec], program: Program) -> list[Manifest]:
    """Return the policy by which no pod of the caches' namespace accepts connections: those that do have their own."""
    if not program.tiers(item.name):
        return []
    spec = {"podSelector": {}, "policyTypes": ["Ingress"]}
    return [
        k8s.build_manifest(
            item, item.name, "networking.k8s.io/v1", "NetworkPolicy", DEFAULT_DENY, namespace=CACHE_NAMESPACE, spec=spec
        )
    ]
