"""An HTTP server in a thread of its own, for the proxies of tests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

import aiohttp
from aiohttp import web

from tools.waiting import patience


class BackgroundServer:
    """Serves on loopback for the length of a `with` block, with a client session for what it forwards.

    A subclass gives the session and answers the requests.
    """

    url: str
    """Address of the server, once it runs."""

    def __init__(self, max_body: int = 0, **runner: Any) -> None:
        """`max_body`: most bytes of a request; 0: no limit. `runner`: further arguments of aiohttp's AppRunner."""
        self._max_body, self._runner_options = max_body, runner
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(patience())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(patience())

    def _new_session(self) -> aiohttp.ClientSession:
        raise NotImplementedError

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.run_until_complete(self._session.close())

    async def _start(self) -> None:
        self._session = self._new_session()
        app = web.Application(client_max_size=self._max_body)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True, **self._runner_options
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"


def abort(request: web.Request) -> None:
    """Break the connection; a client that was killed has done so already."""
    if request.transport is not None:
        request.transport.abort()
