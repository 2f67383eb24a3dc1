"""Conditions of the daemon's own node, with an Event for each change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from avactl.base.object_identity import object_reference
from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts.gpu_faults import MAX_MESSAGE_LENGTH
from avactl.kube import logs
from avactl.kube.client import STRATEGIC, ApiError, Client, UnreachableError
from avactl.kube.events import EventRecorder
from avactl.kube.timestamps import timestamp

_RETRY_RANGE_S = (1.0, 60.0)
"""Shortest and longest pause after a failed write."""
_MAX_NOTE_LENGTH = 1024
"""Longest note of an Event, in characters."""


class ConditionValue(NamedTuple):
    """Status, reason and message of a condition."""

    status: str
    reason: str
    message: str


async def check_regularly(check: Callable[[], Awaitable[None]], interval: float, node: str) -> None:
    """Run a check that writes a condition, with pauses of about `interval` seconds, until cancelled.

    A failed request to the API server is repeated sooner.
    """
    wait = _RETRY_RANGE_S[0]
    while True:
        try:
            await check()
        except (ApiError, UnreachableError) as error:
            logs.warn("condition not written", node=node, error=str(error))
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311
            wait = min(2 * wait, _RETRY_RANGE_S[1])
            continue
        wait = _RETRY_RANGE_S[0]
        # Spread the checks of machines that started together.
        await asyncio.sleep(interval * random.uniform(0.9, 1.1))  # noqa: S311


class NodeCondition:
    """One condition of a node. The API server has what it was before: nothing is lost when the daemon is killed."""

    def __init__(self, client: Client, events: EventRecorder, node: str, kind: str) -> None:
        self._client, self._events, self._node, self._kind = client, events, node, kind
        self._path = f"/api/v1/nodes/{node}/status"

    async def read(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the node, and the condition that it has. Raises ApiError, UnreachableError."""
        # A patch that changes nothing returns the node: the right to read nodes is not needed.
        node: dict[str, Any] = await self._client.request("PATCH", self._path, {}, content_type=STRATEGIC)
        conditions = (node.get("status") or {}).get("conditions") or ()
        return node, next((each for each in conditions if each["type"] == self._kind), None)

    async def write(self, value: ConditionValue) -> None:
        """Write the condition, and an Event if its status has changed. Raises ApiError, UnreachableError."""
        node, before = await self.read()
        now = timestamp()
        same = before is not None and before["status"] == value.status
        # A command's output is untrusted text too.
        message = visible_text(shorten_middle(value.message, MAX_MESSAGE_LENGTH))
        condition = {
            "type": self._kind,
            "status": value.status,
            "reason": value.reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": (before or {}).get("lastTransitionTime") if same else now,
        }
        await self._client.send("PATCH", self._path, {"status": {"conditions": [condition]}}, content_type=STRATEGIC)
        if same:
            return
        logs.info("condition changed", node=self._node, condition=self._kind, status=value.status, said=message)
        if before is not None or value.status != "True":
            regarding, warning = object_reference("v1", "Node", node["metadata"]), value.status != "True"
            await self._events.record(
                regarding, value.reason, shorten_middle(message, _MAX_NOTE_LENGTH), warning=warning
            )
