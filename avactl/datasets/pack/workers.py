"""Worker processes. Processes and not forks: the store's library has threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock
from typing import Any

import orjson

from avactl.base.errors import HintedError
from avactl.datasets.concurrent import in_threads
from avactl.datasets.errors import ObjectStoreError
from avactl.datasets.pack.model import Shard, Tell

_WORKER_COMMAND = [sys.executable, "-P", "-m", "avactl.datasets.pack.worker"]


class WorkerError(HintedError):
    """An error of a worker, with its exit code."""

    def __init__(self, message: str, hint: str, code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = code


class PackWorkers:
    """Processes that write shards. Use them in a `with` block."""

    def __init__(self, count: int, job: dict[str, Any], tell: Tell) -> None:
        """`job`: the first line of a worker's input."""
        self._count, self._tell = count, tell
        self._lock = Lock()
        self._first = orjson.dumps(job, option=orjson.OPT_APPEND_NEWLINE)
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._running: list[subprocess.Popen[bytes]] = []
        self._failure: BaseException | None = None

    def __enter__(self) -> PackWorkers:
        for _ in range(self._count):
            self._idle.put(self._start())  # they import while the first shard is planned
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def write(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, dict[str, Any]]]:
        """Write shards in parallel; yield them in order, with their states. Raises the first error of a worker."""
        return in_threads(self._one, shards, self._count, self._count + 1)

    def _one(self, shard: Shard) -> tuple[Shard, dict[str, Any]]:
        worker = self._idle.get()
        try:
            state = self._ask(worker, shard)
        except BaseException as error:
            self._failure = self._failure or error
            self._kill()  # the others would only finish what is not used
            raise self._failure from None
        finally:
            self._idle.put(worker)
        return shard, state

    def _start(self) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(_WORKER_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - this program
        self._running.append(worker)
        assert worker.stdin is not None
        with suppress(BrokenPipeError):
            worker.stdin.write(self._first)
            worker.stdin.flush()
        return worker

    def _ask(self, worker: subprocess.Popen[bytes], shard: Shard) -> dict[str, Any]:
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            head = orjson.dumps([shard.number, shard.files, shard.stamp], option=orjson.OPT_APPEND_NEWLINE)
            worker.stdin.write(head)
            worker.stdin.write(shard.rows + b"\n")
            worker.stdin.flush()
        except BrokenPipeError:  # its last line says why
            with suppress(BrokenPipeError):
                worker.stdin.close()
        for line in worker.stdout:
            message = orjson.loads(line)
            if "read" in message:
                self._tell(*message["read"])
            elif "done" in message:
                state: dict[str, Any] = message["done"]
                return state
            else:
                raise WorkerError(message["error"], message["hint"], message["code"])
        hint = "if the system ended it for lack of memory, use fewer: `--jobs 1`"
        raise ObjectStoreError(f"the process that wrote {shard.name} ended", hint)

    def _kill(self) -> None:
        with self._lock:
            for worker in self._running:
                worker.kill()
            for worker in self._running:
                worker.wait()
            self._running.clear()
