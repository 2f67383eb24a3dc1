"""Connections to the servers of a target: follows DNS, connects, and counts calls."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Callable, Iterable, NamedTuple, Sequence, Tuple

import grpc

from avactl_client.balancer import Balancer, Server
from avactl_client.names import WeightsFile

Options = Sequence[Tuple[str, Any]]
_SOONEST = 1.0
"""Seconds between two look-ups, although a server has failed."""
_WATCHED = 1.0
"""Seconds for which gRPC may go on watching a channel, which it does in vain, with a traceback, once it is closed."""
_TURN = 0.25
"""Seconds between two looks at the servers that are to be connected again."""
NEVER_SENT = "failed to connect to all addresses"
"""Begin of the message with which gRPC fails a call whose server it could not connect to."""


class NoServerError(grpc.RpcError):  # type: ignore[misc,unused-ignore]
    """DNS names no server of the target."""

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Return UNAVAILABLE."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """Return the reason."""
        return self._details

    def initial_metadata(self) -> tuple[()]:
        """Return no metadata."""
        return ()

    def trailing_metadata(self) -> tuple[()]:
        """Return no metadata."""
        return ()


class Settings(NamedTuple):
    """Settings of a pool."""

    host: str
    addresses: Callable[[], Iterable[str]]
    """Returns the addresses of the servers, with their port. Raises OSError and ValueError."""
    interval: float
    """Seconds between two look-ups."""
    weights: WeightsFile
    connect: Callable[[str], Any]
    """Returns a grpc.Channel to an address."""
    idempotent: bool
    """True if calls that a server may have begun are repeated."""


class Attempt(NamedTuple):
    """A call that is sent to a server."""

    server: Server
    channel: Any
    began: float


class Pool:
    """The servers of a target. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._balancer = Balancer()
        self._changed = threading.Condition()
        self._channels: dict[str, Any] = {}
        self._connecting: set[str] = set()
        self._failing: set[str] = set()
        self._watches: dict[str, tuple[Callable[[Any], None], float]] = {}
        """Watches of the channels, and when they ended."""
        self._callbacks: list[tuple[Callable[[Any], None], list[Any]]] = []
        self._wake = threading.Event()
        self._looked_up = False
        self._problem = ""
        self._closed = False
        threading.Thread(
            target=_follow, args=(weakref.ref(self), self._wake), name="avactl-client", daemon=True
        ).start()

    # -- calls

    def begin(self, tried: Iterable[str], deadline: float | None, *, wait: bool, block: bool = True) -> Attempt:
        """Choose a server for a call and count the call.

        `tried`: addresses that the call was not sent to; `wait`: wait for a server until the deadline, as gRPC's
        `wait_for_ready` says; `block`: wait for the first look-up and connections. Raises NoServerError, and ValueError
        for a closed channel.
        """
        with self._changed:
            while True:
                if self._closed:
                    raise ValueError("Cannot invoke RPC on closed channel!")
                now = time.monotonic()
                left = None if deadline is None else deadline - now
                waits = block and (left is None or left > 0) and (wait or self._hopeful(tried))
                server = self._balancer.pick(now, tried)
                if server is None and not waits:
                    # gRPC fails the call, or it succeeds after all.
                    server = self._balancer.any(now, tried) or self._balancer.any(now)
                if server is not None:
                    self._balancer.begin(server, now)
                    return Attempt(server, self._channels[server.address], now)
                if not waits:
                    raise NoServerError(self._problem or f"no server of {self.settings.host} is known")
                self._changed.wait(_TURN if left is None else min(left, _TURN))

    def _hopeful(self, tried: Iterable[str]) -> bool:
        """Return True while the first look-up or a first connection may still bring a server."""
        if not self._looked_up:
            return True
        known = set(tried)
        return any(
            each.address not in known and not each.failures and each.address not in self._failing
            for each in self._balancer.servers.values()
            if not each.connected and not each.leaving
        )

    def respond(self, attempt: Attempt, *, measure: bool) -> None:
        """Take in the first response to a call."""
        with self._changed:
            self._balancer.respond(attempt.server, attempt.began, time.monotonic(), measure=measure)

    def end(self, attempt: Attempt, code: grpc.StatusCode | None, responded: bool) -> None:
        """Take in the end of a call; `responded`: it had a response before."""
        now = time.monotonic()
        server = attempt.server
        with self._changed:
            if code is grpc.StatusCode.UNAVAILABLE:
                self._balancer.fail(server, attempt.began, now, responded=responded)
            elif not responded and code is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._balancer.pass_deadline(server, attempt.began, now)
            elif not responded:
                self._balancer.drop(server, attempt.began)
            self._balancer.end(server)
            failed = bool(server.failures)
        if failed:
            self._wake.set()

    def repeats(self, error: Any, responded: bool) -> bool:
        """Return True if a failed call may be sent again."""
        if responded or self._closed or error.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        return self.settings.idempotent or str(error.details() or "").startswith(NEVER_SENT)

    def has_other(self, tried: Sequence[str]) -> bool:
        """Return True if there is a server that was not tried."""
        with self._changed:
            return any(not each.leaving and each.address not in tried for each in self._balancer.servers.values())

    # -- servers

    def subscribe(self, callback: Callable[[Any], None]) -> None:
        """Call a function with the connectivity, now and after changes, in the thread that follows the servers."""
        with self._changed:
            self._callbacks.append((callback, [None]))

    def unsubscribe(self, callback: Callable[[Any], None]) -> None:
        """Call a function no more."""
        with self._changed:
            self._callbacks = [each for each in self._callbacks if each[0] is not callback]

    def report(self) -> None:
        """Call the subscribed functions whose last state differs."""
        with self._changed:
            now, servers = time.monotonic(), self._balancer.servers.values()
            state = grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if any(each.usable(now) or (each.connected and now >= each.retry_at) for each in servers):
                state = grpc.ChannelConnectivity.READY
            elif self._hopeful(()):
                state = grpc.ChannelConnectivity.CONNECTING
            due = [each for each in self._callbacks if each[1] != [state]]
        for callback, last in due:
            last[0] = state
            callback(state)

    def addresses(self) -> dict[str, bool]:
        """Return the addresses of the servers, and whether each gets calls now."""
        with self._changed:
            now = time.monotonic()
            return {each.address: each.usable(now) for each in self._balancer.servers.values()}

    def look_up(self) -> None:
        """Ask DNS; the known servers stay if it does not answer."""
        try:
            found = self.settings.weights.of(sorted(self.settings.addresses()))
            problem = ""
        except (OSError, ValueError) as error:  # UnicodeError is a ValueError
            found, problem = {}, f"{self.settings.host}: {error}"
        with self._changed:
            if found:
                for server in self._balancer.update(found):
                    self._channels[server.address] = self.settings.connect(server.address)
            self._problem, self._looked_up = problem, True
            self._changed.notify_all()

    def connect(self) -> None:
        """Connect the servers that are due, and close the connections of those that have left."""
        now = time.monotonic()
        with self._changed:
            gone = [(each.address, self._channels.pop(each.address)) for each in self._balancer.remove_idle()]
            self._connecting -= {address for address, _ in gone}
            self._failing -= {address for address, _ in gone}
            due = [
                (each.address, self._channels[each.address])
                for each in self._balancer.servers.values()
                if not (each.connected or each.leaving or each.address in self._connecting) and now >= each.retry_at
            ]
        for address, channel in due:
            self._watch(address, channel)
        for address, channel in gone:
            self._close(address, channel)

    def _watch(self, address: str, channel: Any) -> None:
        """Begin to connect, and take in the result. gRPC watches a channel in a thread: only while it connects."""
        pool = weakref.ref(self)
        states: list[Any] = []

        def seen(state: Any) -> None:
            states.append(state)
            found = pool()
            # The first state is that of before.
            ended = state is grpc.ChannelConnectivity.IDLE and len(states) > 1
            if found is None or found._seen(address, channel, state) or ended:
                channel.unsubscribe(seen)
                if found is not None:
                    found._watched(address, seen)

        with self._changed:
            if self._closed or address not in self._channels or self._channels[address] is not channel:
                return
            self._connecting.add(address)
            self._watches[address] = (seen, float("inf"))
        channel.subscribe(seen, try_to_connect=True)

    def _watched(self, address: str, seen: Callable[[Any], None]) -> None:
        """Take in the end of a watch, unless the address has another channel by now."""
        with self._changed:
            if self._watches.get(address, (None, 0.0))[0] is seen:
                self._watches[address] = (seen, time.monotonic())
                self._connecting.discard(address)

    def _seen(self, address: str, channel: Any, state: Any) -> bool:
        """Take in the state of a connection; return True if it needs no further watching."""
        with self._changed:
            server = self._balancer.servers.get(address)
            if server is None or self._channels.get(address) is not channel:
                return True
            if state is grpc.ChannelConnectivity.READY:
                server.connected = time.monotonic() >= server.retry_at
                self._failing.discard(address)
            elif state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                self._failing.add(address)
            self._changed.notify_all()
            return state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.SHUTDOWN)

    def close(self) -> None:
        """Close all connections; calls in flight end with CANCELLED."""
        with self._changed:
            self._closed = True
            channels = list(self._channels.items())
            self._changed.notify_all()
        self._wake.set()
        for address, channel in channels:
            self._close(address, channel)

    def _close(self, address: str, channel: Any) -> None:
        seen, since = self._watches.pop(address, (None, 0.0))
        if seen is None:
            channel.close()
            return
        channel.unsubscribe(seen)
        left = min(since + _WATCHED - time.monotonic(), _WATCHED)
        if left <= 0:
            channel.close()
        else:
            later = threading.Timer(left, channel.close)
            later.daemon = True
            later.start()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed


def _follow(reference: weakref.ReferenceType[Pool], wake: threading.Event) -> None:
    """Keep a pool up to date until it is closed or has gone."""
    looked = float("-inf")
    while True:
        pool = reference()
        if pool is None or pool.closed:
            return
        now = time.monotonic()
        if now - looked >= (_SOONEST if wake.is_set() else pool.settings.interval):
            wake.clear()
            looked = now
            pool.look_up()
        pool.connect()
        pool.report()
        del pool
        time.sleep(_TURN)
