"""A lease is taken over from a process only if that process is known to have exited."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from avactl.kube.replica import is_dead, process_identity


def _other(own: str, pid: str, started: str) -> str:
    head, place, _, _, tail = own.rsplit("_", 4)
    return "_".join((head, place, pid, started, tail))


def test_a_process_that_exited_is_dead() -> None:
    script = "from avactl.kube.replica import process_identity; print(process_identity())"
    holder = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert is_dead(holder)


def test_a_reused_number_is_another_process() -> None:
    assert is_dead(_other(process_identity(), str(os.getpid()), "1"))


@pytest.mark.parametrize(
    ("pid", "started"),
    [
        (str(os.getppid()), ""),  # /proc hid the start time from the one who wrote it
        ("9" * 5000, "1"),
        ("9999999999", ""),
        ("0", "1"),
        ("-1", "1"),
        ("\u0663", "1"),
    ],
    ids=["hidden", "long", "large", "zero", "negative", "digit"],
)
def test_a_holder_in_doubt_is_alive(pid: str, started: str) -> None:
    assert not is_dead(_other(process_identity(), pid, started))


def test_a_living_or_unknown_holder_is_alive() -> None:
    assert not is_dead(process_identity())
    assert not is_dead(process_identity().replace("_", "-"))
    assert not is_dead("")


def test_a_process_whose_start_time_is_hidden_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = process_identity()
    monkeypatch.setattr("avactl.kube.replica._start_ticks", lambda pid: "")
    assert not is_dead(holder)
