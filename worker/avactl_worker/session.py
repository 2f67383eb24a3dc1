"""The connection to the job master: one stream, which is opened again whenever it breaks.

What a worker holds, and what it has finished since the master's state was last safe, is said again on each new stream.
So it does not matter which messages were lost with the one before, or whether the master is another process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import sys
import threading
import time
from collections import OrderedDict
from typing import Any, Callable, Iterator, Tuple

import grpc

from avactl_worker import __version__
from avactl_worker import messages as m
from avactl_worker.wire import WireError

log = logging.getLogger("avactl_worker")
VERSION = __version__

_SILENCE = 8.0
"""Seconds without an answer to a heartbeat after which a stream is given up."""
_HEARTBEAT = 2.0
"""Seconds."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
"""Seconds between two attempts to connect."""
_REMEMBERED = 10_000
"""Reports that are kept until the master says that they are safe."""
_LEAVING = 60.0
"""Seconds in which a script that was told to leave comes to the end of a task or step; then its process is ended."""
_JOIN_TIMEOUT_S = 5.0
"""For the threads of a connection when a worker leaves the job."""
Key = Tuple[str, int, int]
"""Dataset, epoch and position of a task."""


class MasterError(Exception):
    """The master refused a request, or did not answer for too long."""


class OverError(MasterError):
    """The round has ended."""


class _BrokenError(Exception):
    """The stream ended before the answer came."""


class _Stream:
    """One stream. Requests may be sent from several threads."""

    def __init__(self, address: str, note: Callable[[m.Assignment], None]) -> None:
        self._note = note
        """Called with each task that is received, before another stream can be opened."""
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.enable_http_proxy", 0),
            ("grpc.http2.bdp_probe", 0),  # its pings cost the master as much as messages
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: dict[int, queue.SimpleQueue[m.Answer | None]] = {}
        self._lock = threading.Lock()
        self._last = 0
        self.broken = False
        self.error: grpc.RpcError | None = None
        self._threads: list[threading.Thread] = []
        """This stream's threads, gRPC's own among them."""
        self._call = self._channel.stream_stream(m.SESSION)(self._outgoing())
        self._call.add_done_callback(self._note_thread)
        reader = threading.Thread(target=self._read, name="avactl-answers", daemon=True)
        self._threads.append(reader)
        reader.start()

    def _note_thread(self, _: Any = None) -> None:
        self._threads.append(threading.current_thread())

    def _outgoing(self) -> Iterator[bytes]:
        self._note_thread()
        yield from iter(self._requests.get, None)

    def _read(self) -> None:
        try:
            for raw in self._call:
                answer = m.Answer.decode(raw)
                with self._lock:
                    waiting = self._answers.pop(answer.id, None)
                    if waiting is not None and answer.assignment is not None:
                        self._note(answer.assignment)
                if waiting is not None:
                    waiting.put(answer)
        except grpc.RpcError as error:
            self.error = error
        except WireError as error:
            log.warning("the master's answer is not understood: %s", error)
        self.close()

    def ask(self, timeout: float | None, **content: Any) -> m.Answer:
        """Return the answer to a request. Raises _BrokenError, also after `timeout` seconds."""
        waiting: queue.SimpleQueue[m.Answer | None] = queue.SimpleQueue()
        with self._lock:
            if self.broken:
                raise _BrokenError
            self._last += 1
            self._answers[self._last] = waiting
            for message in m.Request(id=self._last, **content).messages():
                self._requests.put(message)
        try:
            answer = waiting.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise _BrokenError from None
        if answer is None:
            raise _BrokenError
        return answer

    def close(self) -> None:
        """End the stream; requests without an answer raise _BrokenError."""
        with self._lock:
            if self.broken:
                return
            self.broken = True
            waiting, self._answers = list(self._answers.values()), {}
        self._requests.put(None)
        for each in waiting:
            each.put(None)
        self._call.cancel()
        self._channel.close()

    def join(self) -> None:
        """Wait until the threads of a closed stream have ended, but not for long.

        Python stops daemon threads where they are when a process exits. One that holds a lock of the call then blocks
        the call's destructor, and the process never ends.
        """
        deadline = time.monotonic() + _JOIN_TIMEOUT_S
        for thread in list(self._threads):
            _join(thread, deadline)


