"""Views that follow the API server, and know since when it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from avactl.kube.reflector import Reflector


class LiveView:
    """Objects that reflectors keep up to date."""

    def __init__(self) -> None:
        self.silent: float | None = None
        """Since when the API server does not answer, by the monotonic clock; None: it does."""
        self._reflectors: list[Reflector] = []

    async def follow(self, changed: Callable[[], None]) -> None:
        """Watch the API server until cancelled; calls `changed` after each batch, and when a request has failed."""

        def heard() -> None:
            self.silent = None
            changed()

        def failed() -> None:
            if self.silent is None:
                self.silent = monotonic()
            changed()

        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                reflector.changed, reflector.failed = heard, failed
                group.create_task(reflector.run())
