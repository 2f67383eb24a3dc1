"""Workspace to Kubernetes objects."""

from __future__ import annotations

from avactl.kinds import k8s
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program


def lower(item: Item, program: Program) -> list[Manifest]:
    """The workspace's objects."""
    select = k8s.selector(item, "workspace")
    ports = {"http": item.spec.port}
    return [k8s.service(item, item.cluster, item.name, item.ns, select, ports, headless=True, component="workspace")]
