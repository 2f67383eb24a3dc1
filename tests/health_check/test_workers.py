"""Health checks of workers that are real processes, with bad nodes and kill -9."""

from __future__ import annotations

import json
import signal
import socket
import struct
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from avactl_worker.health_check import FAILED, REPLACED, STARTS, Settings
from avactl_worker.health_check.frames import GREETING, MAX_BYTES
from avactl_worker.health_check.member import Member

from avactl.contracts import names
from tests.health_check.workers import Workers
from tools.waiting import patience


def test_healthy_workers_start(tmp_path: Path) -> None:
    with Workers(tmp_path, 5) as job:
        for index in range(5):
            job.start(index)
        assert [job.end(index) for index in range(5)] == [STARTS] * 5
        assert all("health check: 5 workers passed" in job.output(index) for index in range(5))


def test_one_worker_checks_itself(tmp_path: Path) -> None:
    with Workers(tmp_path, 1) as job:
        job.start(0)
        assert job.end(0) == STARTS
        assert "1 worker passed" in job.output(0)


@pytest.mark.parametrize("fault", ["corrupts", "resets"])
def test_the_worker_on_a_bad_node_is_replaced_and_the_others_wait(tmp_path: Path, fault: str) -> None:
    with Workers(tmp_path, 4) as job:
        for index in range(4):
            job.start(index, fault=fault if index == 2 else "")
        assert job.end(2) == REPLACED == names.REPLACED_EXIT
        assert "health check: this worker is replaced: " in job.output(2)
        assert [job.processes[index].poll() for index in (0, 1, 3)] == [None] * 3
        job.start(2, restarts=1)
        assert [job.end(index) for index in range(4)] == [STARTS] * 4
        assert "4 workers passed" in job.output(3)


def test_a_bad_node_of_worker_0_is_replaced(tmp_path: Path) -> None:
    """The next worker 0 coordinates, and knows from the others how many were replaced."""
    with Workers(tmp_path, 4, "--replacements", "1") as job:
        for index in range(4):
            job.start(index, fault="" if index else "corrupts")
        assert job.end(0) == REPLACED
        assert [job.processes[index].poll() for index in (1, 2, 3)] == [None] * 3
        job.start(0, restarts=1, fault="corrupts")
        assert [job.end(index) for index in range(4)] == [FAILED] * 4
        assert "1 worker failed, and 0 may still be replaced: worker 0: " in job.output(3)


def test_bad_nodes_without_end_fail_the_job(tmp_path: Path) -> None:
    with Workers(tmp_path, 3, "--replacements", "1") as job:
        for index in range(3):
            job.start(index, fault="corrupts" if index == 1 else "")
        assert job.end(1) == REPLACED
        job.start(1, restarts=1, fault="corrupts")
        assert [job.end(index) for index in range(3)] == [FAILED] * 3
        assert "1 worker failed, and 0 may still be replaced: worker 1: RuntimeError: the bytes" in job.output(0)


def test_a_slow_worker_is_reported_or_replaced(tmp_path: Path) -> None:
    """A delay of 0.2 s in each test, and of 4 s on one node."""
    with Workers(tmp_path, 4, "--timeout", "30", "--below", "0.2") as job:
        for index in range(4):
            job.start(index, fault="slow" if index == 3 else "steady")
        assert [job.end(index) for index in range(4)] == [STARTS] * 4
        assert "4 workers passed" in job.output(0)
        assert "slow, as a share of the median speed: worker 3 at 0." in job.output(0)
    with Workers(tmp_path, 4, "--timeout", "30", "--below", "0.2", "--replace-slow") as job:
        for index in range(4):
            job.start(index, fault="slow" if index == 3 else "steady")
        assert job.end(3) == REPLACED
        job.start(3, restarts=1, fault="steady")
        assert [job.end(index) for index in range(4)] == [STARTS] * 4


