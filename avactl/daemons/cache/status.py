"""The ConfigMap `avactl-cache-status`: the state of tiers and datasets, for the scheduler and `avactl cache status`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from avactl.contracts.names import CACHE_STATUS, CACHE_STATUS_CONFIG, CONFIG_LABEL, MANAGED_BY, MANAGER
from avactl.daemons.cache.config import STATUS_KEY
from avactl.kube.client import MERGE, ApiError, Client

MAX_BYTES = 900_000
"""The API server takes 1 MiB for an object."""
MAX_TEXT = 300
"""Characters of an error message."""


class StatusWriter:
    """Writes the ConfigMap when its content has changed."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._written = b""
        self._writing = asyncio.Lock()

    async def read(self) -> dict[str, Any]:
        """Return what the last leader wrote; {} without it. Raises ApiError and UnreachableError."""
        try:
            found = await self._client.request("GET", f"{self._path}/{CACHE_STATUS}")
        except ApiError as error:
            if error.status == 404:
                return {}
            raise
        return parse_status((found.get("data") or {}).get(STATUS_KEY))

    async def write(self, status: Mapping[str, Any]) -> None:
        """Write a status. Raises ApiError and UnreachableError."""
        async with self._writing:
            text = _bounded(status)
            if text == self._written:
                return
            data = {STATUS_KEY: text.decode()}
            try:
                await self._client.send("PATCH", f"{self._path}/{CACHE_STATUS}", {"data": data}, content_type=MERGE)
            except ApiError as error:
                if error.status != 404:
                    raise
                labels = {CONFIG_LABEL: CACHE_STATUS_CONFIG, MANAGED_BY: MANAGER}
                metadata = {"name": CACHE_STATUS, "namespace": self._namespace, "labels": labels}
                await self._client.send(
                    "POST", self._path,
                    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data},
                )  # fmt: skip
            self._written = text


def parse_status(text: Any) -> dict[str, Any]:
    """Return the content of `status.json`; {} if it is not a status."""
    if not isinstance(text, str) or len(text) > 2 * MAX_BYTES:
        return {}
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) else {}


def _bounded(status: Mapping[str, Any]) -> bytes:
    text = orjson.dumps(status, option=orjson.OPT_SORT_KEYS)
    if len(text) <= MAX_BYTES:
        return text
    # Which node holds what only makes a placement better: it is the first to go.
    datasets = {key: {**value, "holders": {}} for key, value in status["datasets"].items()}
    text = orjson.dumps({**status, "datasets": datasets}, option=orjson.OPT_SORT_KEYS)
    if len(text) <= MAX_BYTES:
        return text
    most = len(datasets) * MAX_BYTES // (2 * len(text))
    kept = dict(sorted(datasets.items(), key=lambda each: each[1]["percent"])[:most])
    return orjson.dumps({**status, "datasets": kept}, option=orjson.OPT_SORT_KEYS)
