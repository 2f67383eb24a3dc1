"""Cluster → namespaces, priority classes, device classes, and the daemons with their RBAC."""

from __future__ import annotations

from avactl.kinds import k8s
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program


def lower(item: Item, program: Program) -> list[Manifest]:
    """The objects of one cluster."""
    name = item.spec.system_namespace
    return [k8s.manifest(item, item.name, "v1", "Namespace", name)]
