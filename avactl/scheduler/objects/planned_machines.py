"""Machines that an autoscaler has ordered, by Karpenter's NodeClaims and the status of Cluster Autoscaler.

Both are written by administrators' controllers only: NodeClaims belong to no namespace, and the status is in
`kube-system`. Events and conditions of pods say as much of a single pod, but tenants can write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from avactl.contracts import names
from avactl.kube.timestamps import unix_time_or

MAX_STATUS_BYTES = 1 << 20
"""Maximum size of the status that is read."""
MAX_GROUPS = 1000
"""Maximum number of node groups that are read from it."""


class PlannedMachine(NamedTuple):
    """A machine that pods cannot use yet."""

    name: str
    pool: str
    labels: Mapping[str, str]
    """Labels that it will have beside those of its pool."""
    ordered: float | None
    """Unix time at which it was ordered; None: it may be ordered soon."""


class NodeGroupStatus(NamedTuple):
    """A node group of Cluster Autoscaler."""

    coming: int
    """Machines that it has ordered and that are not ready."""
    since: float
    """Unix time since when it waits for machines."""
    backing_off: bool
    """True if it orders none for a while, because machines did not come."""


def read_node_claim(item: Mapping[str, Any], now: float) -> PlannedMachine | None:
    """Return the machine of a NodeClaim of Karpenter; None once pods can use it, and if it is to be deleted.

    Sources: pkg/apis/v1/nodeclaim_status.go and pkg/controllers/nodeclaim/lifecycle of kubernetes-sigs/karpenter.
    """
    metadata = item["metadata"]
    conditions = (item.get("status") or {}).get("conditions") or ()
    ready = any(each.get("type") == "Initialized" and each.get("status") == "True" for each in conditions)
    labels = metadata.get("labels") or {}
    pool = labels.get(names.POOL_LABEL, "")
    if ready or not pool or metadata.get("deletionTimestamp"):
        return None
    ordered = unix_time_or(now, str(metadata.get("creationTimestamp", "")))
    return PlannedMachine(f"NodeClaim {metadata['name']}", pool, labels, ordered)


def read_autoscaler_status(item: Mapping[str, Any], now: float) -> dict[str, NodeGroupStatus]:
    """Return the node groups of the status that Cluster Autoscaler 1.30 and later writes; none if it is unreadable.

    Source: clusterstate/api/types.go and clusterstate/clusterstate.go of kubernetes/autoscaler.
    """
    import yaml  # most clusters have no such status

    text = (item.get("data") or {}).get("status")
    if not isinstance(text, str) or len(text) > MAX_STATUS_BYTES:
        return {}
    try:
        # It makes strings, lists and maps, and nothing else.
        document = getattr(yaml, "CBaseLoader", yaml.BaseLoader)(text).get_single_data()
    except (yaml.YAMLError, RecursionError):
        return {}
    groups = document.get("nodeGroups") if isinstance(document, dict) else None
    return {
        name: _read_group(group, now)
        for group in (groups[:MAX_GROUPS] if isinstance(groups, list) else ())
        if isinstance(group, dict) and isinstance(name := group.get("name"), str)
    }


def _read_group(group: Mapping[str, Any], now: float) -> NodeGroupStatus:
    health, scale_up = _part(group, "health"), _part(group, "scaleUp")
    counts = _part(health, "nodeCounts")
    registered = _part(counts, "registered")
    status, since = scale_up.get("status"), scale_up.get("lastTransitionTime")
    # Without its GPUs, a machine is registered and not ready; an order is done then.
    coming = _count(_part(registered, "unready"), "resourceUnready")
    if status == "InProgress":
        # Machines that are being deleted are registered, and not part of the target.
        lasting = _count(registered, "total") - _count(registered, "beingDeleted")
        absent = _count(health, "cloudProviderTarget") - lasting - _count(counts, "longUnregistered")
        coming += max(0, absent) + _count(registered, "notStarted")
    return NodeGroupStatus(coming, min(now, unix_time_or(now, str(since))), status == "Backoff")


def _part(whole: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = whole.get(key)
    return found if isinstance(found, dict) else {}


def _count(counts: Mapping[str, Any], key: str) -> int:
    text = counts.get(key)
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 7 else 0
