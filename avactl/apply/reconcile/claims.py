"""The claim of a run on its Kubernetes cluster: its inventory, with the UID of the cluster and the name of the Cluster.

A Kubernetes cluster that carries another Cluster, an inventory of another repository, or an inventory that was written
in another Kubernetes cluster is refused before the first write.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from avactl.apply.reconcile.inventory import InventoryRecord, Records
from avactl.kube.identity import is_name, place_of, read_cluster, system_namespaces
from avactl.kube.object_client import ObjectClient

if TYPE_CHECKING:
    from avactl.apply.reconcile.options import ReconcileOptions

_MAX_SHOWN = 80
"""Characters of a repository that are shown."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The identity of a Kubernetes cluster, as its inventories and policies tell it."""

    uid: str = ""
    """UID of its namespace `kube-system`, which a rebuilt cluster does not share."""
    carried: bool = False
    """True if it carries the Cluster of the run, by another inventory or another engine."""
    others: dict[str, str] = field(default_factory=dict)
    """Other Clusters that it carries, and where each is written."""
    inventories: list[tuple[Records, InventoryRecord]] = field(default_factory=list)
    """Their inventories."""


async def read_claims(api: ObjectClient, records: Records, cluster: str) -> Claims:
    """Read the identity of the cluster. Raises ApiError and UnreachableError."""
    kube_system = await api.read("/api/v1/namespaces/kube-system")
    uid = str(kube_system["metadata"]["uid"]) if kube_system is not None else ""
    namespaces = sorted({records.namespace, *await system_namespaces(api)})
    inventories = await records.others(namespaces)
    others: dict[str, str] = {}
    carried = any(record.cluster == cluster for _, record in inventories)
    for each, record in inventories:
        if is_name(record.cluster) and record.cluster != cluster:
            others.setdefault(record.cluster, f"ConfigMap {each.namespace}/{each.name}")
    for namespace, (name, _) in zip(
        namespaces, await asyncio.gather(*(read_cluster(api, each) for each in namespaces)), strict=True
    ):
        if name not in ("", cluster):
            others.setdefault(name, f"namespace {namespace}")
        carried = carried or name == cluster
    return Claims(uid, carried, others, [each for each in inventories if each[1].cluster != cluster])


def refusal_reason(claims: Claims, record: InventoryRecord, context: str, options: ReconcileOptions) -> str:
    """Return the reason why a run must not write, or an empty string."""
    place, cluster, inventory = place_of(context), options.cluster, options.inventory
    right = f"is this the right cluster? `--context {cluster}` selects another"
    if record.repository and options.repository and record.repository != options.repository:
        return (
            f"inventory {inventory} of {place} belongs to another repository ({_shorten(record.repository)}): {right}; "
            "--take-over adopts the inventory and prunes objects that this repository does not declare"
        )
    if record.cluster not in ("", cluster, *options.carries):
        return (
            f"inventory {inventory} of {place} belongs to cluster {record.cluster}, not to {cluster}: {right}; "
            "--take-over adopts the inventory"
        )
    if record.cluster_uid not in ("", claims.uid):
        return (
            f"inventory {inventory} of {place} was written in another Kubernetes cluster (namespace kube-system had "
            f"UID {record.cluster_uid}, here it has {claims.uid}): was it restored from a backup, or copied? "
            "--take-over adopts it here, and creates again what is missing"
        )
    others = {name: where for name, where in claims.others.items() if name not in options.carries}
    if cluster == record.cluster or claims.carried or not others:
        return ""
    listed = ", ".join(f"{name} ({where})" for name, where in sorted(others.items()))
    carries = " ".join(f"--carries {name}" for name in sorted(others))
    return (
        f"{place} carries cluster {listed}, not {cluster}: {right}; `{carries}` applies {cluster} beside it; "
        f"--take-over replaces it by {cluster}, as after a rename"
    )


async def confirm_claim(
    records: Records, record: InventoryRecord, before: InventoryRecord, options: ReconcileOptions
) -> str:
    """Look again after a first claim, and withdraw it if another run has claimed the cluster at the same time.

    `before`: the record that the claim has replaced. Both runs may withdraw, but never do both apply. Return the
    reason why this one must not, or an empty string.
    """
    found = await read_claims(records.api, records, options.cluster)
    claimed = {other.cluster for _, other in found.inventories} - {"", *options.carries}
    if not claimed:
        return ""
    await records.restore(before, record)
    return (
        f"another run claims this Kubernetes cluster for {', '.join(sorted(claimed))} at the same time: is it the "
        "right cluster? Nothing was applied; run again if it is"
    )


async def take_over(claims: Claims, cluster: str) -> None:
    """Write into the inventories of other Clusters that this one has taken their place."""
    for records, record in claims.inventories:
        await records.write(replace(record, cluster=cluster))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