def test_of_two_workers_one_is_replaced(tmp_path: Path) -> None:
    with Workers(tmp_path, 2) as job:
        job.start(0)
        job.start(1, fault="corrupts")
        assert job.end(1) == REPLACED
        job.start(1, restarts=1)
        assert [job.end(index) for index in range(2)] == [STARTS] * 2


def test_an_index_is_not_replaced_for_ever(tmp_path: Path) -> None:
    with Workers(tmp_path, 2) as job:
        job.start(0)
        job.start(1, restarts=20, fault="corrupts")
        assert job.end(1) == FAILED
        assert "there were 20 pods of this index before" in job.output(1)


def test_a_worker_that_hangs_is_at_fault_and_its_successor_takes_its_place(tmp_path: Path) -> None:
    with Workers(tmp_path, 4, "--timeout", "3") as job:
        for index in (0, 1, 3):
            job.start(index)
        job.until_printed(0, "waiting for worker 2\n")
        job.send(signal.SIGSTOP, 3)
        job.start(2)
        job.until_printed(0, "worker 3 is replaced: no answer")
        job.send(signal.SIGKILL, 3)  # as its node does, or the Job controller when the node is lost
        job.start(3, restarts=1)
        assert [job.end(index) for index in range(4)] == [STARTS] * 4


def test_a_killed_coordinator_begins_anew(tmp_path: Path) -> None:
    with Workers(tmp_path, 4) as job:
        for index in range(3):
            job.start(index)
        job.until_printed(1, "waiting for worker 3")
        job.send(signal.SIGKILL, 0)
        job.until_printed(1, "the coordinator is lost")
        job.start(0, restarts=1)
        job.start(3)
        assert [job.end(index) for index in range(4)] == [STARTS] * 4
        assert "4 workers passed" in job.output(0)


def test_workers_start_unchecked_if_one_never_comes(tmp_path: Path) -> None:
    with Workers(tmp_path, 3, "--wait", "6") as job:
        for index in (0, 2):
            job.start(index)
        assert [job.end(index) for index in (0, 2)] == [STARTS] * 2
        assert "warning: the nodes are not checked: worker 1 did not come for 6 s" in job.output(2)


def test_a_late_worker_checks_itself_while_the_others_train(tmp_path: Path) -> None:
    """Another program listens at worker 0. It gets no byte of the check."""
    with Workers(tmp_path, 4) as job, socket.socket() as training:
        training.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        training.bind((job.address(0), job.rendezvous))
        training.listen()
        job.start(2, restarts=1)
        assert job.end(2) == STARTS
        assert "health check: checked alone" in job.output(2)
        training.settimeout(1)
        connection, _ = training.accept()
        with connection:
            assert connection.recv(1) == b""


def test_pods_of_another_run_are_not_in_the_check(tmp_path: Path) -> None:
    with Workers(tmp_path, 2) as job:
        job.start(0)
        job.start(1, run="r0")
        job.until_printed(1, "refused: another run of the job")
        assert job.processes[0].poll() is None
        job.send(signal.SIGKILL, 1)
        job.start(1)
        assert [job.end(index) for index in range(2)] == [STARTS] * 2


