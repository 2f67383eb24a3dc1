"""Rounds of synchronous training: which workers train together, and in which order.

The members of a round are fixed. A round ends when a member is lost, and at the end of a step when workers want to
join. The next one begins when every live member of the last one has asked for it. Rank 0 has the most steps in its
state, and among these is the longest member: the others take its state.

Nothing here is saved: workers tell a restarted master which round they are in. Pure, time comes as an argument.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from avactl_worker import messages as m

from avactl.daemons.elastic.job import LEASE, MAX_WORKERS, JobError
from avactl.daemons.elastic.values import Values
from avactl.daemons.elastic.workers import ElasticWorker
from avactl.kube import logs

QUIET = 0.5
"""Seconds without one more new worker, after which a round ends for those that wait: they often come together."""
LONGEST = 3.0
"""Seconds that a new worker waits for more of them."""
RETURN = 3.0
"""Seconds in which members of a broken round come back to a restarted master."""
_MAX_ADDRESS_LENGTH = 300
"""Characters."""
_MAX_NAMES = 10
"""Workers that are named in a message."""


@dataclass(slots=True)
class _Candidate:
    """A worker that asks for the next round."""

    worker: ElasticWorker
    asked: m.Rendezvous
    rank: int | None
    """Rank in the last round, of its members."""
    since: float


@dataclass(slots=True)
class _Seat:
    """A member that has not left the current round."""

    worker: ElasticWorker | None
    """None until the worker tells a restarted master about its round."""
    away: float | None = None
    """Since when there is no connection to it."""


class Rounds:
    """The current round, and the workers that wait for the next one."""

    def __init__(self, opens: float = 0.0) -> None:
        """`opens`: no round is formed before, because workers with a state may still come back."""
        self._opens = opens
        self.revision = 0
        """Number of the current or last round."""
        self.size = 0
        """Members that it began with."""
        self.step = 0
        """Steps of rank 0 when it began."""
        self.values: Values | None = None
        """Store of the round; None if it was lost with the master before."""
        self.changed = 0
        """Counts up whenever a worker that waits may be answered."""
        self._seats: dict[int, _Seat] = {}
        self._candidates: dict[int, _Candidate] = {}
        self._placed: dict[int, m.Round] = {}
        self._token = b""
        self._broken = ""
        self._wanted = ""
        self._few = 0

    # -- requests ----------------------------------------------------------------------------------------------------

    def ask(self, worker: ElasticWorker, asked: m.Rendezvous, now: float, again: bool = False) -> m.Round | None:
        """Return the worker's place in the next round, or None until it is formed. The worker leaves its round.

        `again`: the request is the same as before.
        """
        told = asked.round or m.Round()
        place = self._find_place(worker, told)
        if place is not None or again:
            return place
        if worker.index not in self._candidates:
            if not 1 <= len(asked.address) <= _MAX_ADDRESS_LENGTH:
                raise JobError(f"an address has 1 to {_MAX_ADDRESS_LENGTH} characters")
            self._adopt_round(told, now)
            before = self._placed.get(worker.index)
            rank = before.rank if before is not None else None
            if told.revision and self._is_current(told):
                rank = told.rank
                self._seats.pop(rank, None)
                if asked.broken:
                    self._break_round(f"{worker.name} has lost its connection to a peer")
            for each in [each for each, seat in self._seats.items() if seat.worker is worker]:
                del self._seats[each]  # it never got its place, or is not what it was
            self._candidates[worker.index] = _Candidate(worker, asked, rank, now)
        self.advance(now)
        return self._find_place(worker, told)

    def watch(self, worker: ElasticWorker, watch: m.Watch, now: float) -> m.Change | None:
        """Return what a member of a round must know, or None until there is something."""
        told = watch.round or m.Round()
        self._adopt_round(told, now)
        if not self._is_current(told):
            return m.Change(broken=True, reason=f"round {told.revision} is over")
        seat = self._seats.get(told.rank)
        if seat is not None and seat.worker is None:
            seat.worker, seat.away = worker, None
        if seat is None or seat.worker is not worker:
            return m.Change(broken=True, reason="this worker is not in the round any more")
        if self._broken:
            return m.Change(broken=True, reason=self._broken)
        return m.Change(wanted=True, reason=self._wanted) if self._wanted and not watch.heard else None

    def reason(self) -> str:
        """Return what the workers that ask for the next round wait for."""
        least = max((each.asked.least for each in self._candidates.values()), default=0)
        if self._seats:
            away = [f"rank {rank}" if seat.worker is None else seat.worker.name for rank, seat in self._seats.items()]
            more = f" and {len(away) - _MAX_NAMES} more" if len(away) > _MAX_NAMES else ""
            return f"{', '.join(away[:_MAX_NAMES])}{more} to end a step of round {self.revision}"
        if len(self._candidates) < least:
            return f"more workers: {len(self._candidates)} of at least {least} are there"
        return "workers that join"

    def status(self) -> dict[str, Any]:
        """Return the current round, and how many wait for the next one."""
        waiting = len(self._candidates)
        found = {"revision": self.revision, "workers": self.size, "waiting": waiting}
        return {**found, "waitsFor": self.reason() if waiting else ""}

    # -- workers -----------------------------------------------------------------------------------------------------

    def connected(self, worker: ElasticWorker) -> None:
        """Note that a worker has a connection again."""
        for seat in self._seats.values():
            if seat.worker is worker:
                seat.away = None

    def disconnected(self, worker: ElasticWorker, now: float) -> None:
        """Note that a worker has no connection. Alone, that ends no round."""
        self._candidates.pop(worker.index, None)
        for seat in self._seats.values():
            if seat.worker is worker:
                seat.away = now
        self.advance(now)

    def gone(self, worker: ElasticWorker, now: float) -> None:
        """Take a worker out of the round: it was lost, replaced, or has left."""
        self._candidates.pop(worker.index, None)
        self._placed.pop(worker.index, None)
        for rank in [rank for rank, seat in self._seats.items() if seat.worker is worker]:
            del self._seats[rank]
            self._break_round(f"{worker.name} has left or was lost")
        self.advance(now)

    # -- rounds ------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Follow the time: drop members that do not come back, and form the next round."""
        self._drop_lost(now)
        waiting = self._candidates
        if self._seats:
            fresh = self._waiting_candidates()
            if fresh and not self._wanted and self._is_gathered(now):
                names = ", ".join(each.worker.name for each in fresh[:_MAX_NAMES])
                self._wanted = f"{names} {'join' if len(fresh) > 1 else 'joins'}"
                self.changed += 1
            return
        if not waiting or now < self._opens:
            return
        least = max(each.asked.least for each in waiting.values())
        survivors = [each for each in waiting.values() if each.rank is not None]
        if self._broken and survivors and len(survivors) >= least:
            # They have a step to repeat, for which those that join would have to compute first.
            self._form_round(survivors)
            return
        if not self._is_gathered(now):
            return
        if len(waiting) < least:
            if self._few != len(waiting):
                self._few = len(waiting)
                logs.warn("waiting for workers", workers=len(waiting), least=least)
            return
        self._form_round(list(waiting.values()))

    def _form_round(self, chosen: list[_Candidate]) -> None:
        last = 2 * MAX_WORKERS
        order = sorted(
            chosen,
            key=lambda each: (-each.asked.step, last if each.rank is None else each.rank, each.since),
        )
        self.revision, self.size, self._broken, self._few = self.revision + 1, len(order), "", 0
        self._wanted = ""
        token = self._token = secrets.token_bytes(16)
        self.values = Values()
        self._seats = {rank: _Seat(each.worker) for rank, each in enumerate(order)}
        self._placed = {}
        for rank, each in enumerate(order):
            after, before = order[(rank + 1) % self.size], order[rank - 1]
            self._placed[each.worker.index] = m.Round(
                revision=self.revision,
                rank=rank,
                size=self.size,
                token=token,
                next=after.asked.address,
                after=after.worker.name,
                before=before.worker.name,
            )
        for each in chosen:
            del self._candidates[each.worker.index]
        self.changed += 1
        first = order[0]
        self.step = first.asked.step
        logs.info(
            "round formed", revision=self.revision, workers=self.size, first=first.worker.name, step=first.asked.step
        )

    def _find_place(self, worker: ElasticWorker, told: m.Round) -> m.Round | None:
        """Return the worker's place in the current round, also again if the answer was lost."""
        place = self._placed.get(worker.index)
        if place is None or told.revision >= self.revision or self._broken:
            return None
        seat = self._seats.get(place.rank)
        return place if seat is not None and seat.worker is worker else None

    def _is_current(self, told: m.Round) -> bool:
        """Return True if a worker means the current round: workers of a lost master may have one of the same number."""
        return told.revision == self.revision and told.token == self._token

    def _adopt_round(self, told: m.Round, now: float) -> None:
        """Believe a worker that this master is another one than when the round was formed."""
        if told.revision <= self.revision:
            return
        if not 0 <= told.rank < told.size <= MAX_WORKERS or told.revision > 2**60:
            raise JobError(f"no round has rank {told.rank} of {told.size}, and number {told.revision}")
        self.revision, self.size, self.values, self._broken = told.revision, told.size, None, ""
        self._wanted, self._token = "", told.token
        self._seats = {rank: _Seat(None, now) for rank in range(told.size)}
        self._placed = {}
        self.changed += 1
        logs.info("round goes on", revision=told.revision, workers=told.size)

    def _break_round(self, reason: str) -> None:
        if not self._broken:
            self._broken = reason
            self.changed += 1
            logs.info("round broken", revision=self.revision, reason=reason)

    def _drop_lost(self, now: float) -> None:
        """Drop members that do not come back.

        A closed connection counts only together with a peer that has lost them too. Otherwise the lease decides.
        """
        for rank, seat in list(self._seats.items()):
            if seat.away is None:
                continue
            if seat.worker is None:
                patience = RETURN if self._broken else LEASE
            elif self._broken:
                patience = 0.0
            else:
                continue
            if now - seat.away >= patience:
                del self._seats[rank]
                self._break_round(
                    f"{'rank ' + str(rank) if seat.worker is None else seat.worker.name} does not come back"
                )
                self.changed += 1

    def _waiting_candidates(self) -> list[_Candidate]:
        return [each for each in self._candidates.values() if each.rank is None]

    def _is_gathered(self, now: float) -> bool:
        """Return True if there is no use in waiting for more workers to join."""
        times = [each.since for each in self._waiting_candidates()]
        if not times:
            return True
        most = max(each.asked.most for each in self._candidates.values())
        there = len(self._candidates) + len(self._seats)
        return 0 < most <= there or now - max(times) >= QUIET or now - min(times) >= LONGEST
