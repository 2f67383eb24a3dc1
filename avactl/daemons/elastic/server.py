"""gRPC server of the master: one stream per worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import grpc
import grpc.aio
from avactl_worker import messages as m
from avactl_worker.wire import WireError

from avactl.daemons.elastic.service import WAITING, MemberSession, RejoinError, Service
from avactl.kube import logs
from avactl.kube.listen import ListenError, split_address

_ANSWER_TIMEOUT_S = 20.0
"""Seconds after which a request that waits is answered in any case."""
_TICK_INTERVAL_S = 0.25
"""Seconds between two looks at leases and at requests that wait."""
_TIMED_REQUESTS = ("work", "clock", "gradient")
"""Requests that may be answered because time has passed."""
_AT_ONCE = {"store": 64}
"""Requests of a worker that may wait at a time, where it is more than one."""
_MAX_PARTS_BYTES = 64 * 1024 * 1024
"""Of requests that have arrived in part, on all streams together."""
_MAX_LARGE_ANSWERS = 32
"""Answers of more than a message's size that are written at a time: a value of a round's store has up to 1 MiB."""
_LARGE_ANSWER_TIMEOUT_S = 20.0
"""For the client to receive one, and for the rest of a request of which a part has arrived."""
_MAX_STREAMS = 10_000
"""On all connections. Each takes some 10 KiB, and up to twice a message's size while its client sends."""
_SERVER_OPTIONS = [
    ("grpc.so_reuseport", 0),  # a second master on this port must fail
    ("grpc.max_receive_message_length", m.MAX_MESSAGE_BYTES),
    ("grpc.http2.lookahead_bytes", m.MAX_MESSAGE_BYTES),  # received of a stream that nobody reads
    ("grpc.max_concurrent_streams", 10_000),
    ("grpc.http2.bdp_probe", 0),  # it pings a worker after almost every message
]


