"""State of a job on disk: a snapshot, and a journal of the events since.

An event is in the journal before its effect is acknowledged, so a killed master loses nothing: what a process has
written stays when the process is killed. `sync` makes it safe from a crash of the machine too.

`STATE` is the snapshot, and `STATE.N.journal` the journal of snapshot N. A snapshot replaces the one before by a rename
when it and its empty journal are on disk, so one of the two is always whole. A record of the journal is its length, its
checksum and an event; the first that is torn or damaged ends the journal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from avactl.daemons.elastic.events import Event, decode, encode
from avactl.daemons.elastic.job import JobLedger
from avactl.daemons.elastic.state.snapshot import StateSnapshotError, dump, load

_RECORD_HEADER = struct.Struct("<II")
_MAX_JOURNAL_BYTES = 64 * 1024 * 1024
"""Bytes of a record; the definition of a million files has less."""
ROTATE = 16 * 1024 * 1024
"""Bytes of a journal after which a new snapshot is written."""


class StateStoreError(Exception):
    """The state cannot be read or written."""


class LostStateError(Exception):
    """Another master has written the state."""


class StateStore:
    """The state of one job in a file. Only one process at a time may have it open."""

    def __init__(self, path: Path, now: float, rotate: int = ROTATE) -> None:
        """Open the state, or begin a new one. Raises StoreError."""
        self.path, self._rotate = path, rotate
        self.run = ""
        """Run of the job, for `about`."""
        self.dropped = 0
        """Bytes at the end of the journal that were not whole records."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateStoreError(f"{path}: another master uses this state") from None
        except OSError as error:
            raise StateStoreError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        self.new = not path.exists()
        """True if there was no state."""
        self._journal, self._size = -1, 0
        try:
            if self.new:
                self._begin_journal(JobLedger(), uuid.uuid4().hex)
            else:
                self._read(now)
            self._remove_old_journals()
        except (OSError, StateSnapshotError) as error:
            os.close(self._lock)
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            raise StateStoreError(f"{path}: {reason[:1].lower()}{reason[1:]}") from None
        self.synced = self.sequence
        """Sequence number up to which the state survives a crash of the machine."""
        self.job.record = self._write_record
        self._pending: list[bytes] = []

    def _begin_journal(self, job: JobLedger, lineage: str, sequence: int = 0) -> None:
        self.job, self.lineage, self.sequence, self._generation = job, lineage, sequence, -1
        self.rotate()

    def adopt(self, job: JobLedger, lineage: str, sequence: int) -> None:
        """Replace the state of a new store by one from elsewhere."""
        self._begin_journal(job, lineage, sequence)
        self.synced = self.sequence
        job.record = self._write_record
        self._remove_old_journals()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self, now: float) -> None:
        self.job, about = load(self.path.read_bytes(), now)
        self.lineage, self.sequence = str(about["lineage"]), int(about["sequence"])
        self._generation = int(about["generation"])
        path = self._journal_path(self._generation)
        whole = 0
        with contextlib.suppress(FileNotFoundError):
            data = path.read_bytes()
            for end, event in _journal_events(data):
                try:
                    self.job.apply(event, now)
                except ValueError as error:
                    raise StateSnapshotError(f"the journal does not fit the snapshot: {error}") from None
                self.sequence += 1
                whole = end
            self.dropped = len(data) - whole
        self._journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o644)
        os.ftruncate(self._journal, whole)
        self._size = whole

    def _journal_path(self, generation: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{generation}.journal")

    def _remove_old_journals(self) -> None:
        """Remove journals of other snapshots: a killed process leaves them."""
        current = self._journal_path(self._generation)
        for each in self.path.parent.glob(f"{_escape_name(self.path.name)}.*.journal"):
            if each != current:
                each.unlink(missing_ok=True)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _write_record(self, event: Event) -> None:
        data = encode(event)
        self._pending.append(_RECORD_HEADER.pack(len(data), zlib.crc32(data)) + data)

    def commit(self) -> None:
        """Write the events since the last call. Raises StoreError; then nothing more must be acknowledged."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        try:
            if os.write(self._journal, data) != len(data):
                raise OSError(0, "the disk is full")
            self.sequence += len(self._pending)
            self._pending.clear()
            self._size += len(data)
            if self._size > self._rotate:
                old = self._generation
                self.rotate()
                self._journal_path(old).unlink(missing_ok=True)
        except OSError as error:
            raise StateStoreError(f"{self.path}: {(error.strerror or str(error)).lower()}") from None

    def rotate(self) -> None:
        """Write a snapshot, and begin its journal."""
        generation = self._generation + 1
        journal = os.open(
            self._journal_path(generation), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_APPEND, 0o644
        )
        temporary = self.path.with_name(f"{self.path.name}.new")
        with temporary.open("wb") as file:
            file.write(dump(self.job, {**self.about(), "generation": generation}))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        if self._journal >= 0:
            os.close(self._journal)
        self._journal, self._size, self._generation = journal, 0, generation
        self.synced = self.sequence

    def about(self) -> dict[str, Any]:
        """Return what identifies the state: its lineage, the number of its last event, and the run of the job."""
        return {"lineage": self.lineage, "sequence": self.sequence, "run": self.run}

    def sync(self) -> None:
        """Make what is written safe from a crash of the machine. May run in a thread."""
        sequence, journal = self.sequence, os.dup(self._journal)
        try:
            os.fdatasync(journal)
        finally:
            os.close(journal)
        self.synced = max(self.synced, sequence)

    def close(self) -> None:
        """Let another process open the state."""
        os.close(self._journal)
        os.close(self._lock)


def _journal_events(data: bytes) -> Iterator[tuple[int, Event]]:
    """Yield the events of a journal, each with its end, up to the first record that is not whole."""
    at = 0
    while at + _RECORD_HEADER.size <= len(data):
        length, checksum = _RECORD_HEADER.unpack_from(data, at)
        body = data[at + _RECORD_HEADER.size : at + _RECORD_HEADER.size + length]
        if length > _MAX_JOURNAL_BYTES or len(body) < length or zlib.crc32(body) != checksum:
            return
        at += _RECORD_HEADER.size + length
        try:
            yield at, decode(body)
        except ValueError as error:
            raise StateSnapshotError(f"the journal cannot be read: {error}") from None


def _escape_name(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
