"""The state on disk, when its process is killed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from avactl.daemons.elastic.job import Assignment, JobLedger
from avactl.daemons.elastic.state.snapshot import dump
from avactl.daemons.elastic.state.store import StateStore, StateStoreError
from tests.conftest import ROOT
from tests.elastic.test_definition import definition
from tools.elastic import environment


def work(store: StateStore, steps: int, name: str = "w") -> None:
    """Register a dataset and do tasks, each committed."""
    job = store.job
    job.register(definition([1000], 2, epochs=100_000, seed=1), 0.0)
    worker = job.join(name, os.getpid(), 0.0)
    for _ in range(steps):
        found = job.take(worker, ["train"], 0.0)
        assert isinstance(found, Assignment)
        store.commit()
        job.finish(worker, found.key, {"loss": 0.25}, 0.0)
        store.commit()


def reopened(path: Path) -> StateStore:
    return StateStore(path, 0.0)


def content(job: JobLedger) -> bytes:
    return dump(job, {})


def test_the_state_is_that_of_the_process_before(tmp_path: Path) -> None:
    first = StateStore(tmp_path / "state", 0.0)
    assert first.new
    work(first, 700)
    first.close()
    second = reopened(tmp_path / "state")
    assert not second.new
    assert (second.lineage, second.sequence) == (first.lineage, first.sequence)
    assert content(second.job) == content(first.job)
    assert second.job.datasets["train"].progress.total_records == 1400


def test_snapshots_replace_long_journals(tmp_path: Path) -> None:
    path = tmp_path / "state[1]"  # a name that is a pattern too
    store = StateStore(path, 0.0, rotate=2000)
    work(store, 300)
    store.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "state[1]",
        f"state[1].{store._generation}.journal",
        "state[1].lock",
    ]
    assert store._generation > 5
    again = reopened(path)
    assert (content(again.job), again.sequence) == (content(store.job), store.sequence)


def test_a_journal_that_ends_at_any_byte_loses_only_what_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "state"
    store = StateStore(path, 0.0)
    work(store, 3)
    store.close()
    journal = path.with_name("state.0.journal")
    whole = journal.read_bytes()
    sequences = []
    for end in range(len(whole) + 1):
        journal.write_bytes(whole[:end])
        again = reopened(path)
        sequences.append(again.sequence)
        assert journal.stat().st_size == end - again.dropped
        again.close()
    assert sequences == sorted(sequences)
    assert (sequences[0], sequences[-1]) == (0, store.sequence)
    journal.write_bytes(whole[:-1] + b"\xff")
    assert reopened(path).sequence == store.sequence - 1


def test_a_torn_record_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "state"
    store = StateStore(path, 0.0)
    work(store, 3)
    store.close()
    with path.with_name("state.0.journal").open("ab") as file:
        file.write(b"\x20\x00\x00\x00torn")
    second = reopened(path)
    assert second.dropped == 8
    work(second, 3, "v")
    second.close()
    third = reopened(path)
    assert third.dropped == 0
    assert content(third.job) == content(second.job)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state", 0.0)
    with pytest.raises(StateStoreError, match="another master uses this state"):
        reopened(tmp_path / "state")
    store.close()
    reopened(tmp_path / "state").close()


def test_what_is_not_a_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"something else")
    with pytest.raises(StateStoreError, match="state: the checksum is wrong"):
        reopened(path)
    with pytest.raises(StateStoreError, match="state/below: file exists"):
        StateStore(path / "below", 0.0)


def test_a_full_disk_ends_the_master(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state", 0.0)
    store._journal = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(StateStoreError, match="no space left on device"):
        work(store, 1)


WRITER = """
import sys
from pathlib import Path
from avactl.daemons.elastic.state.store import StateStore
from tests.elastic.test_store import work
store = StateStore(Path(sys.argv[1]), 0.0, rotate=3000)
while True:
    work(store, 1)
    print(store.job.datasets["train"].progress.total_records, flush=True)
"""


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "state"
    counted = 0
    for acknowledged in (1, 40, 200, 7, 333):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(acknowledged):
            counted = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        # The last line may be torn, and its number then too small.
        counted = max([counted, *(int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n"))])
        store = reopened(path)
        assert counted <= store.job.datasets["train"].progress.total_records <= counted + 2
        store.close()
    progress = reopened(path).job.datasets["train"].progress
    assert progress.total_records == progress.epoch * 1000 + progress.result.records
    assert {(each.tasks, each.records) for each in progress.history} <= {(500, 1000)}
