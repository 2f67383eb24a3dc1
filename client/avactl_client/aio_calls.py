"""Calls of asyncio that go to a chosen server each, and are repeated elsewhere if they were never sent."""

from __future__ import annotations

import asyncio
import time
from typing import Any, AsyncIterator, Callable, NamedTuple

import grpc
import grpc.aio

from avactl_client.aio_pool import Pool
from avactl_client.calls import MAX_KEPT_REQUESTS, Method

__all__ = ["Given", "Method", "Replay", "Running"]


class Replay:
    """The requests of a stream, which the next attempt sees from the start."""

    def __init__(self, requests: Any) -> None:
        self._requests = requests.__aiter__() if hasattr(requests, "__aiter__") else _steps(requests)
        self._lock: asyncio.Lock | None = None
        self._kept: list[Any] = []
        self._taken = 0

    def whole(self) -> bool:
        """Return True while another attempt would see all requests."""
        return self._taken <= MAX_KEPT_REQUESTS

    async def attempt(self) -> AsyncIterator[Any]:
        """Yield the requests from the start."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        position = 0
        while True:
            async with self._lock:
                if position < self._taken:
                    request = self._kept[position]
                else:
                    try:
                        request = await self._requests.__anext__()
                    except StopAsyncIteration:
                        return
                    self._taken += 1
                    if len(self._kept) <= MAX_KEPT_REQUESTS:
                        self._kept.append(request)
            position += 1
            yield request


async def _steps(requests: Any) -> AsyncIterator[Any]:
    for request in requests:
        yield request


class Given(NamedTuple):
    """Arguments of a call."""

    method: Method
    start: Callable[[Any, float | None], Any]
    """Starts the call on the method of one server, with the seconds that are left."""
    deadline: float | None
    """Monotonic time."""
    wait: bool
    """`wait_for_ready` of gRPC."""
    replay: Replay | None
    """The requests, if they come from an iterator."""

    def left(self) -> float | None:
        """Return the seconds until the deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


class _Failure(NamedTuple):
    """Status of a failed call."""

    status: grpc.StatusCode
    text: str

    def code(self) -> grpc.StatusCode:
        return self.status

    def details(self) -> str:
        return self.text


class Running:
    """A call that runs. A task begins its attempts, and takes in how each ends; callers go from one to the next."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._pool: Pool = given.method.pool
        self._call: Any = None
        self._responded = self._cancelled = self._written = False
        self._attempt: Any = None
        loop = asyncio.get_running_loop()
        self._moved: asyncio.Future[None] = loop.create_future()
        self._task = loop.create_task(self._supervise())
        self._task.add_done_callback(_retrieve)

    async def _supervise(self) -> None:
        given, pool = self._given, self._pool
        tried: list[str] = []
        while True:
            try:
                attempt = await pool.begin(tried, given.deadline, wait=given.wait)
            except (grpc.RpcError, ValueError):
                if self._call is None:
                    raise
                return  # the error of the last attempt is that of the call
            code = None
            self._responded = False
            try:
                call = given.start(given.method.on(attempt.channel), given.left())
                self._attempt, self._call = attempt, call
                moved, self._moved = self._moved, asyncio.get_running_loop().create_future()
                moved.set_result(None)
                code = await call.code()
                if code is grpc.StatusCode.OK and not self._responded:
                    self._respond()
            finally:
                pool.end(attempt, code, self._responded)
                self._attempt = None
            if code is grpc.StatusCode.OK or self._cancelled or not self._whole():
                return
            if not pool.ledger.repeats(_Failure(code, str(await call.details() or "")), self._responded):
                return
            tried.append(attempt.server.address)
            if not pool.ledger.has_other(tried):
                tried.clear()
                if not given.wait or given.left() == 0.0:
                    return

    def _whole(self) -> bool:
        return not self._written and (self._given.replay is None or self._given.replay.whole())

    def _respond(self) -> None:
        if self._attempt is not None and not self._responded:
            self._responded = True
            self._pool.ledger.respond(self._attempt, measure=self._given.method.arity.startswith("unary_"))

    async def _after(self, before: Any) -> Any:
        """Return the attempt that follows one; None if that was the last. Raises NoServerError."""
        while self._call is before:
            if self._task.done():
                self._task.result()
                return None
            try:
                await asyncio.wait({self._task, self._moved}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._call

    # -- responses and requests

    async def response(self) -> Any:
        """Return the one response. Raises AioRpcError."""
        call = await self._after(None)
        while True:
            try:
                return await call
            except grpc.aio.AioRpcError:
                following = await self._after(call)
                if following is None:
                    raise
                call = following

    async def next_response(self) -> Any:
        """Return the next response, or `grpc.aio.EOF`. Raises AioRpcError."""
        call = self._call or await self._after(None)
        while True:
            try:
                found = await call.read()
            except grpc.aio.AioRpcError:
                following = await self._after(call)
                if following is None:
                    raise
                call = following
                continue
            if found is not grpc.aio.EOF:
                self._respond()
            return found

    async def responses(self) -> AsyncIterator[Any]:
        """Yield the responses. Raises AioRpcError."""
        while True:
            found = await self.next_response()
            if found is grpc.aio.EOF:
                return
            yield found

    async def writable(self) -> Any:
        """Return the call for a request of the caller."""
        call = self._call or await self._after(None)
        self._written = True
        return call

    # -- state

    async def _ended(self) -> Any:
        """Wait for the end of the last attempt, and return it. Raises NoServerError."""
        await asyncio.wait({self._task})
        if self._call is None:
            self._task.result()
        return self._call

    async def code(self) -> grpc.StatusCode:
        """Return the status code; waits for the end."""
        try:
            found: grpc.StatusCode = await (await self._ended()).code()
        except grpc.RpcError as error:
            return error.code()
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            return grpc.StatusCode.CANCELLED
        return found

    async def details(self) -> str:
        """Return the message of the status; waits for the end."""
        try:
            return str(await (await self._ended()).details() or "")
        except grpc.RpcError as error:
            return str(error.details())

    async def initial_metadata(self) -> Any:
        """Return the first metadata of the server; waits for it."""
        call = self._call or await self._after(None)
        while True:
            found = await call.initial_metadata()
            if call is self._call:
                return found
            call = self._call

    async def trailing_metadata(self) -> Any:
        """Return the last metadata of the server; waits for the end."""
        return await (await self._ended()).trailing_metadata()

    async def wait_for_connection(self) -> None:
        """Wait until the call is on its way."""
        await (self._call or await self._after(None)).wait_for_connection()

    def cancel(self) -> bool:
        """Cancel the call; return True if it had not ended."""
        if self._task.done():
            return False
        self._cancelled = True
        return bool(self._task.cancel() if self._call is None else self._call.cancel())

    def cancelled(self) -> bool:
        """Return True if the call was cancelled."""
        return self._task.cancelled() if self._call is None else bool(self._call.cancelled())

    def done(self) -> bool:
        """Return True if the call has ended."""
        return self._task.done()

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None without one."""
        return self._given.left()

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Call a function with this object at the end of the call."""
        self._task.add_done_callback(lambda _: callback(self))


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take an error that no caller asks for, of which asyncio would warn."""
    if not task.cancelled():
        task.exception()