def _join(thread: threading.Thread, deadline: float) -> None:
    if thread is not threading.current_thread():
        thread.join(max(0.0, deadline - time.monotonic()))


class Session:
    """A worker's membership of a job."""

    def __init__(self, address: str, worker: str, patience: float) -> None:
        self.address, self.worker, self._patience = address, worker, patience
        self._incarnation = random.SystemRandom().getrandbits(63)
        self._pid = os.getpid()
        self._stream: _Stream | None = None
        self._opening: _Stream | None = None
        """The one that `_connect` tries."""
        self._connecting = threading.RLock()
        self._state = threading.Lock()
        self._lineage = ""
        self._step = self._begun = self._counted = 0
        self._gradients = 0
        """Gradients of a step that count; 0: all."""
        self._datasets: OrderedDict[str, tuple[bytes, m.Definition]] = OrderedDict()
        self._held: dict[Key, None] = {}
        self._unsaved: OrderedDict[Key, tuple[m.Report, int]] = OrderedDict()
        """Reports, with the number of the event after which they are safe; 0 if they are not acknowledged."""
        self.pace = 0.0
        """Synchronous steps per second of this worker's own work; 0 if unknown."""
        self.leaving = ""
        """Why the master wants this worker to leave; empty if it does not."""
        self.steps = False
        """True if it leaves between two synchronous steps, not between two tasks."""
        self._departed = False
        self._closed = threading.Event()
        self._pause = _HEARTBEAT
        self._refused: MasterError | None = None
        self._usable()
        self._heart = threading.Thread(target=self._beat, name="avactl-heartbeat", daemon=True)
        self._heart.start()

    # -- requests ----------------------------------------------------------------------------------------------------

    def register(self, name: str, digest: bytes, definition: m.Definition) -> None:
        """Register a dataset. Raises MasterError if others have registered another one of this name."""
        while True:
            stream = self._usable()
            try:
                self._register(stream, name, digest, definition)
                break
            except _BrokenError:
                continue
        self._datasets[name] = (digest, definition)

    def work(
        self, datasets: list[str], finished: list[m.Report], returned: list[m.TaskKey], wait: bool
    ) -> tuple[m.Assignment | None, bool]:
        """Report tasks and return the next one, and True if all datasets are finished."""
        self._note(finished, returned)
        first: _Stream | None = None
        while True:
            if self.leaves_between_tasks():
                self.give_back(finished, returned)
                self.depart()
            stream = self._usable()
            # On another stream the reports were sent already, when it was opened.
            reports = finished if first in (None, stream) else []
            first = first or stream
            try:
                answer = self._ask(
                    stream, None, work=m.Work(datasets=datasets, finished=reports, returned=returned, wait=wait)
                )
            except _BrokenError:
                continue
            self._saved(finished, answer)
            if answer.assignment is None and wait and datasets and not answer.finished:
                finished = []  # the master answers from time to time even if there is nothing
                continue
            return answer.assignment, answer.finished

    def _hold(self, assignment: m.Assignment) -> None:
        with self._state:
            self._held[_key(assignment.task)] = None

    def _note(self, finished: list[m.Report], returned: list[m.TaskKey]) -> None:
        with self._state:
            for report in finished:
                key = _key(report.task)
                self._held.pop(key, None)
                self._unsaved[key] = (report, 0)
            for task in returned:
                self._held.pop(_key(task), None)
            while len(self._unsaved) > _REMEMBERED:
                self._unsaved.popitem(last=False)

    def give_back(self, finished: list[m.Report], returned: list[m.TaskKey]) -> None:
        """Report tasks and give others back; waits for no master, because the next stream says it too."""
        self._note(finished, returned)
        stream = self._stream
        if stream is None or self._closed.is_set() or os.getpid() != self._pid:
            return
        try:
            answer = self._ask(stream, _SILENCE, work=m.Work(finished=finished, returned=returned))
            self._saved(finished, answer)
        except _BrokenError:
            return

    def ask(self, **content: Any) -> m.Answer:
        """Return the answer to a request that may be repeated, from whichever master answers it. Raises MasterError."""
        while True:
            try:
                return self._ask(self._usable(), None, **content)
            except _BrokenError:
                continue

    def ask_once(self, **content: Any) -> m.Answer:
        """Return the answer to a request that must not be repeated. Raises OverError if the connection breaks."""
        try:
            return self._ask(self._usable(), None, **content)
        except _BrokenError:
            raise OverError("the connection to the master broke") from None

    def clock(self, step: int, staleness: int, asked: bool) -> int:
        """Wait until a step may begin, and return its number. `asked`: `counts` was called for the step before."""
        self._step = step
        while True:
            try:
                answer = self._ask(self._usable(), None, clock=m.Clock(step=step, staleness=staleness, asked=asked))
            except _BrokenError:
                continue
            if answer.step:
                self._step = self._begun = answer.step
                return answer.step

    def counts(self, step: int) -> bool:
        """Return True if the gradient of a step counts."""
        while self._gradients:
            answer = self.ask(gradient=m.Gradient(step=step))
            if answer.gradient:
                if answer.gradient == 1:
                    self._counted = step
                return answer.gradient == 1
        return True

    def leaves_between_tasks(self) -> bool:
        """Return True if the calling thread is to leave now: it has a task or batch behind it."""
        return bool(self.leaving) and not self.steps and threading.current_thread() is threading.main_thread()

    def depart(self) -> None:
        """Leave the job, and end this process by SystemExit with the code that says that another takes its place."""
        self._departed = True
        self.close()
        if threading.current_thread() is not threading.main_thread():
            self._exit()
        raise SystemExit(m.REPLACED)

    def _told(self, reason: str) -> None:
        self.leaving = reason
        log.warning("the master replaces this worker: %s", reason)
        threading.Thread(target=self._insist, name="avactl-leaving", daemon=True).start()

    def _insist(self) -> None:
        """End a process that does not leave by itself; its tasks are done again."""
        if self._closed.wait(_LEAVING) and not self._departed:
            return  # it has ended well meanwhile
        if self._departed:
            time.sleep(_LEAVING)  # for what the script does on its way out
        self.close()
        self._exit()

    @staticmethod
    def _exit() -> None:
        for each in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                each.flush()
        os._exit(m.REPLACED)

    def close(self) -> None:
        """Leave the job: tasks that are held are free at once."""
        if self._closed.is_set() or os.getpid() != self._pid:
            return
        self._closed.set()
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(_BrokenError):
                stream.ask(1.0, leave=m.Leave())
            stream.close()
        if self._opening is not None:
            self._opening.close()
        _join(self._heart, time.monotonic() + _JOIN_TIMEOUT_S)
        for each in (self._stream, self._opening):
            if each is not None:
                each.close()
                each.join()

    # -- stream ------------------------------------------------------------------------------------------------------

    def _ask(self, stream: _Stream, timeout: float | None, **content: Any) -> m.Answer:
        answer = stream.ask(timeout, **content)
        if answer.error is not None:
            error = (OverError if answer.error.code == "over" else MasterError)(answer.error.message)
            if answer.error.code == "replaced":
                self._refused = error
            raise error
        with self._state:
            for key, (_, number) in list(self._unsaved.items()):
                if not 0 < number <= answer.durable:
                    break
                del self._unsaved[key]
        return answer

    def _saved(self, finished: list[m.Report], answer: m.Answer) -> None:
        with self._state:
            for report in finished:
                key = _key(report.task)
                if key in self._unsaved:
                    self._unsaved[key] = (report, answer.sequence)

    def _usable(self) -> _Stream:
        """Return a stream that works so far, after connecting as long as it takes."""
        stream = self._stream
        if stream is not None and not stream.broken and os.getpid() == self._pid:
            return stream
        deadline = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        told = False
        while True:
            self._check()
            with self._connecting:
                stream = self._connect()
            if stream is not None:
                if told:
                    log.warning("connected to the master at %s again", self.address)
                return stream
            if time.monotonic() > deadline:
                raise MasterError(f"no master at {self.address} for {self._patience:g} s")
            if not told and pause >= _LONGEST_PAUSE:
                told = True
                log.warning("no master at %s: waiting for it", self.address)
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the load only
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise MasterError(
                "this process was forked from the one that connected to the master: connect in the process that reads "
                "the data, or use avactl_worker.torch.Sampler with DataLoader(num_workers=…)"
            )
        if self._closed.is_set():
            raise MasterError("the connection to the master was closed")
        if self._refused is not None:
            raise self._refused

    def _connect(self) -> _Stream | None:
        """Try once to open a stream, and to say all that the master must know; None if there is no master."""
        if self._stream is not None and not self._stream.broken:
            return self._stream
        if self._closed.is_set():
            return None
        self._opening = stream = _Stream(self.address, self._hold)
        try:
            join = m.Join(
                worker=self.worker, incarnation=self._incarnation, library=VERSION, replaceable=_replaceable()
            )
            joined = self._ask(stream, _SILENCE, join=join).joined or m.Joined()
            if self._lineage and joined.lineage != self._lineage:
                log.warning("the master has lost the state of the job: it starts from the beginning")
            self._lineage, self._pause = joined.lineage, joined.heartbeat or _HEARTBEAT
            self._gradients = joined.gradients
            for name, (digest, definition) in list(self._datasets.items()):
                self._register(stream, name, digest, definition)
            with self._state:
                held = [m.TaskKey(dataset=key[0], epoch=key[1], position=key[2]) for key in self._held]
                finished = [report for report, _ in self._unsaved.values()]
            resume = m.Resume(held=held, finished=finished, step=self._step, begun=self._begun, counted=self._counted)
            self._saved(finished, self._ask(stream, _SILENCE, resume=resume))
        except _BrokenError:
            stream.close()
            _raise_if_foreign(stream.error, self.address)
            return None
        except MasterError:
            stream.close()
            raise
        self._stream = stream
        if self._closed.is_set():
            stream.close()  # another thread has left the job meanwhile
        return stream

    def _register(self, stream: _Stream, name: str, digest: bytes, definition: m.Definition) -> None:
        answer = self._ask(stream, _SILENCE, register=m.Registration(name=name, digest=digest))
        if answer.registered is not None and answer.registered.definition_wanted:
            whole = m.Registration(name=name, digest=digest, definition=definition)
            self._ask(stream, 10 * _SILENCE, register=whole)

    def _beat(self) -> None:
        while not self._closed.wait(self._pause):
            try:
                stream = self._stream
                if stream is None or stream.broken:
                    # The script computes: connect for it, so that the master knows what it holds.
                    with self._connecting:
                        stream = self._connect()
                if stream is not None:
                    answer = self._ask(stream, _SILENCE, heartbeat=m.Heartbeat(pace=self.pace))
                    if answer.leave and not self.leaving:
                        self._told(answer.leave)
                self._pause = _HEARTBEAT if stream is not None else _LONGEST_PAUSE
            except _BrokenError:
                self._pause = _FIRST_PAUSE
            except MasterError as error:
                self._refused = error
                return


def _replaceable() -> bool:
    """Return True if this process is the only one of a pod of a TrainingJob, and the job can do without the pod."""
    return os.environ.get("AVACTL_INDEX", "0") != "0" and "LOCAL_RANK" not in os.environ


def _key(task: m.TaskKey | None) -> Key:
    assert task is not None
    return task.dataset, task.epoch, task.position


def _raise_if_foreign(error: grpc.RpcError | None, address: str) -> None:
    """Raise MasterError if a server answered, and will never accept this worker."""
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        raise MasterError(error.details())  # type: ignore[union-attr]
    if code is grpc.StatusCode.UNIMPLEMENTED:
        raise MasterError(
            f"the server at {address} does not speak {m.PACKAGE}, as avactl-worker {VERSION} does: is it the master of "
            "an elastic job, and of the same version?"
        )
