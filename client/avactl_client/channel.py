"""The balanced channel: a `grpc.Channel` of which each call goes to the server that suits best."""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable

import grpc

from avactl_client.calls import Given, Method, Replay, Running, blocking
from avactl_client.ledger import Options, Settings, own_options, settings_of
from avactl_client.names import WEIGHTS
from avactl_client.pool import Pool


def channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    options: Options = (),
    weights: str = WEIGHTS,
    interval: float = 5.0,
    idempotent: bool = False,
    addresses: Callable[[], Iterable[str]] | None = None,
) -> Channel:
    """Return a channel to all servers of a headless Service.

    `target`: `NAME-headless.NAMESPACE:PORT`. `credentials`: for TLS; the certificate is that of the target's host.
    `options`: of gRPC, for the channel of each server. `weights`: file of the first weights; it may be missing.
    `interval`: seconds between two look-ups of the addresses. `idempotent`: calls may run twice, so that those
    which end with UNAVAILABLE before the first response are repeated, too; without it, only calls that were never sent.
    `addresses`: returns the servers (`IP:PORT`) instead of DNS, in a thread; an error leaves them as they are.
    Raises TargetError.
    """
    own = own_options(target, options, tls=credentials is not None)

    def connect(address: str) -> Any:
        if credentials is None:
            return grpc.insecure_channel(address, options=own)
        return grpc.secure_channel(address, credentials, options=own)

    return Channel(settings_of(target, connect, weights, interval, idempotent, addresses))


class Channel(grpc.Channel):  # type: ignore[misc,unused-ignore]
    """A channel to several servers. Thread-safe; as a context manager it is closed at the end."""

    def __init__(self, settings: Settings) -> None:
        self._pool = Pool(settings)

    def servers(self) -> dict[str, bool]:
        """Return the addresses of the servers, and whether each gets calls now."""
        return self._pool.addresses()

    def unary_unary(self, method: str, *arguments: Any, **more: Any) -> UnaryUnary:
        """Return a method with one request and one response."""
        return UnaryUnary(self._method("unary_unary", method, arguments, more))

    def unary_stream(self, method: str, *arguments: Any, **more: Any) -> UnaryStream:
        """Return a method with one request and a stream of responses."""
        return UnaryStream(self._method("unary_stream", method, arguments, more))

    def stream_unary(self, method: str, *arguments: Any, **more: Any) -> StreamUnary:
        """Return a method with a stream of requests and one response."""
        return StreamUnary(self._method("stream_unary", method, arguments, more))

    def stream_stream(self, method: str, *arguments: Any, **more: Any) -> StreamStream:
        """Return a method with streams of requests and responses."""
        return StreamStream(self._method("stream_stream", method, arguments, more))

    def _method(self, arity: str, method: str, arguments: Any, more: Any) -> Method:
        return Method(self, self._pool, arity, method, arguments, more)

    def subscribe(self, callback: Callable[[Any], None], try_to_connect: bool | None = False) -> None:
        """Call a function with the connectivity: READY while a server gets calls, else TRANSIENT_FAILURE or CONNECTING.

        The channel always connects.
        """
        self._pool.subscribe(callback)

    def unsubscribe(self, callback: Callable[[Any], None]) -> None:
        """Call a function no more."""
        self._pool.unsubscribe(callback)

    def close(self) -> None:
        """Close all connections; calls in flight end with CANCELLED."""
        self._pool.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool is not None:
            pool.close()


def _given(
    method: Method, requests: Any, timeout: float | None, wait_for_ready: bool | None, more: Any, way: str
) -> Given:
    """Return a call. `way`: `with_call`, `future`, or empty for methods that return an iterator."""
    deadline = None if timeout is None else time.monotonic() + timeout
    replay = Replay(requests) if method.arity.startswith("stream_") else None

    def start(on: Any, left: float | None) -> Any:
        call = getattr(on, way) if way else on
        return call(requests if replay is None else replay.attempt(), timeout=left, **more)

    whole = (lambda: True) if replay is None else replay.whole
    return Given(method, start, deadline, bool(wait_for_ready), whole)


def _rest(metadata: Any, credentials: Any, compression: Any) -> dict[str, Any]:
    return {"metadata": metadata, "credentials": credentials, "compression": compression}


class _OneResponse:
    """Calls of methods with one response."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        """Return the response. Raises RpcError."""
        more = _rest(metadata, credentials, compression)
        return blocking(_given(self._method, request, timeout, wait_for_ready, more, "with_call"))[0]

    def with_call(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Any:
        """Return the response and its call. Raises RpcError."""
        more = _rest(metadata, credentials, compression)
        return blocking(_given(self._method, request, timeout, wait_for_ready, more, "with_call"))

    def future(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Running:
        """Return a future of the response. It blocks while no server is known yet."""
        more = _rest(metadata, credentials, compression)
        return Running(_given(self._method, request, timeout, wait_for_ready, more, "future"), block=True)


class _Responses:
    """Calls of methods with a stream of responses."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: Any = None,
        wait_for_ready: bool | None = None,
        compression: Any = None,
    ) -> Running:
        """Return an iterator of the responses. It blocks while no server is known yet."""
        more = _rest(metadata, credentials, compression)
        return Running(_given(self._method, request, timeout, wait_for_ready, more, ""), block=True)


class UnaryUnary(_OneResponse, grpc.UnaryUnaryMultiCallable):  # type: ignore[misc,unused-ignore]
    """A method with one request and one response."""


class StreamUnary(_OneResponse, grpc.StreamUnaryMultiCallable):  # type: ignore[misc,unused-ignore]
    """A method with a stream of requests and one response."""


class UnaryStream(_Responses, grpc.UnaryStreamMultiCallable):  # type: ignore[misc,unused-ignore]
    """A method with one request and a stream of responses."""


class StreamStream(_Responses, grpc.StreamStreamMultiCallable):  # type: ignore[misc,unused-ignore]
    """A method with streams of requests and responses."""
