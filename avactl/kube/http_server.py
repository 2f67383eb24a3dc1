"""Probes and metrics over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from avactl.kube.listen import ListenError, split_address


def _is_of_server(record: logging.LogRecord) -> bool:
    """Return False for a malformed request: it is answered by 400, and its traceback tells nothing of the server."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


_logger = logging.getLogger("avactl.http")
_logger.addFilter(_is_of_server)


async def serve(
    listen: str,
    alive: Callable[[], bool],
    ready: Callable[[], bool],
    collect: Callable[[], Awaitable[None] | None],
    registry: CollectorRegistry,
) -> web.AppRunner:
    """Serve `/livez`, `/healthz`, `/readyz` and `/metrics` at `HOST:PORT`. Raises ListenError.

    `collect` updates the gauges, at once or, for large clusters, in steps.
    """

    def probe(good: Callable[[], bool]) -> Callable[[web.Request], object]:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(text="ok\n") if good() else web.Response(text="not yet\n", status=503)

        return answer

    async def exposition(_: web.Request) -> web.Response:
        collecting = collect()
        if collecting is not None:
            await collecting
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/livez", probe(alive))  # type: ignore[arg-type]
    app.router.add_get("/healthz", probe(alive))  # type: ignore[arg-type]
    app.router.add_get("/readyz", probe(ready))  # type: ignore[arg-type]
    app.router.add_get("/metrics", exposition)
    return await start(app, listen)


async def start(app: web.Application, listen: str) -> web.AppRunner:
    """Serve an application at `HOST:PORT`. Raises ListenError."""
    runner = web.AppRunner(app, access_log=None, logger=_logger)
    await runner.setup()
    host, port = split_address(listen)
    try:
        await web.TCPSite(runner, host or None, port).start()
    except (OSError, OverflowError) as error:
        await runner.cleanup()
        raise ListenError(str(error).lower()) from None
    return runner
