"""Capture a snapshot by listing objects."""

from __future__ import annotations

import asyncio

from avactl.change.plan.snapshot.loader import (
    RESOURCES,
    CaptureError,
    Taken,
    strip_cache_status,
    strip_config,
    strip_pod_group,
    write,
)
from avactl.contracts import names
from avactl.contracts.document import DocumentError, load
from avactl.contracts.scheduling import PlacementPolicy
from avactl.kube.client import ApiError, Client, list_all
from avactl.kube.timestamps import timestamp
from avactl.program.manifest import Body

POD_GROUPS = "/apis/scheduling.k8s.io/v1beta1/podgroups"
_PAGE_SIZE = "2000"
"""Objects per page of a list."""
_TIMEOUT_S = 60.0
"""Timeout of one page in seconds."""


async def take_snapshot(client: Client, namespace: str) -> bytes:
    """Return a snapshot of the cluster whose daemons run in `namespace`.

    Raises CaptureError, and UnreachableError if the API server does not answer.
    """
    policy = await _read_policy(client, namespace)
    lists = await asyncio.gather(
        *(_list(client, path, strip, optional) for _, path, strip, optional in RESOURCES),
        _list(client, f"/api/v1/namespaces/{namespace}/configmaps", strip_config, False, names.CONFIG_LABEL),
    )
    objects = dict(zip([name for name, *_ in RESOURCES] + ["configmaps"], lists, strict=True))
    if any("schedulingGroup" in pod["spec"] for pod in objects["pods"]):
        # Their pods may be gangs. Where there are none, nobody needs the right to read them.
        objects["podgroups"] = await _list(client, POD_GROUPS, strip_pod_group, True)
    if policy.cache_daemon:
        objects["configmaps"] += await _read_cache_status(client)
    return write(policy, objects, timestamp())


async def _read_policy(client: Client, namespace: str) -> PlacementPolicy:
    path = f"/api/v1/namespaces/{namespace}/configmaps/{names.POLICY}"
    try:
        item = await client.request("GET", path)
        return load(PlacementPolicy, (item.get("data") or {}).get(names.POLICY_KEY))
    except ApiError as error:
        if error.status == 404:
            hint = "`--namespace` names the Cluster's `systemNamespace`; the cluster's objects must have been applied"
            message = f"ConfigMap {namespace}/{names.POLICY} does not exist: avactl does not manage this cluster"
            raise CaptureError(message, hint) from None
        raise _explain_refusal(error, f"ConfigMap {namespace}/{names.POLICY}") from None
    except DocumentError as error:
        message = f"ConfigMap {namespace}/{names.POLICY} has no placement policy in {names.POLICY_KEY}: {error}"
        raise CaptureError(message) from None


async def _read_cache_status(client: Client) -> list[Body]:
    """Return the cache daemon's status, if it has written one."""
    path = f"/api/v1/namespaces/{names.CACHE_NAMESPACE}/configmaps/{names.CACHE_STATUS}"
    try:
        status = strip_cache_status(await client.request("GET", path))
    except ApiError as error:
        if error.status == 404:
            return []
        raise _explain_refusal(error, f"ConfigMap {names.CACHE_NAMESPACE}/{names.CACHE_STATUS}") from None
    return [] if status is None else [status]


async def _list(client: Client, path: str, strip: Taken, optional: bool, labelled: str = "") -> list[Body]:
    """List a resource page by page, stripping each object at once to bound memory."""

    def stripped(items: list[Body]) -> list[Body]:
        return [kept for item in items if (kept := strip(item)) is not None]

    query = {"limit": _PAGE_SIZE, **({"labelSelector": labelled} if labelled else {})}
    try:
        return await list_all(
            lambda asked: client.request("GET", path, query=asked, timeout=_TIMEOUT_S), query, stripped
        )
    except ApiError as error:
        if optional and error.status == 404:
            return []
        raise _explain_refusal(error, path.rpartition("/")[2]) from None


def _explain_refusal(error: ApiError, what: str) -> CaptureError:
    if error.status in (401, 403):
        who = "is not known to the API server" if error.status == 401 else f"is not permitted to list {what}"
        return CaptureError(
            f"this user {who}: {error}", "docs/plan.md has the ClusterRole that `avactl snapshot` needs"
        )
    return CaptureError(f"listing {what} failed: {error}")
