"""Queries that decisions need on demand: capacity for another version, and the reasons why pods do not start."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any

from avactl.daemons.serving.revisions import template_of
from avactl.daemons.serving.room import Amounts, MachineRoom, make_machine, missing_capacity, pod_requests
from avactl.daemons.serving.stores import ANSWER, PAGE
from avactl.daemons.serving.view import View
from avactl.kube.client import Client, list_all
from avactl.kube.pod_diagnosis import PodDiagnosis, PodStage, summarize_pods

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


async def diagnose_version(client: Client, view: View) -> PodDiagnosis:
    """Return what the pods of the new version, or of its validation Job, wait for.

    Outside of a rollout, the pods are those of the stable version.

    Raises ApiError and UnreachableError.
    """
    revision = view.of(view.state.canary or view.state.stable)
    if revision is None:
        return PodDiagnosis(PodStage.starting)
    space = view.deployment["metadata"]["namespace"]
    job = view.jobs.get(revision.hash)
    if job is not None and not view.state.validated:
        selector = f"batch.kubernetes.io/job-name={job['metadata']['name']}"
    else:
        if revision.failure:
            stage = PodStage.unscheduled if "quota" in revision.failure else PodStage.failing
            return PodDiagnosis(stage, revision.failure[:_MAX_TEXT_LENGTH])
        selector = ",".join(f"{key}={value}" for key, value in view.all_pods(revision.hash).items())
    page = await client.page(
        f"/api/v1/namespaces/{space}/pods", {"labelSelector": selector, "limit": str(PAGE)}, most=ANSWER
    )
    return summarize_pods(page["items"] or ())
