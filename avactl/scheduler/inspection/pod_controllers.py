"""Controllers that have not created all of their pods, and why: Jobs, ReplicaSets, StatefulSets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from avactl.contracts import names
from avactl.kube.client import ApiError, Client

_PATHS = {"Job": "batch/v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1"}
_INSTANCE = "app.kubernetes.io/instance"


class PodController(NamedTuple):
    """Controller that has not created all of its pods."""

    name: str
    """Kind and name: `Job train-worker`."""
    state: str
    """`refused`, `stopped`, `ended`, or `new`."""
    since: str
    """Creation time, or the time of the first rejection."""
    words: str


async def short(client: Client, namespace: str, name: str) -> list[PodController]:
    """Return the controllers of a job that lack pods, and why. Objects hidden by RBAC are skipped."""
    found = []
    for kind, version in _PATHS.items():
        for item in await _list(client, f"/apis/{version}/namespaces/{namespace}/{kind.lower()}s"):
            if name in _names(item):
                maker = await _maker(client, kind, item)
                if maker is not None:
                    found.append(maker)
    return found


async def _list(client: Client, path: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    try:
        answer = await client.request("GET", path, query=query)
    except ApiError as error:
        if error.status not in (401, 403, 404):
            raise
        return []
    items: list[dict[str, Any]] = answer["items"] or []
    return items


def _names(item: Mapping[str, Any]) -> Iterable[str]:
    """Return the names by which users may refer to it."""
    template = item["spec"]["template"].get("metadata") or {}
    labels = {**(item["metadata"].get("labels") or {}), **(template.get("labels") or {})}
    return item["metadata"]["name"], labels.get(_INSTANCE, ""), labels.get(names.GANG_LABEL, "")


async def _maker(client: Client, kind: str, item: Mapping[str, Any]) -> PodController | None:
    spec, status, metadata = item["spec"], item.get("status") or {}, item["metadata"]
    name, since = f"{kind} {metadata['name']}", metadata["creationTimestamp"]
    if kind == "Job":
        for condition in status.get("conditions") or ():
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                told = condition.get("message") or condition["type"].lower()
                return PodController(name, "ended", condition.get("lastTransitionTime") or since, told)
        if spec.get("suspend"):
            return PodController(name, "stopped", since, "it is suspended: its pods are created once it is resumed")
        done = status.get("succeeded") or 0
        most = spec.get("parallelism", 1)
        wanted = min(most, (spec.get("completions") or most) - done)
        there = (status.get("active") or 0) + (status.get("terminating") or 0)
    else:
        wanted, there = spec.get("replicas", 1), status.get("replicas") or 0
        if not wanted:
            return PodController(name, "stopped", since, "it is scaled to 0 pods")
    if there >= wanted:
        return None
    since, refused = await _refused(client, kind, item)
    if refused:
        return PodController(name, "refused", since, f"{wanted - there} of {wanted} pods were not created: {refused}")
    return PodController(
        name, "new", metadata["creationTimestamp"], f"{wanted - there} of {wanted} pods were not created yet"
    )


async def _refused(client: Client, kind: str, item: Mapping[str, Any]) -> tuple[str, str]:
    """Return since when the API server refuses its pods, and the controller's newest message about it."""
    metadata = item["metadata"]
    for condition in (item.get("status") or {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return condition.get("lastTransitionTime") or metadata["creationTimestamp"], condition.get("message") or ""
    selector = f"reason=FailedCreate,involvedObject.kind={kind},involvedObject.uid={metadata['uid']}"
    path = f"/api/v1/namespaces/{metadata['namespace']}/events"
    events = await _list(client, path, {"fieldSelector": selector})
    if not events:
        return "", ""
    last = max(events, key=_when)
    since = min(filter(None, map(_first, events)), default=metadata["creationTimestamp"])
    return since, str(last.get("message") or "")


def _when(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def _first(event: Mapping[str, Any]) -> str:
    return str(event.get("firstTimestamp") or event["metadata"]["creationTimestamp"])
