"""A reverse proxy in front of the API server: counts requests, and answers some of them wrongly."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import aiohttp
import yaml
from aiohttp import web

from tools.background_server import BackgroundServer, abort
from tools.controlplane import ControlPlane

WRITES = ("POST", "PUT", "PATCH", "DELETE")
_HOP = {"host", "transfer-encoding", "connection", "content-length", "content-encoding", "accept-encoding"}


class Ask(NamedTuple):
    """A request on its way."""

    token: str
    """Whose it is."""
    method: str
    path: str
    watch: bool
    body: bytes


class Proxy(BackgroundServer):
    """Runs in a thread of its own for the length of a `with` block; `kubeconfig` leads through it."""

    def __init__(self, plane: ControlPlane, folder: Path, seed: int = 1) -> None:
        super().__init__(max_body=64 * 1024 * 1024)
        self._plane, self._chance = plane, random.Random(seed)
        self.kubeconfig = folder / "proxied"
        self.counts: Counter[str] = Counter()
        self.faults: dict[int, float] = {}
        """HTTP status → the share of requests that get it instead of an answer; 0 breaks the connection, and -1 breaks
        it after the API server has done what was asked, for which -500 answers with a failure. 410 is only for those
        who go on from an old version: watches, and pages of lists."""
        self.page = 0
        """Most objects of a page of a list, whatever was asked for; 0: as asked."""
        self.before: Callable[[Ask], None] = lambda _: None
        """Called with each request before the API server gets it, and `after` once it has answered and nobody knows.
        ConnectionError raised there ends the request."""
        self.after: Callable[[Ask], None] = lambda _: None
        self.stalled = False
        """Whether watches say nothing, and are not closed either."""
        self._watches: dict[int, web.Request] = {}

    def writes(self) -> int:
        """Requests that write; those that only ask (dry runs) are none."""
        return sum(self.counts[verb] for verb in WRITES)

    def user(self, name: str, token: str) -> Path:
        """A kubeconfig of somebody else's that leads through the proxy."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        for entry in config["users"]:
            entry["user"] = {"token": token}
        path = self.kubeconfig.with_name(name)
        path.write_text(yaml.safe_dump(config))
        return path

    def drop_watches(self) -> None:
        """Break all watches."""
        for request in list(self._watches.values()):
            self._loop.call_soon_threadsafe(abort, request)

    def _new_session(self) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cafile=str(self._plane.ca_file))
        connector = aiohttp.TCPConnector(ssl=context, limit=1000)
        return aiohttp.ClientSession(self._plane.url, connector=connector, auto_decompress=True)

    async def _start(self) -> None:
        await super()._start()
        config = yaml.safe_load(self._plane.kubeconfig.read_text())
        for entry in config["clusters"]:
            entry["cluster"] = {"server": self.url}
        self.kubeconfig.write_text(yaml.safe_dump(config))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        lease = "/leases/" in request.path or request.path.endswith("/leases")
        fault = self._fault() if not lease else None
        if fault == 410 and not {"watch", "continue"} & request.query.keys():
            fault = None
        dry = "dryRun" in request.query
        self.counts["dry" if dry else request.method] += 1
        if fault == 0:
            abort(request)
            return web.Response(status=500)
        if fault is not None and fault > 0:
            headers = {"Retry-After": "1"} if fault == 429 and self._chance.random() < 0.2 else {}
            return _failure(fault, headers)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        data = await request.read()
        paged = self.page and "limit" in request.query
        url = str(request.rel_url.update_query(limit=self.page) if paged else request.rel_url)
        watch = "watch" in request.query
        ask = Ask(headers.get("Authorization", "").removeprefix("Bearer "), request.method, request.path, watch, data)
        try:
            self.before(ask)
            async with self._session.request(request.method, url, data=data or None, headers=headers) as answer:
                if fault == -1:
                    abort(request)
                    return web.Response(status=500)
                if fault == -500:
                    return _failure(500, {})
                self.after(ask)
                kept = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                if watch:
                    self._watches[id(request)] = request
                async for chunk in answer.content.iter_any():
                    while watch and self.stalled:
                        await asyncio.sleep(0.05)
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, ConnectionError):
            abort(request)
            return web.Response(status=502)
        finally:
            self._watches.pop(id(request), None)

    def _fault(self) -> int | None:
        at = self._chance.random()
        for status, share in self.faults.items():
            at -= share
            if at < 0:
                return status
        return None


def _failure(status: int, headers: Mapping[str, str]) -> web.Response:
    reason = {409: "Conflict", 410: "Expired", 429: "TooManyRequests"}.get(status, "InternalError")
    body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": "injected"}
    return web.json_response(body, status=status, headers=headers)
