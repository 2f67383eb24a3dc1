"""ServingDeployment to Kubernetes objects."""

from __future__ import annotations

from avactl.kinds import k8s
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program


def lower(item: Item, program: Program) -> list[Manifest]:
    """The service's objects."""
    select = k8s.selector(item, "server")
    return [k8s.service(item, item.cluster, item.name, item.ns, select, {"http": 8080}, component="server")]
