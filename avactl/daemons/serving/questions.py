"""Queries that decisions need on demand: capacity for another version, and the reasons why pods do not start."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any

from avactl.daemons.serving.revisions import HASH_LABEL, template_of
from avactl.daemons.serving.room import Amounts, MachineRoom, make_machine, missing_capacity, pod_requests
from avactl.daemons.serving.stores import ANSWER, PAGE
from avactl.daemons.serving.view import View
from avactl.kube.client import Client, list_all

_PAGE_QUERY = {"limit": "500"}
_PODS_QUERY = {"limit": str(PAGE), "fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
"""Pods that hold resources. Tenants write pods, of up to 1.5 MB each."""
_CACHE_LIFETIME_S = 15.0
"""Seconds for which the machines, and a lack of capacity, are cached: services may wait for days."""
_MAX_TEXT_LENGTH = 300


class Room:
    """Checks whether there is capacity for another version. All services share one read of the cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._machines: Sequence[MachineRoom] = ()
        self._read = -inf
        self._reading = asyncio.Lock()
        self._known: dict[tuple[str, str], tuple[float, str]] = {}

    async def problem(self, view: View) -> str:
        """Return what is missing for a new version; empty if nothing is. Raises ApiError and UnreachableError."""
        now, version = monotonic(), (str(view.deployment["metadata"]["uid"]), view.state.canary)
        self._known = {each: known for each, known in self._known.items() if now - known[0] < _CACHE_LIFETIME_S}
        known = self._known.get(version)
        if known is not None:
            return known[1]
        found = await self._problem(view)
        if found:
            self._known[version] = monotonic(), found
        return found

    async def _problem(self, view: View) -> str:
        space = view.deployment["metadata"]["namespace"]
        extra = view.config.surge if view.config.traffic == "replicas" else max(1, view.total)
        if extra <= 0:
            return ""

        async def quotas(query: Mapping[str, str]) -> Any:
            return await self._client.page(f"/api/v1/namespaces/{space}/resourcequotas", query)

        return missing_capacity(
            template_of(view.deployment), extra, await list_all(quotas, _PAGE_QUERY), await self.machines()
        )

    async def machines(self) -> Sequence[MachineRoom]:
        """Return all machines with what is free on them. Raises ApiError and UnreachableError."""
        async with self._reading:
            if monotonic() - self._read >= _CACHE_LIFETIME_S:
                self._machines = await self._list()
                self._read = monotonic()
            return self._machines

    async def _list(self) -> list[MachineRoom]:
        async def nodes(query: Mapping[str, str]) -> Any:
            return await self._client.page("/api/v1/nodes", query)

        async def pods(query: Mapping[str, str]) -> Any:
            return await self._client.page("/api/v1/pods", query, most=ANSWER)

        used: defaultdict[str, list[Amounts]] = defaultdict(list)
        for name, asked in await list_all(pods, _PODS_QUERY, lambda page: [_pod_requests(pod) for pod in page]):
            used[name].append(asked)
        return await list_all(
            nodes,
            _PAGE_QUERY,
            lambda page: [make_machine(node, used.get(node["metadata"]["name"], ())) for node in page],
        )


def _pod_requests(pod: Mapping[str, Any]) -> tuple[str, Amounts]:
    return str(pod["spec"].get("nodeName", "")), pod_requests(pod["spec"])


async def not_starting(client: Client, view: View) -> tuple[bool, str]:
    """Return whether pods of the new version, or of its validation Job, wait for capacity, and why they do not start.

    Outside of a rollout, the pods are those of the stable version.

    Raises ApiError and UnreachableError.
    """
    revision = view.of(view.state.canary or view.state.stable)
    if revision is None:
        return False, ""
    space = view.deployment["metadata"]["namespace"]
    job = view.jobs.get(revision.hash)
    if job is not None and not view.state.validated:
        selector = f"batch.kubernetes.io/job-name={job['metadata']['name']}"
    else:
        if revision.failure:
            return "quota" in revision.failure, revision.failure[:_MAX_TEXT_LENGTH]
        own = {**view.deployment["spec"]["selector"].get("matchLabels", {}), HASH_LABEL: revision.hash}
        selector = ",".join(f"{key}={value}" for key, value in own.items())
    page = await client.page(
        f"/api/v1/namespaces/{space}/pods", {"labelSelector": selector, "limit": str(PAGE)}, most=ANSWER
    )
    reasons = [pod_problem(pod) for pod in page["items"] or ()]
    found = [each for each in reasons if each[1]]
    return max(found, key=lambda each: each[0], default=(False, ""))


def pod_problem(pod: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether a pod waits for capacity, and why it is not ready; empty if nothing is known."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return True, str(condition.get("message") or condition.get("reason") or "unschedulable")[:_MAX_TEXT_LENGTH]
        if condition.get("type") == "PodReadyToStartContainers" and condition.get("status") == "False":
            # Why is in the kubelet's events only.
            name = (pod.get("metadata") or {}).get("name")
            return False, f"pod {name} waits for a volume or its network: see `kubectl describe pod`"
    for container in status.get("initContainerStatuses") or ():
        if said := _failure_text(container) or _waiting_text(container):
            return False, said[:_MAX_TEXT_LENGTH]
    for container in status.get("containerStatuses") or ():
        if said := _failure_text(container) or _waiting_text(container) or _probe_text(container):
            return False, said[:_MAX_TEXT_LENGTH]
    return False, ""


def _failure_text(container: Mapping[str, Any]) -> str:
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


def _waiting_text(container: Mapping[str, Any]) -> str:
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") in (None, "", "ContainerCreating", "PodInitializing"):
        return ""
    return f"{container.get('name')}: {waiting['reason']} {waiting.get('message', '')}".strip()


def _probe_text(container: Mapping[str, Any]) -> str:
    if "running" not in (container.get("state") or {}) or container.get("ready"):
        return ""
    probe = "readiness" if container.get("started") else "startup"
    return f"{container.get('name')} runs, and its {probe} probe does not succeed"
