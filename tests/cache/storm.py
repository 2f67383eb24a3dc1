"""Writers of a write tier, and a witness that looks for what they closed on disks and in the store."""

from __future__ import annotations

import hashlib
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from tests.cache.world import content
from tools.alluxio import Alluxio
from tools.alluxio.cluster import WRITER
from tools.objectstore import ObjectStore

THREADS = 4
"""Files that are written at once."""
LARGEST = 1_300_000  # bytes: of two blocks
BUCKET = "cache-results"


class Closed(NamedTuple):
    """A file that its writer saw closed."""

    path: str
    id: int
    size: int
    checksum: str

    @property
    def key(self) -> str:
        """Its object: both mounts go to one bucket."""
        return self.path.split("/", 2)[2]


def sizes(chance: random.Random, count: int) -> list[int]:
    """Return sizes of files, from nothing to two blocks."""
    ranges = (0, 0), (1, 4_096), (4_097, 200_000), (200_001, LARGEST)
    return [chance.randint(*ranges[chance.choices(range(4), (1, 3, 4, 2))[0]]) for _ in range(count)]


class Writers:
    """A process that writes files with the engine's own client; what fails is written again, under another name."""

    def __init__(self, cluster: Alluxio, folder: Path) -> None:
        self._folder, self._errors = folder, folder / "writers.log"
        self._command = list(map(str, cluster.java(WRITER, str(THREADS))))
        self._lock = threading.Lock()
        self._asked: dict[str, tuple[Path, str, Closed, int]] = {}
        self._closed: list[Closed] = []
        self.failures: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def kill(self) -> None:
        """Kill the process; another goes on, with other names for what was not closed.

        A process that does not end keeps what it has reserved on workers for writes that failed (Alluxio 2.9.4).
        """
        self.__exit__()
        self._start()
        with self._lock:
            asked, self._asked = self._asked, {}
        for source, kind, file, attempt in asked.values():
            self._ask(source, kind, file, attempt + 1)

    def write(self, path: str, size: int, kind: str) -> None:
        """Ask for a file. It is closed at some later time, perhaps as `PATH.1`, `PATH.2` and so on."""
        data = content(path, size)
        source = self._folder / path.replace("/", "_")
        source.write_bytes(data)
        self._ask(source, kind, Closed(path, 0, size, hashlib.sha256(data).hexdigest()), 0)

    @property
    def closed(self) -> list[Closed]:
        """The files that are closed so far."""
        with self._lock:
            return list(self._closed)

    def open(self) -> int:
        """Return how many files were asked for and are not closed. Raises AssertionError if the process has died."""
        assert self._process.poll() is None, f"{self._process.returncode}: {self._errors.read_text()[-3000:]}"
        with self._lock:
            return len(self._asked)

    def _start(self) -> None:
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _ask(self, source: Path, kind: str, file: Closed, attempt: int) -> None:
        path = f"{file.path}.{attempt}" if attempt else file.path
        with self._lock:
            self._asked[path] = source, kind, file, attempt
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):  # it is killed: `kill` asks again
                self._process.stdin.write(f"{source} {path} {kind}\n")

    def _read(self, answers: IO[str]) -> None:
        for line in answers:
            if not line.endswith("\n"):
                return  # it was killed within a line: nobody saw the file closed
            word, path, rest = line.rstrip("\n").split(" ", 2)
            with self._lock:
                source, kind, file, attempt = self._asked.pop(path)
                if word == "closed":
                    self._closed.append(file._replace(path=path, id=int(rest)))
                    source.unlink()
                    continue
                self.failures[rest[:200]] += 1
            self._ask(source, kind, file, attempt + 1)


class Witness:
    """Looks, all the time, for each closed file: all of it is on the tier's disks, or in the store.

    It reads the workers' directories, the one that stands for Ceph, and the store itself, and asks no process of the
    tier, so that it knows what is there while they are dead.
    """

    def __init__(self, closed: Callable[[], list[Closed]], cluster: Alluxio, ceph: Path, store: ObjectStore) -> None:
        self._closed, self._ceph, self._client = closed, ceph, store.client()
        self._workers = [cluster.directory(f"worker-{number}", "/cache/mem") for number in range(2)]
        self._stored: set[str] = set()
        self.samples = self.looks = 0
        self.lost: dict[str, str] = {}
        """What was nowhere, and when."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def stored(self, file: Closed) -> bool:
        """Return True if the store has a file as it was closed."""
        try:
            body: bytes = self._client.get_object(Bucket=BUCKET, Key=file.key)["Body"].read()
        except self._client.exceptions.NoSuchKey:
            return False
        return _same(file, body)

    def durable(self, file: Closed) -> bool:
        """Return True if the directory that stands for Ceph has a file."""
        return file.path.startswith("/ceph/") and (self._ceph / file.path.removeprefix("/ceph/")).exists()

    def places(self, file: Closed) -> str:
        """Describe where a file is, for the message of a test that fails."""
        found = [str(each) for each in self._ceph.rglob(file.path.rpartition("/")[2])]
        blocks = [str(each) for worker in self._workers for each in worker.rglob(f"{file.id & ~0xFFFFFF}")]
        return f"{file}: {', '.join([*found, *blocks]) or 'on no disk'}"

    def whole(self) -> bool:
        """Return True if each worker has all of what was written to two workers and is not in the store."""
        files = [file for file in self._closed() if not file.path.startswith("/ceph/") and not self.stored(file)]
        return all(_same(file, self._on_worker(file, worker)) for file in files for worker in self._workers)

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.5):
                self._look()
        except BaseException as failure:
            self._failure = failure

    def _look(self) -> None:
        for file in self._closed():
            if file.path in self._stored or file.path in self.lost:
                continue
            self.looks += 1
            # In this order: what leaves the disks must be in the store before.
            if any(_same(file, data) for data in self._on_disks(file)):
                continue
            if self.stored(file):
                self._stored.add(file.path)
            else:
                self.lost[file.path] = f"{file} at {time.strftime('%H:%M:%S')}"
        self.samples += 1

    def _on_disks(self, file: Closed) -> Iterator[bytes]:
        if file.path.startswith("/ceph/"):
            yield _read(self._ceph / file.path.removeprefix("/ceph/"))
            return
        first, second = self._workers
        for workers in ((first,), (second,), (first, second), (second, first)):
            yield self._on_worker(file, *workers)

    def _on_worker(self, file: Closed, *workers: Path) -> bytes:
        """Return a file of at most two blocks: all of it from one worker, or a block from each of two."""
        blocks = [(file.id & ~0xFFFFFF) | number for number in range(-(-file.size // 1_048_576))]
        return b"".join(
            _read(workers[number % len(workers)] / "alluxioworker" / str(block)) for number, block in enumerate(blocks)
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _same(file: Closed, data: bytes) -> bool:
    return len(data) == file.size and hashlib.sha256(data).hexdigest() == file.checksum
