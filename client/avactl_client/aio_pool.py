"""The servers of a channel for one event loop: a task follows DNS and connects."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from typing import Any, Iterable

import grpc
import grpc.aio

from avactl_client.ledger import SOONEST, TURN, Attempt, Ledger, Settings


class Pool:
    """The servers of a target, in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.ledger = Ledger(settings)
        self.failed = False
        """True if a server has failed since the last look-up."""
        self._moved: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to follow the servers, in the running event loop."""
        if self._moved is None and not self.ledger.closed:
            self._moved = asyncio.Event()
            self._spawn(_follow(weakref.ref(self)))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def begin(self, tried: Iterable[str], deadline: float | None, *, wait: bool) -> Attempt:
        """Choose a server for a call and count the call, as `Ledger.begin`; `deadline` in monotonic time."""
        self.start()
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            found = self.ledger.begin(tried, left, wait=wait)
            if found is not None:
                return found
            await self.change(left)

    def end(self, attempt: Attempt, code: grpc.StatusCode | None, responded: bool) -> None:
        """Take in the end of a call; `responded`: it had a response before."""
        self.failed |= self.ledger.end(attempt, code, responded)

    async def change(self, most: float | None = None) -> None:
        """Wait until the servers have changed, for a short time at most."""
        assert self._moved is not None
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._moved.wait(), TURN if most is None else min(most, TURN))

    def move(self) -> None:
        """Wake all that wait for a change."""
        assert self._moved is not None
        self._moved.set()
        self._moved = asyncio.Event()

    async def follow(self, look_up: bool) -> None:
        """Bring servers and connections up to date; `look_up`: ask DNS, too."""
        if look_up:
            found = await asyncio.get_running_loop().run_in_executor(None, self.ledger.look_up)
            self.ledger.take(*found)
            self.move()
        if self.ledger.closed:
            return
        for address, channel in self.ledger.due():
            self.ledger.connecting.add(address)
            self._spawn(_watch(weakref.ref(self), address, channel))
        for _, channel in self.ledger.leave():
            self._spawn(channel.close())

    async def close(self, grace: float | None) -> None:
        """Close all connections; calls in flight have `grace` seconds to end."""
        self.ledger.closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._moved is not None:
            self.move()
        channels = list(self.ledger.channels.values())
        self.ledger.channels.clear()
        await asyncio.gather(*(channel.close(grace) for channel in channels))


async def _follow(reference: weakref.ReferenceType[Pool]) -> None:
    """Keep a pool up to date until it is closed or has gone."""
    looked = float("-inf")
    while True:
        pool = reference()
        if pool is None or pool.ledger.closed:
            return
        now, interval = time.monotonic(), pool.ledger.settings.interval
        due = now - looked >= (min(SOONEST, interval) if pool.failed else interval)
        if due:
            pool.failed, looked = False, now
        await pool.follow(due)
        del pool
        await asyncio.sleep(TURN)


async def _watch(reference: weakref.ReferenceType[Pool], address: str, channel: Any) -> None:
    """Connect a server, and take in its states until it is connected or has gone."""
    while True:
        state = channel.get_state(try_to_connect=True)
        pool = reference()
        if pool is None:
            return
        done = pool.ledger.see(address, channel, state)
        if done and pool.ledger.channels.get(address) is channel:
            pool.ledger.connecting.discard(address)
        pool.move()
        del pool
        if done:
            return
        try:
            await channel.wait_for_state_change(state)
        except grpc.aio.UsageError:  # closed
            return
