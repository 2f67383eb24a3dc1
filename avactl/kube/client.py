"""Kubernetes API client based on plain dicts: requests and watches over one connection pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import aiohttp
import orjson
from multidict import CIMultiDict, MultiMapping

from avactl.kube.access import AccessError, ClusterAccess
from avactl.kube.server_clock import ServerClock

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Media type of a list of objects without anything but their metadata."""
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Media type of a watch of the same."""

_TIMEOUT_S = 30.0
"""Seconds for a request; watches have none."""
_SILENCE_S = 100.0
"""Seconds without an event after which a watch is restarted, because the connection may be dead."""
_PAGE = 500
"""Objects of a page, of a list that was asked for as a whole and is too long for that."""
_MAX_RESPONSE_BYTES = 1 << 30
"""Longest response: a list of 100,000 pods in one page has half of it."""
_MAX_EVENT_BYTES = 16 << 20
"""Longest event of a watch: etcd takes objects of 1.5 MiB, and JSON may need several times their size."""


class Response(NamedTuple):
    """A response of the API server."""

    status: int
    headers: MultiMapping[str]
    content: bytes

    def parse(self) -> Any:
        """Return the object. Raises ApiError if it is none."""
        try:
            return orjson.loads(self.content)
        except orjson.JSONDecodeError:
            raise ApiError(self.status, "NotJson", "the server is not a Kubernetes API server") from None


class ApiError(Exception):
    """The API server rejected a request; `status` is the HTTP status, `reason` the machine-readable reason."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def forbidden(self) -> bool:
        """True if the account lacks the permission."""
        return self.status == 403

    @property
    def expired(self) -> bool:
        """True if etcd was compacted past the revision from which a watch or a list was to go on."""
        return self.status == 410 or self.reason in ("Expired", "Gone")


class UnreachableError(Exception):
    """The API server did not respond; the request may or may not have succeeded."""


class UntrustedError(UnreachableError):
    """The server certificate is not trusted."""


