"""A job's state in a ConfigMap, for a master that comes up on another machine without its file.

The ConfigMap has the state without definitions and holders, which workers say again. It is written every few seconds;
until then workers keep their reports. An annotation has the progress, for people: it is read without the state.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from avactl.contracts import names
from avactl.daemons.elastic.state.store import LostStateError
from avactl.kube.client import MERGE, ApiError, Client

KEY = "state"
"""Key in `binaryData`."""
MOST = 900_000
"""Bytes of a state; a ConfigMap has at most 1 MiB."""


class ConfigMapState:
    """The state in one ConfigMap. Requests raise ApiError and UnreachableError."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"
        self._version = ""
        self._written: str | None = None

    async def read(self) -> bytes | None:
        """Return the state, or None if there is none."""
        found = await self._get()
        self._written = _read_state(found)
        if not self._written:
            return None
        try:
            return base64.b64decode(self._written, validate=True)
        except binascii.Error:
            return b""  # no state that can be read

    async def _get(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = await self._client.request("GET", f"{self._collection}/{self._name}")
        except ApiError as error:
            if error.status != 404:
                raise
            found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self._name}}
            found = await self._client.request("POST", self._collection, found)
        self._version = found["metadata"]["resourceVersion"]
        return found

    async def write(self, state: bytes | None, progress: str) -> None:
        """Replace the state (None: leave it) and the progress. Raises LostError if another master has written since."""
        text = self._written if state is None else base64.b64encode(state).decode()
        for attempt in (1, 2):
            metadata = {"resourceVersion": self._version, "annotations": {names.PROGRESS: progress}}
            body = {"metadata": metadata, **({} if state is None else {"binaryData": {KEY: text}})}
            try:
                found = await self._client.request(
                    "PATCH", f"{self._collection}/{self._name}", body, content_type=MERGE
                )
            except ApiError as error:
                if error.status not in (404, 409) or attempt == 2:
                    raise
                # Labels may have changed, or the answer to our last request was lost.
                if _read_state(await self._get()) not in (None, self._written, text):
                    raise LostStateError(
                        f"another master has written the ConfigMap {self._namespace}/{self._name}"
                    ) from None
                continue
            self._version, self._written = found["metadata"]["resourceVersion"], text
            return


def _read_state(found: dict[str, Any]) -> str | None:
    value = (found.get("binaryData") or {}).get(KEY)
    return value if isinstance(value, str) else None
