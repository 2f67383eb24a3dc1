"""Pods of a cluster as one watch shows them, and when they were bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import orjson

from avactl.kube.client import ApiError, Client, UnreachableError
from benchmarks.scheduler_perf.templates import Manifest

PATH = "/api/v1/pods"


class Binding(NamedTuple):
    """A pod that was bound."""

    namespace: str
    labels: Mapping[str, str]
    created: float
    """When the watch showed the pod, on the monotonic clock."""
    bound: float


class Pod(NamedTuple):
    """A pod as it is now."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    created: float
    node: str
    attempted: bool
    """True if a scheduler has tried to place it, or gates hold it back."""
    message: str
    """Why it is pending."""


class PodWatch:
    """A watch of all pods; use it in an `async with` block."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pods: dict[str, Pod] = {}
        self.bindings: list[Binding] = []
        self.progress = 0
        """Pods that were bound or attempted for the first time so far."""

    async def __aenter__(self) -> PodWatch:
        version = await self._list()
        self._task = asyncio.create_task(self._follow(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def select(self, namespaces: frozenset[str], labels: Mapping[str, str]) -> Iterator[Pod]:
        """Yield the pods of namespaces that have labels."""
        for pod in self._pods.values():
            if pod.namespace in namespaces and labels.items() <= pod.labels.items():
                yield pod

    async def _list(self) -> str:
        page = await self._client.request("GET", PATH)
        for item in page["items"]:
            self._update("ADDED", item, time.monotonic())
        return str(page["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> None:
        while True:
            try:
                async for lines in self._client.watch(PATH, {"watch": "1", "resourceVersion": version}):
                    now = time.monotonic()
                    for line in lines:
                        event = orjson.loads(line)
                        if event["type"] == "ERROR":
                            raise ApiError(410, "Expired", "the watch has ended")
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._update(event["type"], event["object"], now)
            except UnreachableError:
                continue  # the API server closes watches that do not keep up
            except ApiError:
                version = await self._list()

    def _update(self, kind: str, item: Manifest, now: float) -> None:
        metadata, spec = item["metadata"], item["spec"]
        uid = metadata["uid"]
        before = self._pods.get(uid)
        if kind == "DELETED":
            self._pods.pop(uid, None)
            return
        conditions = item["status"].get("conditions", ())
        scheduled = next((condition for condition in conditions if condition["type"] == "PodScheduled"), None)
        pod = Pod(
            namespace=metadata["namespace"],
            name=metadata["name"],
            labels=metadata.get("labels", {}),
            created=before.created if before else now,
            node=spec.get("nodeName", ""),
            attempted=scheduled is not None,
            message=scheduled.get("message", "") if scheduled is not None else "",
        )
        if pod.node and not (before and before.node):
            self.bindings.append(Binding(pod.namespace, pod.labels, pod.created, now))
            self.progress += 1
        elif pod.attempted and not (before and before.attempted):
            self.progress += 1
        self._pods[uid] = pod