class CredentialsError(UnreachableError):
    """The program that a kubeconfig names did not return credentials; `hint` is the remedy."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class SilenceError(UnreachableError):
    """A watch timed out without events: nothing happened, or the connection is dead."""


class Rate:
    """A token bucket as in client-go: `qps` requests per second, bursts of `burst`; 0 for no limit."""

    def __init__(self, qps: float, burst: float) -> None:
        self._qps, self._burst = qps, burst
        self._tokens, self._then = burst, time.monotonic()

    async def take(self) -> None:
        """Wait until a request is allowed."""
        if not self._qps:
            return
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._then) * self._qps) - 1
        self._then = now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._qps)


class Client:
    """Requests to one API server. Use it in an `async with` block."""

    def __init__(
        self, access: ClusterAccess, agent: str = "avactl", connections: int = 128, compressed: bool = True
    ) -> None:
        """`agent` is the user agent, by which the API server's audit log and `managedFields` tell programs apart.

        With `compressed`, large lists are sent with gzip: faster over slow links, slower close to the API server.
        """
        self._agent = agent
        self._encoding = "gzip, deflate" if compressed else "identity"
        self._access = access
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self.clock = ServerClock()

    @property
    def context(self) -> str:
        """Name of the kubeconfig's context; empty for the account of a pod."""
        return self._access.name

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(
            limit=self._connections, ssl=self._access.context or True, keepalive_timeout=60.0, use_dns_cache=True
        )
        jar = aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(
            self._access.url, connector=connector, trust_env=False, cookie_jar=jar, proxy=self._access.proxy or None
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def _head(self, content_type: str, accept: str = JSON) -> Mapping[str, str]:
        found = {"Accept": accept, "Content-Type": content_type, "User-Agent": self._agent}
        found["Accept-Encoding"] = self._encoding
        token = self._access.token()
        if token:
            found["Authorization"] = f"Bearer {token}"
        if self._access.headers:
            return CIMultiDict([*found.items(), *self._access.headers])
        return found

    async def _renew(self, rejected: str | None = None) -> None:
        """Renew credentials of a program that expired, or that the API server rejected. Raises CredentialsError."""
        plugin = self._access.plugin
        if plugin is not None and (rejected is not None or plugin.expired()):
            try:
                await asyncio.to_thread(plugin.renew, rejected)
            except AccessError as error:
                raise CredentialsError(str(error), error.hint) from None

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        timeout: float = _TIMEOUT_S,
        accept: str = JSON,
    ) -> Any:
        """Return the parsed response. Raises ApiError, and UnreachableError if there is none."""
        response = await self.exchange(
            method, path, body, content_type=content_type, query=query, timeout=timeout, accept=accept
        )
        return response.parse()

    async def page(self, path: str, query: Mapping[str, str], accept: str = JSON, most: int = 0) -> Any:
        """Return a page of a list; core kinds without managed fields. Raises ApiError and UnreachableError.

        `most`: bytes that are parsed, as values take up to 20 times the memory of their text; 0: any number. A longer
        page is asked for again with fewer objects.
        """
        response = await self.exchange("GET", path, query=query, accept=accept)
        limit = int(query.get("limit", "0"))
        if most and len(response.content) > most and limit != 1:
            return await self.page(path, {**query, "limit": str(max(1, (limit or _PAGE) // 10))}, accept, most)
        if path.startswith("/api/v1/"):
            response = response._replace(content=without_managed_fields(response.content))
        return response.parse()

    async def send(self, method: str, path: str, body: Any, *, content_type: str = JSON) -> None:
        """Send a request whose response body is ignored. Raises ApiError and UnreachableError."""
        await self.exchange(method, path, body, content_type=content_type)

    async def exchange(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        timeout: float = _TIMEOUT_S,
        accept: str = JSON,
    ) -> Response:
        """Return a response with its headers. Raises ApiError, and UnreachableError if there is none."""
        data = None if body is None else orjson.dumps(body)
        await self._renew()
        token = self._access.token()
        response = await self._once(method, path, data, content_type, query, timeout, accept)
        if response.status == 401 and self._access.plugin is not None:
            await self._renew(rejected=token)
            response = await self._once(method, path, data, content_type, query, timeout, accept)
        if response.status >= 300:
            raise _refusal(response)
        return response

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        content_type: str,
        query: Mapping[str, str] | None,
        timeout: float,
        accept: str,
    ) -> Response:
        assert self._session is not None
        head, name = self._head(content_type, accept), self._access.server_name or None
        try:
            async with asyncio.timeout(timeout):
                async with self._session.request(
                    method,
                    path,
                    data=data,
                    headers=head,
                    params=query,
                    timeout=_NO_TIMEOUT,
                    server_hostname=name,
                    allow_redirects=False,  # API servers do not redirect, and the token is for no other
                ) as response:
                    self.clock.observe(response.headers.get("Date", ""))
                    return Response(response.status, response.headers, await _read(response))
        except aiohttp.ClientConnectorCertificateError as error:
            raise UntrustedError(str(error.certificate_error)) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(f"{method} {path}: {type(error).__name__} {error}") from None

    async def watch(self, path: str, query: Mapping[str, str], accept: str = JSON) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of a watch in batches as they arrive. Raises ApiError and UnreachableError."""
        rest: list[bytes] = []
        size = 0
        async for chunk in self.stream(path, query, accept):
            complete, newline, tail = chunk.rpartition(b"\n")
            if newline:
                yield b"".join([*rest, complete]).split(b"\n")
                rest, size = [], 0
            rest.append(tail)
            size += len(tail)
            if size > _MAX_EVENT_BYTES:
                raise UnreachableError(f"watch {path}: an event has more than {_MAX_EVENT_BYTES} bytes")

    async def stream(self, path: str, query: Mapping[str, str], accept: str = JSON) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a response as they arrive. Raises ApiError and UnreachableError.

        A reader that is slower than the server holds the server up: nothing is collected.
        """
        assert self._session is not None
        limits = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=_SILENCE_S)
        await self._renew()
        try:
            head, name = self._head(JSON, accept), self._access.server_name or None
            async with self._session.get(
                path, headers=head, params=query, timeout=limits, server_hostname=name, allow_redirects=False
            ) as response:
                self.clock.observe(response.headers.get("Date", ""))
                if response.status >= 300:
                    raise _refusal(Response(response.status, response.headers, await _read(response)))
                async for chunk in response.content.iter_any():
                    yield chunk
        except aiohttp.SocketTimeoutError:
            raise SilenceError(f"watch {path}: nothing for {_SILENCE_S:g} s") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(f"watch {path}: {type(error).__name__} {error}") from None


async def list_all(
    ask: Callable[[dict[str, str]], Awaitable[Any]],
    query: Mapping[str, str],
    take: Callable[[list[Any]], list[Any]] = list,
) -> list[Any]:
    """Return the objects of all pages of a list, as `take` returns those of one page; `ask` reads a page.

    If the continue token expires, the list is read again without pages.
    """
    found: list[Any] = []
    asked = dict(query)
    while True:
        try:
            page = await ask(dict(asked))
        except ApiError as error:
            if not error.expired or "continue" not in asked:
                raise
            found, asked = [], {key: value for key, value in query.items() if key != "limit"}
            continue
        found += take(page["items"] or [])
        following = page["metadata"].get("continue")
        if not following:
            return found
        asked["continue"] = following


def without_managed_fields(content: bytes) -> bytes:
    """Remove managed fields from a JSON list: a third of a pod's bytes, and over half of its parsing time.

    Only for core kinds, whose fields are in the order of their Go types: managed fields end the metadata, and `spec`
    follows. Quotes in strings are escaped, so the searched bytes cannot occur inside a string.
    """
    parts, position = [], 0
    start = content.find(_MANAGED)
    while start >= 0:
        following = content.find(_MANAGED, start + 1)
        end = content.find(_AFTER, start, following if following >= 0 else len(content))
        if end >= 0:
            parts.append(content[position : start + len(_MANAGED)])
            position = end
        start = following
    return b"".join([*parts, content[position:]])


_MANAGED, _AFTER = b'"managedFields":[', b']},"spec":'
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body. Raises UnreachableError if it is larger than that of any list of a Kubernetes API server."""
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > _MAX_RESPONSE_BYTES:
            raise UnreachableError(f"{response.method} {response.url.path}: more than {_MAX_RESPONSE_BYTES} bytes")
    return b"".join(chunks)


def _refusal(response: Response) -> ApiError:
    try:
        body = orjson.loads(response.content)
        reason, message = str(body.get("reason", "")), str(body.get("message", ""))
    except (orjson.JSONDecodeError, AttributeError):
        reason, message = "", response.content[:200].decode(errors="replace")
    try:
        wait = float(response.headers.get("Retry-After", 0))
    except ValueError:
        wait = 0.0
    return ApiError(response.status, reason, message, wait)