def _framed(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


_HELLO = {
    "index": 1,
    "run": "r1",
    "incarnation": "x",
    "address": "127.0.0.1",
    "port": 80,
    "backend": "sockets",
    "devices": 0,
    "gpus": 0,
    "replaced": {},
}
_HOSTILE = {
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "length": struct.pack("!I", MAX_BYTES + 1),
    "endless": struct.pack("!I", 0xFFFFFFFF) + b"x" * 100_000,
    "half": struct.pack("!I", 100) + b"{",
    "text": _framed(b"hello"),
    "list": _framed(b"[]"),
    "deep": _framed(b"[" * 10_000),
    "nothing": _framed(b"{}"),
    "null": _framed(b'{"hello": null}'),
    **{
        f"{key}-{number}": _framed(json.dumps({"hello": {**_HELLO, key: value}}).encode())
        for number, (key, value) in enumerate(
            [
                ("index", -1),
                ("index", 4),
                ("index", 10**400),
                ("index", None),
                ("address", "worker-1"),
                ("address", "x" * 10_000),
                ("port", 0),
                ("port", 65536),
                ("backend", "mpi"),
                ("devices", 10**9),
                ("replaced", {"9": 1}),
                ("replaced", {"1": 10**9}),
                ("replaced", [1]),
                ("incarnation", "y" * 9_000),
            ]
        )
    },
    "report": _framed(json.dumps({"hello": _HELLO}).encode()) + _framed(b'{"report": {"round": 1}}'),
    "nan": _framed(json.dumps({"hello": _HELLO}).encode())
    + _framed(b'{"report": {"round": 0, "port": 1, "seconds": NaN, "error": ""}}'),
}


def test_strangers_do_not_disturb_a_check(tmp_path: Path) -> None:
    with Workers(tmp_path, 4) as job:
        job.start(0)
        job.until_listening(0)
        open_ones = []
        for data in _HOSTILE.values():
            connection = socket.create_connection(job.coordinator, timeout=30)
            connection.sendall(data)
            open_ones.append(connection)
        for index in (1, 2, 3):
            job.start(index)
        assert [job.end(index) for index in range(4)] == [STARTS] * 4
        assert "4 workers passed" in job.output(0)
        assert "Traceback" not in job.output(0)
        for connection in open_ones:
            connection.close()


_ORDERS = {
    "end": b'{"end": 3, "message": ""}',
    "processes": json.dumps(
        {
            "test": {
                "round": 1,
                "backend": "sockets",
                "host": "127.0.0.1",
                "port": 1,
                "first": 0,
                "processes": 65,
                "world": 65,
                "bytes": 1,
                "timeout": 1e9,
                "with": [],
            }
        }
    ).encode(),
}


@pytest.mark.parametrize("order", _ORDERS)
def test_a_worker_does_not_obey_a_false_coordinator(order: str) -> None:
    """As another program could be, that listens where worker 0 was."""
    with socket.create_server(("127.0.0.1", 0)) as false:
        found = Settings(
            2,
            false.getsockname(),
            29500,
            1024,
            5,
            4,
            2,
            0.5,
            False,
            index=1,
            address="127.0.0.1",
            run="r",
            incarnation="u",
            gpus=0,
            restarts=0,
        )
        ended: list[tuple[int, str]] = []
        said: list[str] = []
        worker = threading.Thread(target=lambda: ended.append(Member(found, said.append).run(lambda: False)))
        worker.start()
        connection, _ = false.accept()
        with connection:
            connection.settimeout(60)
            connection.sendall(_framed(json.dumps(GREETING).encode()))
            assert connection.recv(MAX_BYTES)
            connection.sendall(_framed(_ORDERS[order]))
            while connection.recv(MAX_BYTES):
                pass
    worker.join(timeout=patience())
    assert [code for code, _ in ended] == [STARTS]
    assert said[0].startswith("the coordinator is lost: ") or said[1].startswith("the coordinator is lost: ")


def test_a_worker_that_reaches_nobody_is_replaced_once() -> None:
    """Neither worker 0 nor a neighbour: names that do not resolve, as without a network."""
    found = Settings(
        4,
        ("net-worker-0.net-rendezvous.invalid", 29700),
        29500,
        1024,
        5,
        4,
        2,
        0.5,
        False,
        index=2,
        address="127.0.0.1",
        run="r",
        incarnation="u",
        gpus=0,
        restarts=0,
    )
    said: list[str] = []
    assert Member(found, said.append).run(lambda: False) == (
        REPLACED,
        "this worker is replaced: it reaches no other worker",
    )
    # It waits for neighbours that are there, even if only their machine answers.
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        near = replace(found, coordinator=refusing.getsockname(), wait=4.0)
        code, message = Member(near, said.append).run(lambda: False)
    assert (code, message.partition(":")[0]) == (STARTS, "warning")
    code, message = Member(replace(found, restarts=1, alone=2.0), said.append).run(lambda: False)
    assert (code, message.partition(",")[0]) == (STARTS, "checked alone")
