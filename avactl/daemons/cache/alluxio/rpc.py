"""gRPC channels to Alluxio's processes: SASL authentication (scheme SIMPLE), deadlines, errors."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio

from avactl.daemons.cache.alluxio.messages import MESSAGES
from avactl.daemons.cache.engine import EngineError, NotFoundError, UnavailableError

USER = "alluxio"
"""The user that compiled tiers run as: it may read and free everybody's files."""
TIMEOUT = 30.0
"""Seconds for a request."""
_SIMPLE, _SUCCESS = 1, 1
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Bytes of a message: lists come in batches of 10,000 files."""
_UNREACHABLE_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.enable_http_proxy", 0),
    # Each channel authenticates for itself, so it needs its own connection.
    ("grpc.use_local_subchannel_pool", 1),
)


class Channel:
    """An authenticated channel to one process; it connects on first use, and again after an error."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel: Any = None
        self._login: Any = None
        self._identity = ""
        self._connecting = asyncio.Lock()

    async def call(self, service: str, method: str, request: Any, answer: str, timeout: float = TIMEOUT) -> Any:
        """Return the answer of a unary call. Raises EngineError."""
        channel, metadata = await self._connected_channel()
        path = f"/alluxio.grpc.{service}/{method}"
        unary = channel.unary_unary(
            path, request_serializer=_message_bytes, response_deserializer=MESSAGES[answer].FromString
        )
        try:
            return await unary(request, timeout=timeout, metadata=metadata)
        except aio.AioRpcError as error:
            raise await self._make_error(error, channel) from None
        except asyncio.CancelledError:
            raise _closed_error(self.address) from None

    async def stream(self, service: str, method: str, request: Any, answer: str, timeout: float) -> AsyncIterator[Any]:
        """Yield the answers of a call with a stream of them. Raises EngineError."""
        channel, metadata = await self._connected_channel()
        path = f"/alluxio.grpc.{service}/{method}"
        call = channel.unary_stream(
            path, request_serializer=_message_bytes, response_deserializer=MESSAGES[answer].FromString
        )(request, timeout=timeout, metadata=metadata)
        try:
            async for each in call:
                yield each
        except aio.AioRpcError as error:
            raise await self._make_error(error, channel) from None
        except asyncio.CancelledError:
            raise _closed_error(self.address) from None
        finally:
            call.cancel()

    async def open(self, service: str, method: str, answer: str, timeout: float) -> Exchange:
        """Begin a call with streams in both directions. Raises EngineError."""
        channel, metadata = await self._connected_channel()
        path = f"/alluxio.grpc.{service}/{method}"
        call = channel.stream_stream(
            path, request_serializer=_message_bytes, response_deserializer=MESSAGES[answer].FromString
        )(timeout=timeout, metadata=metadata)
        return Exchange(self, channel, call)

    async def close(self) -> None:
        """Close the connection; the next call opens another."""
        channel, self._channel = self._channel, None
        if self._login is not None:
            self._login.cancel()
            self._login = None
        if channel is not None:
            await channel.close()

    async def _connected_channel(self) -> tuple[Any, tuple[tuple[str, str], ...]]:
        async with self._connecting:
            if self._channel is None:
                await self._connect()
            return self._channel, (("channel-id", self._identity),)

    async def _connect(self) -> None:
        channel, self._identity = aio.insecure_channel(self.address, options=_CHANNEL_OPTIONS), str(uuid.uuid4())
        # The server forgets the channel when this call ends: it stays open.
        login = channel.stream_stream(
            "/alluxio.grpc.sasl.SaslAuthenticationService/authenticate",
            request_serializer=_message_bytes,
            response_deserializer=MESSAGES["SaslMessage"].FromString,
        )()
        hello = MESSAGES["SaslMessage"](
            messageType=0,
            clientId=self._identity,
            authenticationScheme=_SIMPLE,
            channelRef="avactl",
            message=f"\0{USER}\0noPassword".encode(),
        )
        try:
            async with asyncio.timeout(TIMEOUT / 2):
                await login.write(hello)
                answer = await login.read()
            if answer is aio.EOF or answer.messageType != _SUCCESS:
                raise EngineError(f"{self.address}: authentication refused")
        except BaseException as error:
            login.cancel()
            await channel.close()
            if not isinstance(error, aio.AioRpcError | TimeoutError | asyncio.InvalidStateError | EngineError):
                raise
            if isinstance(error, EngineError):
                raise
            said = error.details() if isinstance(error, aio.AioRpcError) else "no answer"
            raise UnavailableError(f"{self.address}: {said}") from None
        self._channel, self._login = channel, login

    async def _make_error(self, error: Any, channel: Any) -> EngineError:
        code, text = error.code(), f"{self.address}: {error.details()}"
        if code == grpc.StatusCode.NOT_FOUND:
            return NotFoundError(text)
        if code in _UNREACHABLE_CODES or code == grpc.StatusCode.UNAUTHENTICATED:
            # Another call may have renewed it already.
            if self._channel is channel and code != grpc.StatusCode.DEADLINE_EXCEEDED:
                await self.close()
            return UnavailableError(text)
        return EngineError(f"{text} ({code.name})")


class Exchange:
    """A call with streams in both directions."""

    def __init__(self, owner: Channel, channel: Any, call: Any) -> None:
        self._owner, self._channel, self._call = owner, channel, call

    async def write(self, request: Any) -> None:
        """Send one message. Raises EngineError."""
        try:
            await self._call.write(request)
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._error(error) from None
        except asyncio.CancelledError:
            raise _closed_error(self._owner.address) from None

    async def read(self) -> Any:
        """Return the next message; None at the end. Raises EngineError."""
        try:
            answer = await self._call.read()
            if answer is not aio.EOF:
                return answer
            if await self._call.code() is not grpc.StatusCode.OK:
                raise await self._end_error()
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._error(error) from None
        except asyncio.CancelledError:
            raise _closed_error(self._owner.address) from None
        return None

    async def done(self) -> None:
        """Tell that nothing more is sent. Raises EngineError."""
        try:
            await self._call.done_writing()
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._error(error) from None
        except asyncio.CancelledError:
            raise _closed_error(self._owner.address) from None

    def cancel(self) -> None:
        """End the call; nothing happens if it has ended."""
        self._call.cancel()

    async def _error(self, error: BaseException) -> EngineError:
        if isinstance(error, aio.AioRpcError):
            return await self._owner._make_error(error, self._channel)
        return await self._end_error()

    async def _end_error(self) -> EngineError:
        code, details = await self._call.code(), await self._call.details()
        failure = aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details)
        return await self._owner._make_error(failure, self._channel)


def _closed_error(address: str) -> BaseException:
    """Return what a call raises that was cancelled: by its own task, or with the channel, after another call failed."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return asyncio.CancelledError()
    return UnavailableError(f"{address}: the connection was closed")


def _message_bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
