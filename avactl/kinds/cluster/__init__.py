"""The Cluster kind."""

from avactl.kinds.cluster.check import check
from avactl.kinds.cluster.facts import facts
from avactl.kinds.cluster.lower import lower
from avactl.program.registry import Kind
from avactl.spec.platform.cluster import (
    Cluster,
    ClusterSpec,
    Daemons,
    DeviceClass,
    Images,
    Namespace,
    Oidc,
    Placement,
    StorageClasses,
)
from avactl.spec.platform.prices import Prices
from avactl.spec.platform.reconcile import Reconcile

__all__ = [
    "KIND",
    "Cluster",
    "ClusterSpec",
    "Daemons",
    "DeviceClass",
    "Images",
    "Namespace",
    "Oidc",
    "Placement",
    "Prices",
    "Reconcile",
    "StorageClasses",
]

KIND = Kind(model=Cluster, lower=lower, check=check, facts=facts)
