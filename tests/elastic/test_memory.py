"""What callers send within the limits fits into the master's pod (512Mi), and into its journal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from avactl_worker import messages as m
from avactl_worker import wire
from avactl_worker.wire import WireError
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.daemons.elastic.definition import MAX_ALL_FILES, MAX_ALL_TASKS, DefinitionError
from avactl.daemons.elastic.job import MAX_ALL_HELD, MAX_HELD, JobLedger, Nothing, TaskKey
from avactl.daemons.elastic.progress import EpochProgress
from avactl.daemons.elastic.state.store import ROTATE
from tests.elastic.stream_attack import HostileConnection, fill
from tests.elastic.test_definition import definition
from tools.elastic import ElasticJob, status

MAX_GROWTH_BYTES = 300 * 1024 * 1024
"""Beyond the memory of the interpreter and its libraries, which is about 100 MiB; the pod has 512."""
MAX_STATE_BYTES = 2 * ROTATE + 2 * 8 * MAX_ALL_FILES


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_memory_and_journal_are_bounded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.elastic.memory_attack", str(tmp_path), "1"]
    grown, stored = map(int, subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split())
    assert grown < MAX_GROWTH_BYTES
    assert stored < MAX_STATE_BYTES


def resident_bytes(job: ElasticJob) -> int:
    """The largest memory of the master so far."""
    assert job.master is not None
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{job.master.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("connections", "streams", "size"), [(2, 32, m.LIMIT), (5, 100, m.MAX_MESSAGE_BYTES)])
def test_messages_that_never_end_are_bounded(tmp_path: Path, connections: int, streams: int, size: int) -> None:
    with ElasticJob(tmp_path, 0, 10, 1) as job:
        status(job.address)
        before = resident_bytes(job)
        port = int(job.address.rpartition(":")[2])
        hostile = [HostileConnection(port, streams, size) for _ in range(connections)]
        fill(hostile, 1.0)
        assert resident_bytes(job) - before < MAX_GROWTH_BYTES
        for connection in hostile:
            connection.close()
        assert status(job.address)["workers"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_requests_that_arrive_in_part_share_a_bound(tmp_path: Path) -> None:
    part = m.Request(part=bytes(m.MAX_MESSAGE_BYTES - 64), more=True).encode()
    with ElasticJob(tmp_path, 0, 10, 1) as job:
        status(job.address)
        before = resident_bytes(job)
        with grpc.insecure_channel(job.address) as channel:
            session = channel.stream_stream(m.SESSION)
            # Each sends 10 MiB of a request and leaves the stream open.
            calls = [session(iter([part] * 640)) for _ in range(20)]
            codes = [call.code() for call in calls]
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
        assert resident_bytes(job) - before < MAX_GROWTH_BYTES
        assert status(job.address)["workers"] == 0


@pytest.mark.parametrize("size", [1, m.MAX_MESSAGE_BYTES, 1_000_000])
def test_a_request_is_the_sum_of_its_messages(size: int) -> None:
    request = m.Request(id=7, store=m.Store(operation="set", keys=["a"], value=b"v" * size))
    messages = request.messages()
    assert all(len(message) <= m.MAX_MESSAGE_BYTES for message in messages)
    decoded = [m.Request.decode(message) for message in messages]
    assert [each.more for each in decoded] == [True] * (len(decoded) - 1) + [False]
    whole = messages[0] if len(messages) == 1 else b"".join(each.part for each in decoded)
    assert m.Request.decode(whole) == request


def test_the_datasets_of_a_job_share_a_bound() -> None:
    job = JobLedger()
    job.register(definition([MAX_ALL_TASKS - 10], 1, name="train"), 0.0)
    with pytest.raises(DefinitionError, match="together; 10,000,000 are possible: raise records_per_task"):
        job.register(definition([11], 1, name="more"), 0.0)
    job.register(definition([10], 1, name="rest"), 0.0)
    job = JobLedger()
    job.register(definition([1] * (MAX_ALL_FILES - 1), 10, name="train"), 0.0)
    with pytest.raises(DefinitionError, match="1,000,001 files together; 1,000,000 are possible: pack the files"):
        job.register(definition([1, 1], 10, name="more"), 0.0)
    assert list(job.datasets) == ["train"]


def test_all_workers_hold_a_bounded_number_of_tasks() -> None:
    job = JobLedger()
    job.register(definition([1_000_000], 1), 0.0)
    workers = [job.join(f"w{number}", number, 0.0) for number in range(MAX_ALL_HELD // MAX_HELD + 100)]
    for number, worker in enumerate(workers):
        # All say that they hold the same tasks, or others.
        first = 0 if number % 2 else number * MAX_HELD
        job.resume(worker, [TaskKey("train", 0, first + index) for index in range(MAX_HELD)], [], 0.0)
    assert sum(len(worker.held) for worker in workers) == MAX_ALL_HELD
    assert job.take(workers[-1], ["train"], 0.0) is Nothing.YET
    job.leave(workers[0], 0.0)
    assert job.take(workers[-1], ["train"], 0.0) is not Nothing.YET


@settings(max_examples=200)
@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.sampled_from(("next", "give", "back", "done")), st.integers(0, 199)), max_size=60),
)
def test_the_next_position_is_the_first_that_is_to_do(tasks: int, steps: list[tuple[str, int]]) -> None:
    """As a set of positions says it, also after a state is restored."""
    cut = definition([tasks], 1, epochs=2)
    progress = EpochProgress(cut)
    to_do, done, frontier = set[int](), set[int](), 0
    for what, number in steps:
        position = number % tasks
        first = min(to_do, default=frontier if frontier < tasks else None)
        assert progress.peek() == first
        if what == "next":
            if first is None:
                continue
            what, position = "give", first
        if what == "back" and position < frontier and position not in done:
            progress.put_back(position)
            to_do.add(position)
        if what in ("give", "done"):
            to_do |= set(range(frontier, position))
            frontier = max(frontier, position + 1)
            to_do.discard(position)
        if what == "give":
            progress.give(position)
        if what == "done":
            progress.complete(0, position, {})
            done.add(position)
            if len(done) == tasks:
                return
    restored = EpochProgress.restored(cut, progress.header(), progress.bitmap())
    free = set(range(frontier)) - done
    assert restored.peek() == min(free, default=frontier if frontier < tasks else None)


def field(number: int, content: bytes) -> bytes:
    """A field of bytes as on the wire."""
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


@pytest.mark.parametrize(
    ("message", "raw"),
    [
        (m.Definition, field(1, bytes(wire.MAX_NUMBERS + 1))),
        (m.Definition, field(1, b"\xac\x02" * (wire.MAX_NUMBERS + 1))),
        (m.Definition, field(1, bytes(wire.MAX_NUMBERS // 2 + 1)) * 2),
        (m.Resume, field(2, b"") * (wire.MAX_ENTRIES + 1)),
        (m.Store, field(3, b"") * (wire.MAX_ENTRIES + 1)),
    ],
    ids=["zeros", "numbers", "two lists", "messages", "texts"],
)
def test_small_messages_do_not_become_large_objects(message: type[wire.Message], raw: bytes) -> None:
    assert len(raw) < m.LIMIT
    with pytest.raises(WireError, match="has more than"):
        message.decode(raw)
