"""Calls that go to a chosen server each, and are repeated elsewhere if they were never sent."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import grpc

from avactl_client.ledger import Attempt
from avactl_client.pool import Pool

MAX_KEPT_REQUESTS = 16
"""Requests of a stream after which its call is not repeated any more."""


class Method:
    """A method of a service, on the channel of each server."""

    def __init__(self, owner: Any, pool: Any, arity: str, method: str, arguments: tuple[Any, ...], more: Any) -> None:
        """`owner`: the balanced channel, which stays open while its methods are used; `arity`: `unary_unary`, …."""
        self.owner, self.pool, self.arity = owner, pool, arity
        self._method, self._arguments, self._more = method, arguments, more

    def on(self, channel: Any) -> Any:
        """Return the method on the channel of one server."""
        known = channel.__dict__.setdefault("_avactl_methods", weakref.WeakKeyDictionary())
        found = known.get(self)
        if found is None:
            found = known[self] = getattr(channel, self.arity)(self._method, *self._arguments, **self._more)
        return found


class Replay:
    """The requests of a stream, which the next attempt sees from the start."""

    def __init__(self, requests: Iterable[Any]) -> None:
        self._requests = iter(requests)
        self._lock = threading.Lock()
        self._kept: list[Any] = []
        self._taken = 0

    def whole(self) -> bool:
        """Return True while another attempt would see all requests."""
        return self._taken <= MAX_KEPT_REQUESTS

    def attempt(self) -> Iterator[Any]:
        """Yield the requests from the start. gRPC may still wait for one on behalf of an attempt that has failed."""
        position = 0
        while True:
            with self._lock:
                if position < self._taken:
                    request = self._kept[position]
                else:
                    try:
                        request = next(self._requests)
                    except StopIteration:
                        return
                    self._taken += 1
                    if len(self._kept) <= MAX_KEPT_REQUESTS:
                        self._kept.append(request)
            position += 1
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
    whole: Callable[[], bool] = lambda: True
    """Returns True while the requests can be sent again."""

    def begin(self, tried: list[str], *, block: bool) -> Attempt:
        """Choose a server. Raises NoServerError."""
        pool: Pool = self.method.pool
        return pool.begin(tried, self.deadline, wait=self.wait, block=block)

    def left(self) -> float | None:
        """Return the seconds until the deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def repeats(self, error: Any, attempt: Attempt, tried: list[str], *, responded: bool = False) -> bool:
        """Return True if a failed call goes to another server, and note that it was tried."""
        tried.append(attempt.server.address)
        if not self.whole() or not self.method.pool.repeats(error, responded):
            return False
        if self.method.pool.has_other(tried):
            return True
        tried.clear()
        return self.wait and self.left() != 0.0


def blocking(given: Given) -> Any:
    """Run a call with one response to its end; `start` returns what the caller gets. Raises RpcError."""
    pool = given.method.pool
    tried: list[str] = []
    while True:
        attempt = given.begin(tried, block=True)
        try:
            found = given.start(given.method.on(attempt.channel), given.left())
        except grpc.RpcError as error:
            pool.end(attempt, error.code(), False)
            if not given.repeats(error, attempt, tried):
                raise
        except BaseException:
            pool.end(attempt, None, False)
            raise
        else:
            pool.respond(attempt, measure=given.method.arity == "unary_unary")
            pool.end(attempt, grpc.StatusCode.OK, True)
            return found


