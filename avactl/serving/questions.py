"""Questions that a decision has, which need requests of their own: room, and why pods do not start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avactl.kube.client import Client, list_all
from avactl.serving.revisions import HASH_LABEL, template_of
from avactl.serving.room import missing
from avactl.serving.view import View

_PAGE = {"limit": "500"}
_TEXT = 300


async def room_problem(client: Client, view: View) -> str:
    """Return what is missing for a new version; empty if nothing is. Raises ApiError and UnreachableError."""
    space = view.deployment["metadata"]["namespace"]
    extra = view.config.surge if view.config.traffic == "replicas" else max(1, view.total)
    if extra <= 0:
        return ""

    async def listed(path: str) -> list[Any]:
        return await list_all(lambda query: client.page(path, query), _PAGE)

    quotas = await listed(f"/api/v1/namespaces/{space}/resourcequotas")
    return missing(
        template_of(view.deployment), extra, quotas, await listed("/api/v1/nodes"), await listed("/api/v1/pods")
    )


async def not_starting(client: Client, view: View) -> tuple[bool, str]:
    """Return whether pods of the new version, or of its validation Job, wait for capacity, and why they do not start.

    Raises ApiError and UnreachableError.
    """
    revision = view.of(view.state.canary)
    if revision is None:
        return False, ""
    space = view.deployment["metadata"]["namespace"]
    job = view.jobs.get(revision.hash)
    if job is not None and not view.state.validated:
        selector = f"batch.kubernetes.io/job-name={job['metadata']['name']}"
    else:
        if revision.failure:
            return "quota" in revision.failure, revision.failure[:_TEXT]
        own = {**view.deployment["spec"]["selector"].get("matchLabels", {}), HASH_LABEL: revision.hash}
        selector = ",".join(f"{key}={value}" for key, value in own.items())
    page = await client.page(f"/api/v1/namespaces/{space}/pods", {"labelSelector": selector, "limit": "50"})
    reasons = [pod_problem(pod) for pod in page["items"] or ()]
    found = [each for each in reasons if each[1]]
    return max(found, key=lambda each: each[0], default=(False, ""))


def pod_problem(pod: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether a pod waits for capacity, and why it is not ready; empty if nothing is known."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return True, str(condition.get("message") or condition.get("reason") or "unschedulable")[:_TEXT]
        if condition.get("type") == "PodReadyToStartContainers" and condition.get("status") == "False":
            # Why is in the kubelet's events only.
            name = (pod.get("metadata") or {}).get("name")
            return False, f"pod {name} waits for a volume or its network: see `kubectl describe pod`"
    for container in status.get("initContainerStatuses") or ():
        if said := _ended(container) or _waiting(container):
            return False, said[:_TEXT]
    for container in status.get("containerStatuses") or ():
        if said := _ended(container) or _waiting(container) or _probed(container):
            return False, said[:_TEXT]
    return False, ""


def _ended(container: Mapping[str, Any]) -> str:
    """Tell how a container failed, of which the pod waits for another start."""
    if container.get("ready"):
        return ""
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        ended = state.get("terminated") or {}
        if ended.get("exitCode"):
            # Of what it said, the last line: the policy for messages keeps the end of the log.
            lines = str(ended.get("message") or "").strip().splitlines()
            said = f": {lines[-1]}" if lines else ""
            count = container.get("restartCount") or 0
            times = f", restarted {'once' if count == 1 else f'{count} times'}" if count else ""
            return f"{container.get('name')} ended with exit code {ended['exitCode']}{times}{said}"
    return ""


def _waiting(container: Mapping[str, Any]) -> str:
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") in (None, "", "ContainerCreating", "PodInitializing"):
        return ""
    return f"{container.get('name')}: {waiting['reason']} {waiting.get('message', '')}".strip()


def _probed(container: Mapping[str, Any]) -> str:
    if "running" not in (container.get("state") or {}) or container.get("ready"):
        return ""
    probe = "readiness" if container.get("started") else "startup"
    return f"{container.get('name')} runs, and its {probe} probe does not succeed"
