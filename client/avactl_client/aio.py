"""The balanced channel for asyncio: a `grpc.aio.Channel` of which each call goes to the server that suits best."""

from __future__ import annotations

import time
from typing import Any, AsyncIterator, Callable, Iterable, Sequence

import grpc
import grpc.aio

from avactl_client.aio_calls import Given, Method, Replay, Running
from avactl_client.aio_pool import Pool
from avactl_client.ledger import Options, own_options, settings_of
from avactl_client.names import WEIGHTS


def channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    options: Options = (),
    interceptors: Sequence[Any] = (),
    weights: str = WEIGHTS,
    interval: float = 5.0,
    idempotent: bool = False,
    addresses: Callable[[], Iterable[str]] | None = None,
) -> Channel:
    """Return a channel to all servers of a headless Service, as `avactl_client.channel`, for one event loop.

    `interceptors`: of grpc.aio; they see each attempt of a call. Raises TargetError.
    """
    own = own_options(target, options, tls=credentials is not None)

    def connect(address: str) -> Any:
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=own, interceptors=interceptors)
        return grpc.aio.secure_channel(address, credentials, options=own, interceptors=interceptors)

    return Channel(Pool(settings_of(target, connect, weights, interval, idempotent, addresses)))


class Channel(grpc.aio.Channel):  # type: ignore[misc,unused-ignore]
    """A channel to several servers; as an asynchronous context manager it is closed at the end."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def servers(self) -> dict[str, bool]:
        """Return the addresses of the servers, and whether each gets calls now."""
        return self._pool.ledger.usable()

    def unary_unary(self, method: str, *arguments: Any, **more: Any) -> UnaryUnary:
        """Return a method with one request and one response."""
        return UnaryUnary(Method(self, self._pool, "unary_unary", method, arguments, more))

    def unary_stream(self, method: str, *arguments: Any, **more: Any) -> UnaryStream:
        """Return a method with one request and a stream of responses."""
        return UnaryStream(Method(self, self._pool, "unary_stream", method, arguments, more))

    def stream_unary(self, method: str, *arguments: Any, **more: Any) -> StreamUnary:
        """Return a method with a stream of requests and one response."""
        return StreamUnary(Method(self, self._pool, "stream_unary", method, arguments, more))

    def stream_stream(self, method: str, *arguments: Any, **more: Any) -> StreamStream:
        """Return a method with streams of requests and responses."""
        return StreamStream(Method(self, self._pool, "stream_stream", method, arguments, more))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the connectivity: READY while a server gets calls. The channel connects with its first use."""
        if try_to_connect:
            self._pool.start()
        return self._pool.ledger.state()

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the connectivity is another one."""
        self._pool.start()
        while self._pool.ledger.state() is last_observed_state:
            await self._pool.change()

    async def channel_ready(self) -> None:
        """Wait until a server gets calls."""
        self._pool.start()
        while self._pool.ledger.state() is not grpc.ChannelConnectivity.READY:
            if self._pool.ledger.closed:
                raise grpc.aio.UsageError("Channel is closed.")
            await self._pool.change()

    async def close(self, grace: float | None = None) -> None:
        """Close all connections; calls in flight have `grace` seconds to end."""
        await self._pool.close(grace)

    async def __aenter__(self) -> Channel:
        self._pool.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close(None)


class _Callable:
    """Calls of a method."""

    kind: type[Running]
    """Class of the calls."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def _call(self, requests: Any, timeout: float | None, wait_for_ready: bool | None, more: Any) -> Given:
        deadline = None if timeout is None else time.monotonic() + timeout
        replay = None
        if self._method.arity.startswith("stream_") and requests is not None:
            replay = Replay(requests)

        def start(on: Any, left: float | None) -> Any:
            return on(requests if replay is None else replay.attempt(), timeout=left, **more)

        return Given(self._method, start, deadline, bool(wait_for_ready), replay)


class _OneRequest(_Callable):
    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        """Begin a call."""
        more = {"metadata": metadata, "credentials": credentials, "compression": compression}
        return self.kind(self._call(request, timeout, wait_for_ready, more))


class _Requests(_Callable):
    def __call__(
        self,
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        """Begin a call. Without an iterator the requests come by `write`; such a call is not repeated after one."""
        more = {"metadata": metadata, "credentials": credentials, "compression": compression}
        return self.kind(self._call(request_iterator, timeout, wait_for_ready, more))


class _Awaited(Running):
    def __await__(self) -> Any:
        """Return the response. Raises AioRpcError."""
        return self.response().__await__()


class _Read(Running):
    def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the responses. Raises AioRpcError."""
        return self.responses()

    async def read(self) -> Any:
        """Return the next response, or `grpc.aio.EOF`. Raises AioRpcError."""
        return await self.next_response()


class _Written(Running):
    async def write(self, request: Any) -> None:
        """Send a request. Raises AioRpcError."""
        await (await self.writable()).write(request)

    async def done_writing(self) -> None:
        """End the requests."""
        await (await self.writable()).done_writing()


class UnaryUnaryCall(_Awaited, grpc.aio.UnaryUnaryCall):  # type: ignore[misc,unused-ignore]
    """A call with one request and one response."""


class UnaryStreamCall(_Read, grpc.aio.UnaryStreamCall):  # type: ignore[misc,unused-ignore]
    """A call with one request and a stream of responses."""


class StreamUnaryCall(_Awaited, _Written, grpc.aio.StreamUnaryCall):  # type: ignore[misc,unused-ignore]
    """A call with a stream of requests and one response."""


class StreamStreamCall(_Read, _Written, grpc.aio.StreamStreamCall):  # type: ignore[misc,unused-ignore]
    """A call with streams of requests and responses."""


class UnaryUnary(_OneRequest, grpc.aio.UnaryUnaryMultiCallable):  # type: ignore[misc,unused-ignore]
    """A method with one request and one response."""

    kind = UnaryUnaryCall


class UnaryStream(_OneRequest, grpc.aio.UnaryStreamMultiCallable):  # type: ignore[misc,unused-ignore]
    """A method with one request and a stream of responses."""

    kind = UnaryStreamCall


class StreamUnary(_Requests, grpc.aio.StreamUnaryMultiCallable):  # type: ignore[misc,unused-ignore]
    """A method with a stream of requests and one response."""

    kind = StreamUnaryCall


class StreamStream(_Requests, grpc.aio.StreamStreamMultiCallable):  # type: ignore[misc,unused-ignore]
    """A method with streams of requests and responses."""

    kind = StreamStreamCall
