"""Synchronous training by workers that come and go: steps that all members of a round make together.

A step begins when all members have arrived: then each of them has the step before in its state. It ends with a sum over
all members. If the round ends in between, either no worker got the sum, and the survivors do the step again in the next
round; or some did, and the others take the state from one of them. So a step is in the state of all, or of none.
"""

from __future__ import annotations

import logging
import os
import queue
import struct
import threading
import time
from collections import deque
from statistics import median
from typing import Any, Callable, Iterator, NamedTuple

from avactl_worker import messages as m
from avactl_worker import ring, state
from avactl_worker.dataset import Dataset, Reader
from avactl_worker.feed import Feed
from avactl_worker.ring import Finished, Ring, Round, RoundEnded
from avactl_worker.session import MasterError, Session
from avactl_worker.step import Step

log = logging.getLogger("avactl_worker")

_SYNC = struct.Struct("<QQQ")
"""Steps in the state, the round of the last one, and history: together they tell states apart."""
_LENGTH = struct.Struct("<Q")
_BEGIN = struct.Struct("<QQB")
"""Steps in the state, records, and flags."""
_SUM = struct.Struct("<QQd")
"""Steps in the state, number of values, and weight."""
_ENDED, _LINGERS, _WANTED = 1, 2, 4
_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds after which the master is asked again when no worker of the group has records."""
_REPORT = 30.0
"""Seconds after which that is reported."""
_STEPS, _ENOUGH = 32, 8
"""Steps whose median is this worker's pace, at most and at least."""
_SMALLEST = 0.2
"""Share of a whole step. A worker whose own work takes less than that is as fast as any: it does not slow others."""


class _LeavingError(Exception):
    """The master has told this worker to leave, and all members know it."""


class _Totals(NamedTuple):
    """What the members say when a step begins."""

    records: int
    over: bool
    """True if no member has anything left to do, or one of them has waited for that."""
    idle: bool
    """True if all members wait for the leader."""


