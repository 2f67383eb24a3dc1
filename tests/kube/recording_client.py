"""A client that sends nothing."""

from __future__ import annotations

from typing import Any

from avactl.kube.access import ClusterAccess
from avactl.kube.client import JSON, Client


class RecordingClient(Client):
    """Remembers what is sent, and raises the error of a method."""

    def __init__(self, **errors: Exception) -> None:
        super().__init__(ClusterAccess("http://nobody", None, lambda: ""))
        self.errors = errors
        self.sent: list[tuple[str, str, Any]] = []

    async def send(self, method: str, path: str, body: Any, *, content_type: str = JSON) -> None:
        self.sent.append((method, path, body))
        if method in self.errors:
            raise self.errors[method]