class Running(grpc.Call, grpc.Future):  # type: ignore[misc,unused-ignore]
    """A call that runs: a future of its response, or an iterator of its responses, as gRPC's own."""

    def __init__(self, given: Given, *, block: bool) -> None:
        self._given = given
        self._tried: list[str] = []
        self._lock = threading.RLock()
        self._finished = threading.Event()
        self._callbacks: list[Callable[[], Any]] = []
        self._cancelled = self._responded = False
        self._attempt: Attempt
        self._call: Any = None
        self._go(block)

    def _go(self, block: bool) -> None:
        attempt = self._given.begin(self._tried, block=block)
        try:
            call = self._given.start(self._given.method.on(attempt.channel), self._given.left())
        except BaseException:
            self._given.method.pool.end(attempt, None, False)
            raise
        self._attempt, self._call = attempt, call
        call.add_done_callback(self._ended)

    def _ended(self, call: Any) -> None:
        """Take in the end of an attempt: repeat it, or finish. Both gRPC and the reader of a stream report it."""
        with self._lock:
            if call is not self._call or self._finished.is_set():
                return
            given, pool, code = self._given, self._given.method.pool, call.code()
            if code is grpc.StatusCode.OK and not self._responded:
                self._first()
            pool.end(self._attempt, code, self._responded)
            again = code is not grpc.StatusCode.OK and not self._cancelled
            if again and given.repeats(call, self._attempt, self._tried, responded=self._responded):
                try:
                    self._go(block=False)
                    return
                except (grpc.RpcError, ValueError):
                    pass  # no other server, or closed: this is the end
            self._finished.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def _first(self) -> None:
        self._responded = True
        self._given.method.pool.respond(self._attempt, measure=self._given.method.arity.startswith("unary_"))

    # -- responses

    def __iter__(self) -> Running:
        return self

    def __next__(self) -> Any:
        """Return the next response. Raises RpcError."""
        while True:
            call = self._call
            try:
                response = next(call)
            except grpc.RpcError:
                self._ended(call)
                if self._call is call:
                    raise
                continue
            if not self._responded:
                with self._lock:
                    if call is self._call and not self._responded and not self._finished.is_set():
                        self._first()
            return response

    def _done(self, timeout: float | None) -> Any:
        if not self._finished.wait(timeout):
            raise grpc.FutureTimeoutError
        return self._call

    def result(self, timeout: float | None = None) -> Any:
        """Return the response. Raises RpcError, FutureTimeoutError and FutureCancelledError."""
        return self._done(timeout).result()

    def exception(self, timeout: float | None = None) -> Any:
        """Return the error, or None. Raises FutureTimeoutError and FutureCancelledError."""
        return self._done(timeout).exception()

    def traceback(self, timeout: float | None = None) -> Any:
        """Return the traceback of the error, or None. Raises FutureTimeoutError and FutureCancelledError."""
        return self._done(timeout).traceback()

    # -- state

    def cancel(self) -> bool:
        """Cancel the call; return True if it had not ended."""
        with self._lock:
            self._cancelled, call = True, self._call
        return bool(call.cancel())

    def cancelled(self) -> bool:
        """Return True if the call was cancelled."""
        return bool(self._call.cancelled())

    def done(self) -> bool:
        """Return True if the call has ended."""
        return self._finished.is_set()

    def running(self) -> bool:
        """Return True until the call has ended."""
        return not self._finished.is_set()

    def is_active(self) -> bool:
        """Return True until the call has ended."""
        return not self._finished.is_set()

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None without one."""
        return self._given.left()

    def add_callback(self, callback: Callable[[], Any]) -> bool:
        """Call a function at the end of the call; return False if it has ended."""
        with self._lock:
            if not self._finished.is_set():
                self._callbacks.append(callback)
                return True
        return False

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        """Call a function with this object at the end of the call, or now."""
        if not self.add_callback(lambda: fn(self)):
            fn(self)

    def initial_metadata(self) -> Any:
        """Return the first metadata of the server; blocks until it is there."""
        while True:
            call = self._call
            found = call.initial_metadata()
            if call is self._call:
                return found

    def trailing_metadata(self) -> Any:
        """Return the last metadata of the server; blocks until the end."""
        return self._done(None).trailing_metadata()

    def code(self) -> Any:
        """Return the status code; blocks until the end."""
        return self._done(None).code()

    def details(self) -> Any:
        """Return the message of the status; blocks until the end."""
        return self._done(None).details()
