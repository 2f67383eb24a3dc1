"""The servers of a channel for threads: one thread follows DNS and connects."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Callable, Iterable, Sequence

import grpc

from avactl_client.ledger import SOONEST, TURN, Attempt, Ledger, Settings

_WATCHED = 1.0
"""Seconds for which gRPC may go on watching a channel, which it does in vain, with a traceback, once it is closed."""


class Pool:
    """The servers of a target. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.interval = settings.interval
        self._ledger = Ledger(settings)
        self._changed = threading.Condition()
        self._watches: dict[str, tuple[Callable[[Any], None], float]] = {}
        """Watches of the channels, and when they ended."""
        self._callbacks: list[tuple[Callable[[Any], None], list[Any]]] = []
        self._wake = threading.Event()
        threading.Thread(
            target=_follow, args=(weakref.ref(self), self._wake), name="avactl-client", daemon=True
        ).start()

    # -- calls

    def begin(self, tried: Iterable[str], deadline: float | None, *, wait: bool, block: bool = True) -> Attempt:
        """Choose a server for a call and count the call, as `Ledger.begin`; `deadline` in monotonic time."""
        with self._changed:
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                found = self._ledger.begin(tried, left, wait=wait, block=block)
                if found is not None:
                    return found
                self._changed.wait(TURN if left is None else min(left, TURN))

    def respond(self, attempt: Attempt, *, measure: bool) -> None:
        """Take in the first response to a call."""
        with self._changed:
            self._ledger.respond(attempt, measure=measure)

    def end(self, attempt: Attempt, code: grpc.StatusCode | None, responded: bool) -> None:
        """Take in the end of a call; `responded`: it had a response before."""
        with self._changed:
            failed = self._ledger.end(attempt, code, responded)
        if failed:
            self._wake.set()

    def repeats(self, error: Any, responded: bool) -> bool:
        """Return True if a failed call may be sent again."""
        return self._ledger.repeats(error, responded)

    def has_other(self, tried: Sequence[str]) -> bool:
        """Return True if there is a server that was not tried."""
        with self._changed:
            return self._ledger.has_other(tried)

    # -- servers

    def subscribe(self, callback: Callable[[Any], None]) -> None:
        """Call a function with the connectivity, now and after changes, in the thread that follows the servers."""
        with self._changed:
            self._callbacks.append((callback, [None]))

    def unsubscribe(self, callback: Callable[[Any], None]) -> None:
        """Call a function no more."""
        with self._changed:
            self._callbacks = [each for each in self._callbacks if each[0] != callback]

    def addresses(self) -> dict[str, bool]:
        """Return the addresses of the servers, and whether each gets calls now."""
        with self._changed:
            return self._ledger.usable()

    def follow(self, look_up: bool) -> None:
        """Bring servers and connections up to date; `look_up`: ask DNS, too."""
        if look_up:
            found = self._ledger.look_up()
            with self._changed:
                self._ledger.take(*found)
                self._changed.notify_all()
        with self._changed:
            gone, due = self._ledger.leave(), self._ledger.due()
        for address, channel in due:
            self._watch(address, channel)
        for address, channel in gone:
            self._close(address, channel)
        with self._changed:
            state = self._ledger.state()
            told = [each for each in self._callbacks if each[1] != [state]]
        for callback, last in told:
            last[0] = state
            callback(state)

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
            if self._ledger.closed:
                return
            self._ledger.connecting.add(address)
            self._watches[address] = (seen, float("inf"))
        channel.subscribe(seen, try_to_connect=True)

    def _watched(self, address: str, seen: Callable[[Any], None]) -> None:
        """Take in the end of a watch, unless the address has another channel by now."""
        with self._changed:
            if self._watches.get(address, (None, 0.0))[0] is seen:
                self._watches[address] = (seen, time.monotonic())
                self._ledger.connecting.discard(address)

    def _seen(self, address: str, channel: Any, state: Any) -> bool:
        with self._changed:
            done = self._ledger.see(address, channel, state)
            self._changed.notify_all()
            return done

    def close(self) -> None:
        """Close all connections; calls in flight end with CANCELLED."""
        with self._changed:
            self._ledger.closed = True
            channels = list(self._ledger.channels.items())
            self._ledger.channels.clear()
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
        return self._ledger.closed


def _follow(reference: weakref.ReferenceType[Pool], wake: threading.Event) -> None:
    """Keep a pool up to date until it is closed or has gone."""
    looked = float("-inf")
    while True:
        pool = reference()
        if pool is None or pool.closed:
            return
        now = time.monotonic()
        due = now - looked >= (min(SOONEST, pool.interval) if wake.is_set() else pool.interval)
        if due:
            wake.clear()
            looked = now
        pool.follow(due)
        del pool
        time.sleep(TURN)
