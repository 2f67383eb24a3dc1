"""The proxy in front of the store: counts requests and bytes; delays, refuses, cuts and corrupts a share of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from yarl import URL

from tools.background_server import BackgroundServer, abort

CHUNK = 256 * 1024
_HOP = {"connection", "expect", "keep-alive", "transfer-encoding", "upgrade"}


@dataclass(frozen=True)
class Faults:
    """Faults of a store. Shares are of requests, from 0 to 1, and independent of each other."""

    latency: float = 0.0
    """Seconds before an answer begins."""
    rate: int = 0
    """Bytes a second of one connection, in either direction; 0 is no limit."""
    errors: float = 0.0
    """Share answered with status 500; the store has done half of them."""
    hangs: float = 0.0
    """Share that gets no answer for `patience` seconds, then a cut connection."""
    patience: float = 60.0
    cuts: float = 0.0
    """Share whose connection breaks: before the store gets the request, after it has done it, or within a body."""
    corrupt: float = 0.0
    """Share of bodies, of uploads and downloads, with one wrong byte."""
    methods: frozenset[str] = frozenset({"DELETE", "GET", "HEAD", "POST", "PUT"})
    """Requests that errors, hangs, cuts and corruption are for."""


@dataclass
class Traffic:
    """What passed the proxy since the last `reset`."""

    requests: Counter[str] = field(default_factory=Counter)
    """Requests by method; those that list a bucket count as LIST."""
    faults: Counter[str] = field(default_factory=Counter)
    """Injected faults: `error`, `hang`, `cut`, `corrupt`."""
    sent: int = 0
    """Bytes of objects to clients."""
    received: int = 0
    """Bytes of bodies from clients."""


class Proxy(BackgroundServer):
    """Runs in a thread of its own for the length of a `with` block."""

    def __init__(self, origin: str, seed: int = 1) -> None:
        super().__init__(auto_decompress=False)
        self._origin, self._chance = origin, random.Random(seed)
        self.faults = Faults()
        """May be replaced at any time; requests under way keep those they began with."""
        self.traffic = Traffic()

    def _new_session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None)
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, timeout=timeout)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        faults, traffic = self.faults, self.traffic
        traffic.requests[_kind(request)] += 1
        faulty = request.method in faults.methods
        body = await request.read()
        traffic.received += len(body)
        await asyncio.sleep(faults.latency + (len(body) / faults.rate if faults.rate else 0))
        if faulty and self._hit(faults.hangs, "hang"):
            await asyncio.sleep(faults.patience)
            return _abort(request)
        error = faulty and self._hit(faults.errors, "error")
        cut = faulty and self._hit(faults.cuts, "cut")
        after = self._chance.random() < 0.5
        if (error or cut) and not after:
            return _failure() if error else _abort(request)
        if body and faulty and self._hit(faults.corrupt, "corrupt"):
            body = _flipped(body, len(body) // 2)
        try:
            headers = [(key, value) for key, value in request.headers.items() if key.lower() not in _HOP]
            url = URL(self._origin + request.raw_path, encoded=True)
            async with self._session.request(
                request.method,
                url,
                data=body or None,
                headers=headers,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
            ) as answer:
                if error:
                    return _failure()
                if cut and (request.method != "GET" or self._chance.random() < 0.5):
                    return _abort(request)
                return await self._pass(request, answer, faults, cut)
        except (aiohttp.ClientError, ConnectionError):
            return _abort(request)

    async def _pass(
        self, request: web.Request, answer: aiohttp.ClientResponse, faults: Faults, cut: bool
    ) -> web.StreamResponse:
        headers = [(key, value) for key, value in answer.headers.items() if key.lower() not in _HOP]
        response = web.StreamResponse(status=answer.status)
        response.headers.extend(headers)
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        length = int(answer.headers.get("Content-Length", 0))
        corrupt = length > 0 and request.method in faults.methods and _is_object(request) and request.method == "GET"
        wrong = length // 2 if corrupt and self._hit(faults.corrupt, "corrupt") else -1
        at = 0
        async for chunk in _paced(answer, faults.rate):
            if at <= wrong < at + len(chunk):
                chunk = _flipped(chunk, wrong - at)
            at += len(chunk)
            if cut and at > length // 2:
                return _abort(request)
            await response.write(chunk)
            if _is_object(request) and request.method == "GET":
                self.traffic.sent += len(chunk)
        await response.write_eof()
        return response

    def _hit(self, share: float, name: str) -> bool:
        hit = self._chance.random() < share
        self.traffic.faults[name] += hit
        return hit


async def _paced(answer: aiohttp.ClientResponse, rate: int) -> AsyncIterator[bytes]:
    """Yield the body, at most `rate` bytes a second."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    async for chunk in answer.content.iter_chunked(CHUNK):
        yield chunk
        if rate:
            due += len(chunk) / rate
            # Sleeps of less than a millisecond take longer than asked.
            if (wait := due - loop.time()) > 0.001:
                await asyncio.sleep(wait)


def _is_object(request: web.Request) -> bool:
    """Return True if the request is for an object and not for a bucket."""
    return "/" in request.path.strip("/")


def _kind(request: web.Request) -> str:
    return request.method if _is_object(request) or request.method != "GET" else "LIST"


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _failure() -> web.Response:
    text = "<Error><Code>InternalError</Code><Message>injected</Message></Error>"
    return web.Response(status=500, text=text, content_type="application/xml")


def _abort(request: web.Request) -> web.Response:
    abort(request)
    return web.Response(status=500)
