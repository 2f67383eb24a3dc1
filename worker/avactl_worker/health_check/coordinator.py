"""The coordinator of a check, in the pod of worker 0: it tells the workers whom to test, and who leaves.

Another pod of worker 0 begins anew. What must outlive it, the number of replaced workers, all workers know.
"""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping, Sequence

from avactl_worker.health_check.diagnosis import Diagnosis, Result
from avactl_worker.health_check.frames import GREETING, Channel, Message, ProtocolError
from avactl_worker.health_check.settings import FAILED, MAX_PROCESSES, REPLACED, STARTS, Settings, patience

BEAT = 5.0
"""Seconds between two messages to a worker that waits."""
_SLACK = 1.5
"""Factor of the time for a test after which a worker without a report counts as one that does not answer."""
_FAREWELL = 10.0
"""Seconds in which workers must have read the end of the check."""
_SHOWN = 8
"""Workers that a message names."""
_BACKENDS = ("nccl", "gloo", "sockets")


@dataclass(frozen=True)
class _Hello:
    """A worker, as it describes itself."""

    index: int
    incarnation: str
    address: str
    port: int
    backend: str
    devices: int
    gpus: int
    replaced: dict[int, int]
    """Workers that have been replaced, and how often."""


class _RefusedError(ValueError):
    """The worker does not belong here."""