class Group:
    """The workers that train together, and this one's place among them. See `Master.group`."""

    def __init__(self, session: Session, things: Any, least: int, most: int) -> None:
        self._session, self._least, self._most = session, least, most
        session.steps = True
        self._state = state.of(things)
        self._listener = ring.listen(session.address)
        self.rank, self.size = 0, 1
        """Place in the current round, and its size; both change between steps only."""
        self.step = 0
        """Steps that are in the state. Set it after loading a checkpoint."""
        self._history = 0
        """Random number of the first round; 0: own initial state."""
        self.loads = 0
        """States taken from other workers."""
        self._applied_in = 0
        """Round in which the last step was made."""
        self._round: Round | None = None
        self._ring: Ring | None = None
        self._last = m.Round()
        self._broken = False
        self._own, self._since = 0.0, 0.0
        """Seconds of this worker's own work in the step so far, and since when it goes on; 0: it does not."""
        self._times: deque[tuple[float, float]] = deque(maxlen=_STEPS)
        """Of the last steps: seconds of its own work, and time at the end."""
        self._looped = False
        """True if a loop has ended by itself: this worker has the final state."""
        self._connects: list[Callable[[Round], Callable[[], None]]] = []
        self._closing: list[Callable[[], None]] = []
        self._closed = False
        self._rounds: queue.SimpleQueue[Round | None] = queue.SimpleQueue()
        """Rounds to watch; None ends that."""
        threading.Thread(target=self._watch, name="avactl-rounds", daemon=True).start()

    @property
    def leader(self) -> bool:
        """True on the one worker that saves results: pod 0 of the job, with which the job ends; elsewhere rank 0.

        False before the first step, and on a worker that has no state because training had finished before.
        """
        index = os.environ.get("AVACTL_INDEX")
        first = self.rank == 0 if index is None else index == "0" and os.environ.get("LOCAL_RANK", "0") == "0"
        return first and self._last.revision > 0

    @property
    def revision(self) -> int:
        """Number of the current round."""
        return self._last.revision

    def each_round(self, connect: Callable[[Round], Callable[[], None]]) -> None:
        """Call `connect` at the beginning of each round; what it returns is called at the end.

        It may raise RoundEnded.
        """
        self._connects.append(connect)

    # -- loops -------------------------------------------------------------------------------------------------------

    def steps(self, total: int | None = None) -> Iterator[Step]:
        """Yield steps until `total` are in the state (default: for ever). If a round ends, a step is done again.

        Cut the data by `group.rank` and `group.size`, which may be others when a step is done again.
        """
        self._looped = False
        try:
            while True:
                ended = False
                try:
                    self._form()
                    ended = total is not None and self.step >= total
                    totals = self._begin(0 if ended else 1, _ENDED if ended else 0, may_leave=not ended)
                except RoundEnded as why:
                    self._leave(why)
                    continue
                except _LeavingError:
                    self._depart()
                if totals.over:
                    break
                if ended:
                    raise MasterError(f"this worker's loop ends after step {self.step}, and others go on")
                yield from _checked(Step(self, None, 1, repeatable=False))
        except Finished:
            log.warning("synchronous training had finished before this worker joined")
        self._looped = True

    def batches(self, data: Dataset[Any], size: int, read: Reader[Any] | None = None) -> Iterator[Step]:
        """Yield steps with a `batch`: this worker's part of `size` records, at least one, which the master hands out.

        A record counts when the step is in the state of all workers. At the end of an epoch, when others have the last
        records, a worker gets its last batch again, with a weight of 0.
        """
        self._looped = False
        feed, step, idle = Feed(data, read), None, 0.0
        try:
            while True:
                try:
                    self._form()
                    if step is not None:
                        feed.settle(self._has(step), step.metrics)
                    if not feed.batch:
                        feed.pull(max(1, size // self.size + (self.rank < size % self.size)))
                    ended = data.finished and not feed.batch
                    totals = self._begin(len(feed.batch), _ENDED if ended else 0, may_leave=not ended)
                except RoundEnded as why:
                    self._leave(why)
                    continue
                except _LeavingError:
                    feed.commit()
                    feed.close()
                    self._depart()
                step = None
                feed.commit()
                if totals.over:
                    break
                if not totals.records:
                    idle = self._idle(idle, data)
                    continue
                idle = 0.0
                step = Step(self, feed.batch or feed.any_batch(), len(feed.batch), repeatable=True)
                yield from _checked(step)
        except Finished:
            log.warning("synchronous training had finished before this worker joined")
        finally:
            feed.close()
        self._looped = True

    def _has(self, step: Step) -> bool:
        """Return True if a step is in the state.

        Also one that was interrupted here, if others got the sum; not one that was made here, if the others have lost
        this worker meanwhile, and made it without its part.
        """
        return self.step == step.number and self._applied_in in step.tried

    def _idle(self, before: float, data: Dataset[Any]) -> float:
        """Wait until there may be records again; return the seconds for which there were none."""
        pause = min(max(_PAUSE, before), _LONGEST_PAUSE)
        time.sleep(pause)
        self._own = self._since = 0.0
        if before // _REPORT != (before + pause) // _REPORT:
            log.warning(
                "dataset %s: workers outside of the group have had its last tasks for %.0f s", data.name, before
            )
        return before + pause

    # -- rounds ------------------------------------------------------------------------------------------------------

    def _form(self) -> None:
        """Be in a round, with the state of its first member. Raises Finished."""
        while self._round is None:
            place = self._ask()
            current = self._round = Round(place)
            self._rounds.put(current)
            self._last, self.rank, self.size = place, place.rank, place.size
            try:
                self._ring = Ring(current, self._listener)
                self._ring.doing = f"round {place.revision}"
                self._synchronise(self._ring, place)
                for each in self._connects:
                    self._closing.append(each(current))
                current.check()
            except RoundEnded as why:
                self._leave(why)
            except Finished:
                self._leave(RoundEnded("training is finished", broken=False))
                raise
            else:
                log.info("round %d: rank %d of %d, step %d", place.revision, self.rank, self.size, self.step)

    def _ask(self) -> m.Round:
        if self._closed:
            raise MasterError("the group was closed")
        broken, told, began = self._broken, "", time.monotonic()
        while True:
            asked = m.Rendezvous(
                round=self._last,
                broken=broken,
                address=ring.address_of(self._listener),
                step=self.step,
                least=self._least,
                most=self._most,
            )
            answer = self._session.ask(rendezvous=asked)
            if answer.finished:
                raise Finished
            if answer.round is not None:
                if told:
                    log.warning("round %d has begun", answer.round.revision)
                return answer.round
            if answer.change is not None and answer.change.reason != told:
                told = answer.change.reason
                log.warning("no round for %.0f s: waiting for %s", time.monotonic() - began, told)

    def _leave(self, why: RoundEnded) -> None:
        """Leave the round."""
        self._own = self._since = 0.0
        self._times.clear()
        self._broken = why.broken
        current, self._round = self._round, None
        log.info("round %d ended: %s", self._last.revision, why.reason)
        for close in self._closing:
            close()
        self._closing = []
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        if current is not None:
            current.close()

    def _synchronise(self, links: Ring, place: m.Round) -> None:
        """Take the state of rank 0 where it differs."""
        mine = (self.step, self._applied_in, self._history)
        found = [_SYNC.unpack(each) for each in links.gather(_SYNC.pack(*mine))]
        first = found[0]
        step, applied_in, history = first
        if any(each != first or not history for each in found[1:]):
            own = self._state.dump() if self.rank == 0 else b""
            (length,) = _LENGTH.unpack(links.gather(_LENGTH.pack(len(own)))[0])
            data = links.broadcast(own, length)
            if self.rank and (mine != first or not history):
                self._state.load(data)
                self.loads += 1
                self.step, self._applied_in = step, applied_in
        self._history = history or int.from_bytes(place.token[:7], "big") | 1

    def _begin(self, records: int, flags: int, may_leave: bool = False) -> _Totals:
        """Meet all members at the beginning of a step; all of them have the step before then.

        Raises _LeavingError if the worker may leave, and the master wants it to.
        """
        assert self._round is not None
        assert self._ring is not None
        self._arrived()
        self._round.check()
        last = flags & _LINGERS
        self._ring.doing = "after the last step, until the leader leaves" if last else f"step {self.step + 1} begins"
        leaving = may_leave and bool(self._session.leaving)
        flags |= _WANTED if self._round.wanted or leaving else 0
        found = [_BEGIN.unpack(each) for each in self._ring.gather(_BEGIN.pack(self.step, records, flags))]
        if any(each[0] != self.step for each in found):
            raise MasterError(f"members of round {self._last.revision} have {[each[0] for each in found]} steps")
        if leaving:
            raise _LeavingError
        if any(each[2] & _WANTED for each in found):
            raise RoundEnded("workers join or leave", broken=False)
        self._since = time.monotonic()
        lingers = [bool(each[2] & _LINGERS) for each in found]
        ended = all(each[2] & _ENDED for each in found)
        return _Totals(sum(each[1] for each in found), ended or any(lingers), all(lingers))

    def together(self, count: int, weight: float, run: Callable[[Ring, float], Any]) -> Any:
        """Call `run` on all members together, with the sum of their weights. Raises RoundEnded.

        Raises MasterError if `count` is not the same everywhere.
        """
        assert self._ring is not None
        assert self._round is not None
        self._arrived()
        self._round.check()
        self._ring.doing = f"step {self.step + 1} ends"
        found = [_SUM.unpack(each) for each in self._ring.gather(_SUM.pack(self.step, count, weight))]
        if any(each[:2] != (self.step, count) for each in found):
            counts = [each[1] for each in found]
            raise MasterError(f"all workers must sum the same number of values; by rank they sum {counts}")
        result = run(self._ring, sum(each[2] for each in found))
        self._since = time.monotonic()
        return result

    def again(self, step: Step, why: RoundEnded) -> bool:
        """Meet the members of the next round; return True if the step is to be made with the same values there."""
        loads = self.loads
        while True:
            self._leave(why)
            try:
                self._form()
                if self.step != step.number - 1 or self.loads != loads:
                    return False
                totals = self._begin(step.records, 0)
            except RoundEnded as ended:
                why = ended
                continue
            return totals.records > 0 and not totals.over

    def applied(self) -> None:
        """Note that the step is in this worker's state."""
        self.step += 1
        self._applied_in = self._last.revision
        self._arrived()
        self._times.append((self._own, time.monotonic()))
        self._own, self._since = 0.0, time.monotonic()
        if len(self._times) > _ENOUGH:
            ends = [end for _, end in self._times]
            whole = median(after - before for before, after in zip(ends, ends[1:]))
            self._session.pace = 1 / max(median(own for own, _ in self._times), _SMALLEST * whole, 1e-9)

    def _arrived(self) -> None:
        """Note that this worker has done its own work, and begins to wait for the others."""
        if self._since:
            self._own, self._since = self._own + time.monotonic() - self._since, 0.0

    def leave(self, why: RoundEnded) -> None:
        """Leave the round."""
        if self._round is not None:
            self._leave(why)

    # -- end ---------------------------------------------------------------------------------------------------------

    def close(self, finish: bool = True) -> None:
        """Leave the group.

        With `finish`, after a loop that has ended: wait until the leader has closed it too, because a leader that is
        started again takes the final state from the others.
        """
        if self._closed:
            return
        if finish and self._looped:
            self._linger()
        self._closed = True
        if self._round is not None:
            self._leave(RoundEnded("this worker has left"))
        self._listener.close()
        self._rounds.put(None)

    def _depart(self) -> None:
        """Leave the group and the job, and end this process: another one takes its place. The others make steps on."""
        self.close(finish=False)
        self._session.depart()

    def _linger(self) -> None:
        try:
            while not self.leader:
                try:
                    self._form()
                    assert self._ring is not None
                    if self._begin(0, _ENDED | _LINGERS).idle:
                        self._ring.wait("after the last step: waiting for the leader, which is not there")
                except RoundEnded as why:
                    self._leave(why)
            self._session.ask(finish=m.Finish(step=self.step))
        except Finished:
            return

    def _watch(self) -> None:
        """Follow what the master says about each round, in a thread."""
        for current in iter(self._rounds.get, None):
            while not current.over:
                watch = m.Watch(round=current.place, heard=current.wanted)
                try:
                    change = self._session.ask(watch=watch).change
                except MasterError as error:
                    # A round goes on without a master for as long as nothing changes.
                    log.debug("%s", error)
                    time.sleep(0.5)
                    continue
                if change is not None:
                    log.info("round %d: %s", current.place.revision, change.reason or "finished")
                    current.tell(change)


def _checked(step: Step) -> Iterator[Step]:
    yield step
    if not step.entered:
        raise RuntimeError("write `with step:` around the body of the loop: it may have to be done again")