class Server:
    """Serves a job to its workers. `fail` is called with an error of the store; then nothing is acknowledged."""

    def __init__(self, service: Service, fail: Callable[[Exception], None]) -> None:
        self._service, self._fail = service, fail
        self._waiting: dict[str, set[asyncio.Event]] = {kind: set() for kinds in WAITING for kind in kinds}
        self._server: grpc.aio.Server | None = None
        self._failed = False
        self._parts_bytes = 0
        """Of requests that have arrived in part."""
        self._large_answers = asyncio.Semaphore(_MAX_LARGE_ANSWERS)
        self.ticked = monotonic()
        """When leases were last looked at."""

    async def start(self, listen: str) -> int:
        """Listen at HOST:PORT of the option `--listen`, and return the port. Raises ListenError."""
        self._server = grpc.aio.server(options=_SERVER_OPTIONS, maximum_concurrent_rpcs=_MAX_STREAMS)
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        try:
            host, number = split_address(listen)
            # gRPC needs brackets, which `$(POD_IP):PORT` does not have.
            port = int(self._server.add_insecure_port(f"[{host}]:{number}" if ":" in host else f"{host}:{number}"))
        except RuntimeError:
            raise ListenError(f"`--listen {listen}`: cannot listen there: is the address in use?") from None
        await self._server.start()
        return port

    async def stop(self) -> None:
        """End all streams."""
        if self._server is not None:
            await self._server.stop(None)

    async def tick(self) -> None:
        """Follow leases and time, until cancelled."""
        while True:
            await asyncio.sleep(_TICK_INTERVAL_S)
            self.ticked = monotonic()
            before = self._service.changes()
            self._service.expire(monotonic())
            self._commit()
            self._wake(before)
            for kind in _TIMED_REQUESTS:
                self._wake_all(kind)

    # -- streams -----------------------------------------------------------------------------------------------------

    async def session(self, _: Any, context: Any) -> None:
        """Answer one worker's requests."""
        member, lock = MemberSession(), asyncio.Lock()
        tasks: set[asyncio.Task[None]] = set()
        try:
            while (request := await self._receive(context)) is not None:
                before = self._service.changes()
                answer = self._service.handle(member, request, monotonic())
                self._commit()
                self._wake(before)
                if answer is not None:
                    async with lock:
                        await self._write(context, self._service.stamp(answer))
                    continue
                kind = next(each for each in self._waiting if getattr(request, each) is not None)
                if member.waiting[kind] >= _AT_ONCE.get(kind, 1):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"too many requests of {kind} at a time")
                member.waiting[kind] += 1
                event = asyncio.Event()
                self._waiting[kind].add(event)  # at once: the next message may be what it waits for
                task = asyncio.create_task(self._answer_later(member, request, kind, event, context, lock))
                tasks.add(task)
                task.add_done_callback(partial(self._forget_request, tasks, kind, event))
        except RejoinError:
            await context.abort(grpc.StatusCode.ABORTED, "the lease of this worker has ended: join again")
        finally:
            for task in tasks:
                task.cancel()
            before = self._service.changes()
            self._service.disconnected(member, monotonic())
            self._wake(before)

    async def _receive(self, context: Any) -> m.Request | None:
        """Return the next request, put together of its parts; None at the end of the stream."""
        parts: list[bytes] = []
        size = 0
        deadline = None
        try:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        raw = await context.read()
                except TimeoutError:
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the rest of a request did not arrive")
                if raw is grpc.aio.EOF:
                    return None
                try:
                    request = m.Request.decode(raw)
                    if not request.part:
                        return request
                    parts.append(request.part)
                    size += len(request.part)
                    self._parts_bytes += len(request.part)
                    if size > m.LIMIT:
                        raise WireError(f"it has more than {m.LIMIT:,} bytes")
                    if not request.more:
                        return m.Request.decode(b"".join(parts))
                except WireError as error:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a request: {error}")
                if self._parts_bytes > _MAX_PARTS_BYTES:
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many large requests at a time")
                deadline = deadline or asyncio.get_running_loop().time() + _LARGE_ANSWER_TIMEOUT_S
        finally:
            self._parts_bytes -= size

    async def _write(self, context: Any, answer: m.Answer | m.StatusAnswer) -> None:
        raw = answer.encode()
        if len(raw) <= m.MAX_MESSAGE_BYTES:
            await context.write(raw)
            return
        del raw  # other answers may be written first
        async with self._large_answers:
            try:
                await asyncio.wait_for(context.write(answer.encode()), _LARGE_ANSWER_TIMEOUT_S)
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the answer was not received")

    async def _answer_later(
        self,
        member: MemberSession,
        request: m.Request,
        kind: str,
        event: asyncio.Event,
        context: Any,
        lock: asyncio.Lock,
    ) -> None:
        """Answer a request when it can be answered; `event` is set when it may be."""
        deadline = monotonic() + _ANSWER_TIMEOUT_S
        timer = asyncio.get_running_loop().call_later(_ANSWER_TIMEOUT_S, event.set)
        try:
            while True:
                await event.wait()
                event.clear()
                now = monotonic()
                before = self._service.changes()
                try:
                    seen = member.worker.seen if member.worker is not None else now
                    answer = self._service.handle(member, request, now, waited=True)
                    if member.worker is not None:
                        member.worker.seen = seen  # waiting is no sign of life
                except RejoinError:
                    return  # the next heartbeat ends the stream
                self._commit()
                self._wake(before)
                if answer is None and now < deadline:
                    continue
                member.waiting[kind] -= 1
                async with lock:
                    await self._write(context, self._service.stamp(answer or self._service.nothing(request)))
                return
        except (grpc.RpcError, grpc.aio.AbortError):
            return  # the worker is gone; its lease ends by itself
        finally:
            timer.cancel()

    def _forget_request(
        self, tasks: set[asyncio.Task[None]], kind: str, event: asyncio.Event, task: asyncio.Task[None]
    ) -> None:
        """Drop a request that was answered, or whose worker is gone: maybe before its task began."""
        tasks.discard(task)
        self._waiting[kind].discard(event)

    def _wake(self, before: tuple[int, ...]) -> None:
        """Look again at the requests that wait for something that has changed since."""
        after = self._service.changes()
        if after == before:
            return
        for kinds, old, new in zip(WAITING, before, after, strict=True):
            if old != new:
                for kind in kinds:
                    self._wake_all(kind)

    def _wake_all(self, kind: str) -> None:
        for event in self._waiting[kind]:
            event.set()

    def _commit(self) -> None:
        if self._failed:
            raise asyncio.CancelledError
        try:
            self._service.store.commit()
        except Exception as error:
            self._failed = True
            self._fail(error)
            raise

    async def status(self, _: bytes, context: Any) -> None:
        """Write the state of the job."""
        await self._write(context, m.StatusAnswer(json=self._service.status(monotonic()).decode()))


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the method of a call; a worker of another version gets to know why it is refused."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def service(self, details: Any) -> Any:
        if details.method == m.SESSION:
            return grpc.stream_stream_rpc_method_handler(self._server.session)
        if details.method == m.STATUS:
            # As a stream of one answer, whose end the server waits for. On the wire it is the same.
            return grpc.unary_stream_rpc_method_handler(self._server.status)
        if details.method.startswith("/avactl.elastic."):
            asked = details.method[1:].partition(".Master/")[0][:80]

            async def refuse(_: Any, context: Any) -> None:
                logs.warn("worker refused", protocol=asked)
                await context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"the worker library speaks {asked}, and this master {m.PACKAGE}: "
                    "install the avactl-worker that belongs to the master's avactl",
                )

            return grpc.stream_stream_rpc_method_handler(refuse)
        return None