class Coordinator:
    """Runs a check to its end in `serve`."""

    def __init__(self, listener: socket.socket, settings: Settings, log: Callable[[str], None]) -> None:
        self._settings, self._log = settings, log
        self._diagnosis = Diagnosis(settings.below)
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._strangers: dict[Channel, float] = {}
        """Connections without a hello, and when they came."""
        self._members: dict[int, Channel] = {}
        self._hellos: dict[int, _Hello] = {}
        self._known: dict[int, str] = {}
        """Incarnations by index."""
        self._replaced: dict[int, int] = {}
        self._leaving: dict[int, str] = {}
        """Incarnations of workers that were told to leave."""
        self._reports: dict[int, Result] = {}
        self._round = 0
        self._since = self._changed = time.monotonic()
        """When this check began or the last workers were told to leave, and when the last worker came."""
        self._beaten = time.monotonic()
        self._told = ""

    def serve(self) -> None:
        """Coordinate until all workers know the outcome."""
        try:
            found = self._outcome()
            if found is not None:
                self._broadcast({"end": found[0], "message": found[1]})
            self._poll_until(lambda: not self._members, time.monotonic() + _FAREWELL)
        finally:
            for channel in [*self._strangers, *self._members.values()]:
                channel.close()
            self._listener.close()
            self._selector.close()

    def _outcome(self) -> tuple[int, str] | None:
        """Return the exit code of all workers and why; None if another pod of worker 0 goes on."""
        while True:
            if not self._gather():
                return self._incomplete()
            present = sorted(self._members)
            groups = self._diagnosis.groups(present)
            if groups:
                self._test(groups)
                continue
            faulty = self._at_fault(present)
            if faulty is None:
                return FAILED, f"no two of {len(present)} workers could exchange data: {self._diagnosis.error}"
            slow = self._slow_ones(faulty)
            if not faulty and not slow:
                return STARTS, self._passed(present)
            left = self._settings.replacements - sum(self._replaced.values())
            if len(faulty) > left:
                which = "; ".join(f"worker {each}: {why}" for each, why in [*faulty.items()][:_SHOWN])
                return FAILED, f"{_count(len(faulty))} failed, and {max(0, left)} may still be replaced: {which}"
            if self._settings.index in self._replace({**faulty, **slow}):
                return None

    # -- who is here ----------------------------------------------------------------------------------------------

    def _gather(self) -> bool:
        """Wait until all workers are here, or those that will come; False if that takes too long."""
        settings = self._settings

        def complete() -> bool:
            return len(self._members) == settings.workers or self._late()

        self._poll_until(complete, self._since + settings.wait)
        return complete()

    def _late(self) -> bool:
        """Return True if this pod was made again while the others went on, so that they are not in a check."""
        quiet = time.monotonic() - self._changed
        return bool(self._settings.restarts and not self._replaced and self._members and quiet > self._settings.alone)

    def _missing(self) -> list[int]:
        return [each for each in range(self._settings.workers) if each not in self._members]

    def _incomplete(self) -> tuple[int, str]:
        missing, wait = self._missing(), f"{self._settings.wait:g} s"
        if any(each in self._leaving for each in missing):
            return FAILED, f"{_workers(missing)} failed, and no other pod has come for {wait}"
        return STARTS, f"warning: the nodes are not checked: {_workers(missing)} did not come for {wait}"

    # -- tests ----------------------------------------------------------------------------------------------------

    def _test(self, groups: Sequence[Sequence[int]]) -> None:
        self._round += 1
        self._reports = {}
        waiting: set[int] = set()
        for group in groups:
            hellos = [self._hellos[each] for each in group]
            backend = max((each.backend for each in hellos), key=_BACKENDS.index)
            counts = [each.devices if backend == "nccl" else 1 for each in hellos]
            for place, each in enumerate(hellos):
                test = {
                    "round": self._round,
                    "backend": backend,
                    "host": hellos[0].address,
                    "port": hellos[0].port,
                    "first": sum(counts[:place]),
                    "processes": counts[place],
                    "world": sum(counts),
                    "bytes": self._settings.size,
                    "timeout": self._settings.timeout,
                    "with": [other.index for other in hellos if other is not each],
                }
                self._send(each.index, {"test": test})
                waiting.add(each.index)

        def reported() -> bool:
            return all(each in self._reports or each not in self._members for each in waiting)

        self._poll_until(reported, time.monotonic() + _SLACK * patience(self._settings.timeout))
        self._diagnosis.record(groups, self._reports)

    def _at_fault(self, present: Sequence[int]) -> dict[int, str] | None:
        """Return the workers at fault with their errors; None if none passes, and no one in particular is at fault."""
        faulty = {**self._diagnosis.faulty, **self._without_devices()}
        if faulty or not self._diagnosis.stuck:
            return faulty
        if len(present) == 2:
            # One of the two: the one that was not replaced yet, or less often.
            which = min(present, key=lambda each: (self._replaced.get(each, 0), -each))
            return {which: self._diagnosis.error}
        return None

    def _without_devices(self) -> dict[int, str]:
        """Return the workers whose image sees fewer GPUs than they have asked for, if it sees all in other pods."""
        asked = [each for each in self._hellos.values() if each.gpus and each.index in self._members]
        lacking = {each.index: each for each in asked if each.devices < each.gpus}
        if len(lacking) == len(asked):
            return {}
        return {each: f"sees {found.devices} of {found.gpus} GPUs" for each, found in lacking.items()}

    def _slow_ones(self, faulty: Mapping[int, str]) -> dict[int, str]:
        """Return the slow workers that are to be replaced: no more than may be."""
        if not self._settings.replace_slow:
            return {}
        left = self._settings.replacements - sum(self._replaced.values()) - len(faulty)
        slow = sorted(self._diagnosis.slow().items(), key=lambda each: each[1])
        fresh = [each for each in slow if each[0] not in faulty and not self._replaced.get(each[0])]
        return {each: f"{share:.2f} of the median speed" for each, share in fresh[: max(0, left)]}

    def _passed(self, present: Sequence[int]) -> str:
        taken = self._diagnosis.seconds() or 0.0
        means = sorted({self._hellos[each].backend for each in present})
        text = f"{_count(len(present))} passed over {' and '.join(means)}, {taken:.3g} s (median)"
        slow = [f"worker {each} at {share:.2f}" for each, share in self._diagnosis.slow().items()]
        if slow:
            text += f"; slow, as a share of the median speed: {', '.join(slow[:_SHOWN])}"
        if len(present) < self._settings.workers:
            text += f"; {_workers(self._missing())} did not take part"
        return text

    def _replace(self, faulty: Mapping[int, str]) -> Mapping[int, str]:
        """Tell workers to leave."""
        for each in faulty:
            self._replaced[each] = self._replaced.get(each, 0) + 1
        state = {"replaced": {str(each): count for each, count in self._replaced.items()}}
        self._broadcast(state)
        own = self._settings.index
        # Worker 0 last: it has to tell the others.
        for each in sorted(faulty, key=lambda each: each == own):
            self._log(f"worker {each} is replaced: {faulty[each]}")
            self._leaving[each] = self._known[each]
            self._diagnosis.forget(each)
            self._send(each, {"end": REPLACED, "message": f"this worker is replaced: {faulty[each]}"})
        gone = [each for each in faulty if each != own]
        self._poll_until(lambda: not any(each in self._members for each in gone), time.monotonic() + _FAREWELL)
        for each in gone:
            self._drop(each)
        self._since = time.monotonic()
        return faulty

    # -- connections ----------------------------------------------------------------------------------------------

    def _poll_until(self, done: Callable[[], bool], deadline: float) -> None:
        """Serve connections until `done`, or until the deadline."""
        while not done():
            now = time.monotonic()
            left = deadline - now
            if left <= 0:
                return
            if now - self._beaten >= BEAT:
                self._beat()
            for key, events in self._selector.select(min(left, 1.0)):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None:
                    self._serve(key.data, events)
            for channel in [each for each, since in self._strangers.items() if now - since > BEAT]:
                self._close(channel)

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        missing = self._missing()
        state = f"waiting for {_workers(missing)}" if missing else "testing"
        if state != self._told:
            self._told = state
            self._log(state)
        self._broadcast({"state": state})

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        channel = Channel(connection)
        if len(self._strangers) > 2 * self._settings.workers + 64:
            channel.close()
            return
        self._strangers[channel] = time.monotonic()
        self._selector.register(channel, selectors.EVENT_READ, channel)
        try:
            channel.send(GREETING)
        except (OSError, ProtocolError):
            self._close(channel)

    def _serve(self, channel: Channel, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                channel.flush()
                self._watch(channel)
            if not events & selectors.EVENT_READ:
                return
            alive = channel.fill()
            while channel.fileno() >= 0:
                message = channel.next()
                if message is None:
                    break
                self._take(channel, message)
            if not alive:
                self._close(channel)
        except _RefusedError as error:
            with contextlib.suppress(OSError, ProtocolError):
                channel.send({"refused": str(error)})
            self._close(channel)
        except (OSError, ProtocolError, KeyError, TypeError, ValueError, OverflowError):
            self._close(channel)

    def _take(self, channel: Channel, message: Message) -> None:
        if channel in self._strangers:
            self._join(channel, self._hello(message))
            return
        index = next(each for each, other in self._members.items() if other is channel)
        report = message["report"]
        self._hellos[index] = replace(self._hellos[index], port=_port(report["port"]))
        if report["round"] == self._round:
            seconds = float(report["seconds"])
            if not 0 <= seconds <= 1e6:
                raise ProtocolError("no time")
            self._reports[index] = Result(seconds, str(report["error"])[:300])

    def _hello(self, message: Message) -> _Hello:
        """Return a worker's description of itself. Raises _RefusedError, and ValueError and its like for nonsense."""
        told: Mapping[str, Any] = message["hello"]
        index, limit = int(told["index"]), self._settings.workers
        if told["run"] != self._settings.run:
            raise _RefusedError("another run of the job")
        replaced = {int(each): int(count) for each, count in dict(told["replaced"]).items()}
        known = {0 <= each < limit and 0 < count <= self._settings.replacements for each, count in replaced.items()}
        if not 0 <= index < limit or False in known or told["backend"] not in _BACKENDS:
            raise ProtocolError("out of bounds")
        devices, gpus = int(told["devices"]), int(told["gpus"])
        if not (0 <= devices <= MAX_PROCESSES and 0 <= gpus <= MAX_PROCESSES):
            raise ProtocolError("out of bounds")
        return _Hello(
            index,
            str(told["incarnation"])[:64],
            str(ipaddress.ip_address(str(told["address"]))),
            _port(told["port"]),
            told["backend"],
            devices,
            gpus,
            replaced,
        )

    def _join(self, channel: Channel, hello: _Hello) -> None:
        index = hello.index
        if self._leaving.get(index) == hello.incarnation:
            channel.send({"end": REPLACED, "message": "this worker is replaced"})
            return
        if index in self._members:
            self._close(self._members[index])
        if self._known.get(index, hello.incarnation) != hello.incarnation:
            self._diagnosis.forget(index)
        del self._strangers[channel]
        self._leaving.pop(index, None)
        self._known[index] = hello.incarnation
        self._members[index], self._hellos[index] = channel, hello
        for each, count in hello.replaced.items():
            self._replaced[each] = max(count, self._replaced.get(each, 0))
        self._changed = time.monotonic()

    def _watch(self, channel: Channel) -> None:
        if channel.fileno() >= 0:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.unsent else 0)
            self._selector.modify(channel, wanted, channel)

    def _send(self, index: int, message: Message) -> None:
        channel = self._members.get(index)
        if channel is None:
            return
        try:
            channel.send(message)
            self._watch(channel)
        except (OSError, ProtocolError):
            self._close(channel)

    def _broadcast(self, message: Message) -> None:
        for index in list(self._members):
            self._send(index, message)

    def _drop(self, index: int) -> None:
        if index in self._members:
            self._close(self._members[index])

    def _close(self, channel: Channel) -> None:
        self._strangers.pop(channel, None)
        for index in [each for each, other in self._members.items() if other is channel]:
            del self._members[index]
        if channel.fileno() >= 0:
            self._selector.unregister(channel)
        channel.close()


def _port(value: object) -> int:
    found = int(str(value))
    if not 0 < found < 65536:
        raise ProtocolError("no port")
    return found


def _count(number: int) -> str:
    return f"{number} worker{'s' * (number != 1)}"


def _workers(indexes: Sequence[int]) -> str:
    shown = ", ".join(map(str, indexes[:_SHOWN]))
    more = f" and {len(indexes) - _SHOWN} others" if len(indexes) > _SHOWN else ""
    return f"worker{'s' * (len(indexes) != 1)} {shown}{more}"
