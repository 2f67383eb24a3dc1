"""Servers of a target with their channels: what calls and look-ups change, without threads or an event loop."""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable, NamedTuple, Sequence, Tuple

import grpc

from avactl_client.balancer import Balancer, Server
from avactl_client.names import WeightsFile, resolve, split

Options = Sequence[Tuple[str, Any]]
SOONEST = 1.0
"""Seconds between two look-ups, although a server has failed."""
TURN = 0.25
"""Seconds between two looks at the servers that are to be connected again."""
_NEVER_SENT = "failed to connect to all addresses"
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
    """Settings of a channel."""

    host: str
    addresses: Callable[[], Iterable[str]]
    """Returns the addresses of the servers, with their port."""
    interval: float
    """Seconds between two look-ups."""
    weights: WeightsFile
    connect: Callable[[str], Any]
    """Returns a channel of gRPC to an address."""
    idempotent: bool
    """True if calls that a server may have begun are repeated."""


def settings_of(
    target: str,
    connect: Callable[[str], Any],
    weights: str,
    interval: float,
    idempotent: bool,
    addresses: Callable[[], Iterable[str]] | None,
) -> Settings:
    """Return the settings of a channel to a target. Raises TargetError, and ValueError for the interval."""
    host, port = split(target)
    if not interval > 0:
        raise ValueError(f"interval {interval:g} is not a time in seconds above 0")
    found = addresses if addresses is not None else lambda: resolve(host, port)
    return Settings(host, found, interval, WeightsFile(weights), connect, idempotent)


def own_options(target: str, options: Options, *, tls: bool) -> list[tuple[str, Any]]:
    """Return gRPC's options for the channel of each server: those of the caller, and the target's name."""
    host, port = split(target)
    own = {
        "grpc.initial_reconnect_backoff_ms": 1000,
        "grpc.max_reconnect_backoff_ms": 30_000,
        "grpc.default_authority": f"{host}:{port}",
        **({"grpc.ssl_target_name_override": host} if tls else {}),
    }
    given = {key for key, _ in options}
    return [*options, *((key, value) for key, value in own.items() if key not in given)]


class Attempt(NamedTuple):
    """A call that is sent to a server."""

    server: Server
    channel: Any
    began: float


class Ledger:
    """The servers of a target. Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.balancer = Balancer()
        self.channels: dict[str, Any] = {}
        self.connecting: set[str] = set()
        """Servers whose connection is watched."""
        self.looked_up = self.closed = False
        self._failing: set[str] = set()
        self._problem = ""

    # -- calls

    def begin(self, tried: Iterable[str], left: float | None, *, wait: bool, block: bool = True) -> Attempt | None:
        """Choose a server for a call and count the call; None if the call is to wait for a change.

        `tried`: addresses that the call was not sent to; `left`: seconds until the deadline; `wait`: wait for a server
        until then, as gRPC's `wait_for_ready` says; `block`: wait for the first look-up and connections. Raises
        NoServerError, and ValueError for a closed channel.
        """
        if self.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        now = time.monotonic()
        waits = block and (left is None or left > 0) and (wait or self._hopeful(tried))
        server = self.balancer.pick(now, tried)
        if server is None and not waits:
            # gRPC fails the call, or it succeeds after all.
            server = self.balancer.any(now, tried) or self.balancer.any(now)
        if server is not None:
            self.balancer.begin(server, now)
            return Attempt(server, self.channels[server.address], now)
        if not waits:
            raise NoServerError(self._problem or f"no server of {self.settings.host} is known")
        return None

    def _hopeful(self, tried: Iterable[str]) -> bool:
        """Return True while the first look-up or a first connection may still bring a server."""
        if not self.looked_up:
            return True
        known = set(tried)
        return any(
            each.address not in known and not each.failures and each.address not in self._failing
            for each in self.balancer.servers.values()
            if not each.connected and not each.leaving
        )

    def respond(self, attempt: Attempt, *, measure: bool) -> None:
        """Take in the first response to a call."""
        self.balancer.respond(attempt.server, attempt.began, time.monotonic(), measure=measure)

    def end(self, attempt: Attempt, code: grpc.StatusCode | None, responded: bool) -> bool:
        """Take in the end of a call, and return True if the server counts as failed. `responded`: it had a response."""
        now, server = time.monotonic(), attempt.server
        if code is grpc.StatusCode.UNAVAILABLE:
            self.balancer.fail(server, attempt.began, now, responded=responded)
        elif not responded and code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self.balancer.pass_deadline(server, attempt.began, now)
        elif not responded:
            self.balancer.drop(server, attempt.began)
        self.balancer.end(server)
        return bool(server.failures)

    def repeats(self, error: Any, responded: bool) -> bool:
        """Return True if a failed call may be sent again. `error`: has `code()` and `details()`."""
        if responded or self.closed or error.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        return self.settings.idempotent or str(error.details() or "").startswith(_NEVER_SENT)

    def has_other(self, tried: Sequence[str]) -> bool:
        """Return True if there is a server that was not tried."""
        return any(not each.leaving and each.address not in tried for each in self.balancer.servers.values())

    # -- servers

    def usable(self) -> dict[str, bool]:
        """Return the addresses of the servers, and whether each gets calls now."""
        now = time.monotonic()
        return {each.address: each.usable(now) for each in self.balancer.servers.values()}

    def state(self) -> grpc.ChannelConnectivity:
        """Return the connectivity: READY while a server gets calls."""
        now = time.monotonic()
        if self.closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        if any(each.connected and now >= each.retry_at for each in self.balancer.servers.values()):
            return grpc.ChannelConnectivity.READY
        return grpc.ChannelConnectivity.CONNECTING if self._hopeful(()) else grpc.ChannelConnectivity.TRANSIENT_FAILURE

    def look_up(self) -> tuple[dict[str, float], str]:
        """Ask DNS, which may take seconds; return the first weights by address, and the problem if there was one."""
        try:
            return self.settings.weights.of(sorted(self.settings.addresses())), ""
        except Exception as error:  # also of the caller's own function
            return {}, f"{self.settings.host}: {error}"

    def take(self, found: dict[str, float], problem: str) -> None:
        """Take in the result of a look-up; the known servers stay without one."""
        if found and not self.closed:
            for server in self.balancer.update(found):
                self.channels[server.address] = self.settings.connect(server.address)
        self._problem, self.looked_up = problem, True

    def leave(self) -> list[tuple[str, Any]]:
        """Forget the servers that have left; return their addresses and channels."""
        gone = [(each.address, self.channels.pop(each.address)) for each in self.balancer.remove_idle()]
        for address, _ in gone:
            self.connecting.discard(address)
            self._failing.discard(address)
        return gone

    def due(self) -> list[tuple[str, Any]]:
        """Return addresses and channels of the servers to connect."""
        now = time.monotonic()
        return [
            (each.address, self.channels[each.address])
            for each in self.balancer.servers.values()
            if not (each.connected or each.leaving or each.address in self.connecting) and now >= each.retry_at
        ]

    def see(self, address: str, channel: Any, state: Any) -> bool:
        """Take in the state of a connection; return True if it needs no further watching."""
        server = self.balancer.servers.get(address)
        if server is None or address not in self.channels or self.channels[address] is not channel:
            return True
        if state is grpc.ChannelConnectivity.READY:
            server.connected = time.monotonic() >= server.retry_at
            self._failing.discard(address)
        elif state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            self._failing.add(address)
        return state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.SHUTDOWN)
