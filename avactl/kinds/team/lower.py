"""Team → namespaces, service accounts, roles, network policies, volumes of buckets."""

from __future__ import annotations

from avactl.kinds import k8s
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, Program
from avactl.kinds.team.names import namespaces


def lower(item: Item, program: Program) -> list[Manifest]:
    """The objects of one team in every cluster that it works on."""
    return [
        k8s.manifest(item, cluster, "v1", "Namespace", name, holds_data=item.spec.deletion_policy != "delete")
        for cluster in item.clusters
        for name in namespaces(item)
    ]
