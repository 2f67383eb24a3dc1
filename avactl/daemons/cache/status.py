"""The ConfigMap `avactl-cache-status`: the state of tiers and datasets, for the scheduler and `avactl cache status`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import orjson

from avactl.contracts.cache import STATUS_KEY, CacheStatus, DatasetStatus
from avactl.contracts.document import DocumentError, DocumentTooLargeError, dump, load
from avactl.contracts.names import CACHE_STATUS, CACHE_STATUS_CONFIG, CONFIG_LABEL, MANAGED_BY, MANAGER
from avactl.kube import logs
from avactl.kube.client import MERGE, ApiError, Client

MAX_TEXT = 300
"""Characters of an error message."""


class StatusWriter:
    """Writes the ConfigMap when its content has changed."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._written = ""
        self._writing = asyncio.Lock()

    async def read(self) -> CacheStatus:
        """Return what the last leader wrote; an empty status if there is none, or if it is damaged.

        Raises ApiError and UnreachableError.
        """
        try:
            found = await self._client.request("GET", f"{self._path}/{CACHE_STATUS}")
        except ApiError as error:
            if error.status == 404:
                return CacheStatus()
            raise
        try:
            return load(CacheStatus, (found.get("data") or {}).get(STATUS_KEY))
        except DocumentError as error:
            logs.warn("status not read", error=str(error))
            return CacheStatus()

    async def write(self, status: CacheStatus) -> None:
        """Write a status. Raises ApiError and UnreachableError."""
        async with self._writing:
            text = bound_status(status)
            if text == self._written:
                return
            data = {STATUS_KEY: text}
            try:
                await self._client.send("PATCH", f"{self._path}/{CACHE_STATUS}", {"data": data}, content_type=MERGE)
            except ApiError as error:
                if error.status != 404:
                    raise
                labels = {CONFIG_LABEL: CACHE_STATUS_CONFIG, MANAGED_BY: MANAGER}
                metadata = {"name": CACHE_STATUS, "namespace": self._namespace, "labels": labels}
                await self._client.send(
                    "POST",
                    self._path,
                    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data},
                )
            self._written = text


def bound_status(status: CacheStatus) -> str:
    """Return the text of a status; if it is too long, without what matters least."""
    try:
        return dump(status)
    except DocumentTooLargeError:
        # Which node holds what only makes a placement better: it is the first to go.
        bare = {key: value.replace(holders={}) for key, value in status.datasets.items()}
        budget = CacheStatus.MAX_BYTES - len(dump(status.replace(datasets={})).encode())
        return dump(status.replace(datasets=keep_least_cached(bare, _count_fitting(bare, budget))))


def _count_fitting(datasets: Mapping[str, DatasetStatus], budget: int) -> int:
    """Return how many of the least cached datasets fit into some bytes."""
    count = 0
    for key, value in keep_least_cached(datasets, len(datasets)).items():
        budget -= (
            len(orjson.dumps({key: value.model_dump(by_alias=True, exclude_unset=True)})) - 1
        )  # one brace is the comma
        if budget < 0:
            break
        count += 1
    return count


def keep_least_cached(datasets: Mapping[str, DatasetStatus], count: int) -> Mapping[str, DatasetStatus]:
    """Return the `count` datasets of which the smallest part is cached: they matter most to those who wait."""
    return dict(sorted(datasets.items(), key=lambda each: each[1].percent)[:count])
