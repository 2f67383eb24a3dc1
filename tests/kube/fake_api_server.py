"""API servers that answer as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client

Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    """Yield the address of a server."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[Client]:
    """Yield a client of a server."""
    async with serve(handler) as url, Client(ClusterAccess(url, None, lambda: "")) as client:
        yield client


class OneLease:
    """An API server with one Lease that is held for an hour."""

    def __init__(self, holder: str) -> None:
        spec = {"holderIdentity": holder, "renewTime": "2026-01-01T00:00:00Z", "leaseDurationSeconds": 3600}
        self.lease: dict[str, Any] = {"metadata": {"name": "lease"}, "spec": spec}
        self._taken = False

    def take(self, holder: str) -> None:
        """Give the lease to another, who renews it: a renewal that is under way has read an older version."""
        self.lease["spec"] |= {"holderIdentity": holder, "renewTime": "2026-01-01T00:00:01Z"}
        self._taken = True

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "PUT" and self._taken:
            return web.json_response({"kind": "Status", "reason": "Conflict", "code": 409}, status=409)
        if request.method == "PUT":
            self.lease = await request.json()
        elif request.method == "PATCH":
            self.lease["metadata"] |= (await request.json())["metadata"]
        return web.json_response(self.lease)
