"""Checkpoints of scripts without torch."""

from __future__ import annotations

import logging
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from avactl_worker.checkpoint import CheckpointError, Checkpoints, load
from avactl_worker.checkpoint.stores import Directory

from tools.elastic import environment
from tools.waiting import patience


@pytest.fixture
def weights() -> dict[str, Any]:
    return {"w": np.arange(100_000, dtype=np.float32), "b": np.float64(0.5), "epoch": 3}


def steps(folder: Path) -> list[int]:
    return Directory(folder).steps()


def test_a_state_is_restored(tmp_path: Path, weights: dict[str, Any]) -> None:
    order = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    fixed = np.arange(5)
    fixed.setflags(write=False)
    weights |= {
        "order": order,
        "strided": np.arange(20)[::2],
        "fixed": fixed,
        "none": np.empty(0),
        "tied": weights["w"],
    }
    generator = np.random.default_rng(1)
    random.seed(5)
    np.random.seed(6)
    with Checkpoints(tmp_path, weights=weights, generator=generator) as checkpoints:
        checkpoints.save(7)
        expected = generator.random(), random.random(), np.random.random()
        weights["w"][:] = -1.0  # the copy is older

    found: dict[str, Any] = {"w": None, "old": 1}
    again = np.random.default_rng(2)
    with Checkpoints(tmp_path, weights=found, generator=again) as checkpoints:
        assert checkpoints.restore() == 7
    assert (again.random(), random.random(), np.random.random()) == expected
    assert list(found) == list(weights)
    np.testing.assert_array_equal(found["w"], np.arange(100_000, dtype=np.float32))
    for name in ("order", "strided", "fixed", "none"):
        np.testing.assert_array_equal(found[name], weights[name])
    assert (found["epoch"], found["b"]) == (3, 0.5)
    found["w"] += 1  # training goes on in it
    assert list(load(tmp_path)["weights"]["w"][:3]) == [0, 1, 2]


def test_memory_is_used_again(tmp_path: Path, weights: dict[str, Any]) -> None:
    with Checkpoints(tmp_path, weights=weights, keep=10) as checkpoints:
        checkpoints.step(0)  # allocates
        for step in range(1, 6):
            weights["w"][:] = step
            checkpoints.save(step)
    for step in range(1, 6):
        assert set(load(tmp_path, step)["weights"]["w"]) == {step}


def test_the_newest_are_kept(tmp_path: Path, weights: dict[str, Any]) -> None:
    (tmp_path / "notes.txt").write_text("of the user")
    (tmp_path / ".step-000000000001.ckpt.host-1.part").write_text("of a process that was killed")
    with Checkpoints(tmp_path, keep=2, weights=weights) as checkpoints:
        for step in (9, 10, 100):
            checkpoints.save(step)
    assert steps(tmp_path) == [10, 100]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "notes.txt",
        "step-000000000010.ckpt",
        "step-000000000100.ckpt",
    ]


def test_the_interval_and_the_jobs_environment(
    tmp_path: Path, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AVACTL_CHECKPOINT_PATH", "s3://bucket/of-the-job")
    monkeypatch.setenv("AVACTL_CHECKPOINT_DIR", str(tmp_path / "volume"))
    monkeypatch.setenv("AVACTL_CHECKPOINT_EVERY", "60")
    monkeypatch.setenv("AVACTL_CHECKPOINT_KEEP", "1")
    now = 0.0
    monkeypatch.setattr("avactl_worker.checkpoint._now", lambda: now)
    with Checkpoints(weights=weights) as checkpoints:
        for step in range(1, 301):
            now += 0.7
            checkpoints.step(step)
            checkpoints.wait()
            if step == 200:
                assert steps(tmp_path / "volume") == [172]  # 86 steps of 0.7 s are 60.2 s
    assert steps(tmp_path / "volume") == [258]


def test_a_save_that_is_under_way_delays_the_next(
    tmp_path: Path, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()
    write = Directory.write

    def slow(self: Directory, step: int, chunks: Any) -> None:
        assert goes_on.wait(patience())
        write(self, step, chunks)

    monkeypatch.setattr(Directory, "write", slow)
    with Checkpoints(tmp_path, every=0, weights=weights) as checkpoints:
        for step in range(1, 5):
            weights["w"][:] = step
            checkpoints.step(step)
        assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
            f"checkpoint of step 2 is late: that of step 1 is still being written to {tmp_path}"
        ]
        goes_on.set()
        checkpoints.wait()
        weights["w"][:] = 5
        checkpoints.step(5)
    assert steps(tmp_path) == [1, 5]
    assert set(load(tmp_path, 1)["weights"]["w"]) == {1}


def test_errors_of_the_writer_are_raised_in_the_loop(tmp_path: Path, weights: dict[str, Any]) -> None:
    place = tmp_path / "file"
    place.write_text("no directory")
    with Checkpoints(place, every=0, weights=weights) as checkpoints:
        with pytest.raises(CheckpointError, match=r"checkpoints in .*/file cannot be listed: .*Not a directory"):
            checkpoints.restore()
        checkpoints.step(1)
        checkpoints._writer.wait()
        with pytest.raises(CheckpointError, match=r"of step 1 could not be written to .*/file: .*File exists"):
            checkpoints.step(2)
        place.unlink()
        checkpoints.step(3)  # the script may go on
    assert steps(place) == [3]


def test_a_missing_checkpoint(tmp_path: Path, weights: dict[str, Any]) -> None:
    with Checkpoints(tmp_path / "new", weights=weights) as checkpoints:
        assert checkpoints.restore() == 0
        with pytest.raises(CheckpointError, match=r"there is no checkpoint of step 40 in .*: there is none at all"):
            checkpoints.restore(40)
        with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*/new"):
            load(tmp_path / "new")
        checkpoints.save(30, wait=True)
        with pytest.raises(CheckpointError, match=r"there is no checkpoint of step 40 in .*: there are 30"):
            checkpoints.restore(40)


def test_what_a_cache_daemon_moved_away_is_not_taken_for_nothing(
    tmp_path: Path, weights: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Daemons of older versions moved checkpoints from `/buckets/NAME` to `/buckets/NAME.pushed`."""
    here, there = tmp_path / "results" / "ckpt" / "resnet50", tmp_path / "results.pushed" / "ckpt" / "resnet50"
    with Checkpoints(here, weights=weights) as checkpoints:
        checkpoints.save(200)
    there.parent.mkdir(parents=True)
    here.rename(there)
    for absent in (True, False):
        with (
            Checkpoints(here, weights=weights) as checkpoints,
            pytest.raises(CheckpointError, match=r"no checkpoint in .*, but one of step 200 in .*: to resume") as error,
        ):
            checkpoints.restore()
        if absent:
            here.mkdir()
    # The remedy in the message is the remedy.
    command = re.search(r"\((mkdir .*)\); to begin", str(error.value))
    assert command is not None
    subprocess.run(["sh", "-c", command[1]], check=True)
    with Checkpoints(here, weights=weights, keep=1) as checkpoints:
        assert checkpoints.restore() == 200
        assert "later step" not in caplog.text
        checkpoints.save(300, wait=True)
        assert checkpoints.restore() == 300
        # A file that was copied there and deleted here does not come back.
        assert steps(here) == [300]
        (there / "step-000000000400.ckpt").touch()
        assert checkpoints.restore() == 300
        assert "has a checkpoint of the later step 400" in caplog.text


def test_a_listing_that_is_older_than_the_files(
    tmp_path: Path, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of the run before can still save and clean up; and FUSE may keep entries for a second."""
    with Checkpoints(tmp_path, keep=2, weights=weights) as checkpoints:
        for step in (100, 300):
            weights["w"][:] = step
            checkpoints.save(step)
    listings = [[100, 200], [100, 200], [100, 300]]
    monkeypatch.setattr("avactl_worker.checkpoint._LISTING_INTERVAL_S", 0.01)
    with Checkpoints(tmp_path, weights=weights) as checkpoints:
        monkeypatch.setattr(checkpoints._store, "steps", lambda: listings.pop(0))
        assert checkpoints.restore() == 300
        assert set(weights["w"]) == {300}
        monkeypatch.setattr(checkpoints._store, "steps", lambda: [100, 200])
        with pytest.raises(CheckpointError, match=r"are listed, but are not there: .*step-000000000200"):
            checkpoints.restore()


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path, weights: dict[str, Any]) -> None:
    (tmp_path / "results").symlink_to(tmp_path / "mount")
    with (
        Checkpoints(tmp_path / "results" / "ckpt", weights=weights) as checkpoints,
        pytest.raises(CheckpointError, match=r"cannot be listed: .*lists it, and it does not exist"),
    ):
        checkpoints.restore()


def test_a_run_that_starts_over_keeps_what_it_saves(
    tmp_path: Path, weights: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpoints(tmp_path, weights=weights, keep=2) as checkpoints:
        for step in (100, 200):
            checkpoints.save(step)
    with Checkpoints(tmp_path, weights=weights, keep=2) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step)
            checkpoints.wait()
            assert steps(tmp_path) == [step, 200]
    assert caplog.text.count("has checkpoints of later steps") == 1


def test_going_back_to_an_older_one(tmp_path: Path, weights: dict[str, Any]) -> None:
    with Checkpoints(tmp_path, keep=5, weights=weights) as checkpoints:
        for step in (10, 20, 30, 40):
            checkpoints.save(step)
    with Checkpoints(tmp_path, keep=5, weights=weights) as checkpoints:
        assert checkpoints.restore(20) == 20
        assert steps(tmp_path) == [10, 20, 30, 40]
        checkpoints.save(30, wait=True)
        assert steps(tmp_path) == [10, 20, 30]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "extended", "index"])
def test_a_torn_file_is_not_loaded(
    tmp_path: Path, weights: dict[str, Any], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpoints(tmp_path, weights=weights) as checkpoints:
        for step in (1, 2):
            weights["w"][:] = step
            checkpoints.save(step)
    newest, oldest = tmp_path / "step-000000000002.ckpt", tmp_path / "step-000000000001.ckpt"
    raw = bytearray(newest.read_bytes())
    if damage == "flipped":
        raw[len(raw) // 2] ^= 1
    elif damage == "index":
        raw[16:20] = b"\xff\xff\xff\x7f"
    changed: dict[str, bytes] = {
        "cut": bytes(raw[:-1]),
        "empty": b"",
        "foreign": b"PK\3\4" * 99,
        "extended": bytes(raw) + b"\0",
    }
    newest.write_bytes(changed.get(damage, bytes(raw)))
    with Checkpoints(tmp_path, weights=weights) as checkpoints:
        assert checkpoints.restore() == 1
        assert set(weights["w"]) == {1}
        assert "the checkpoint of step 2" in caplog.text
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* is complete"):
            checkpoints.restore(2)
        oldest.write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"is complete \(2: .*; 1: it does not begin .* to begin anew"):
            checkpoints.restore()


def test_objects_that_do_not_fit(tmp_path: Path, weights: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CheckpointError, match=r"model is of list: give an object with state_dict\(\)"):
        Checkpoints(tmp_path, model=[1])
    with Checkpoints(tmp_path, weights=weights, more={"a": 1}) as checkpoints:
        checkpoints.save(1)
    with (
        Checkpoints(tmp_path, weights=weights, scheduler={}) as checkpoints,
        pytest.raises(CheckpointError, match=r"step 1 in .*: it has no state of scheduler, but of weights, more"),
    ):
        checkpoints.restore()
    with Checkpoints(tmp_path, weights=weights) as checkpoints:
        checkpoints.restore()
    assert "state of more is not used" in caplog.text


def test_only_the_first_process_saves(tmp_path: Path, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_INDEX", "1")
    with Checkpoints(tmp_path, every=0, weights=weights) as checkpoints:
        checkpoints.step(1)
        checkpoints.save(2, wait=True)
        assert not steps(tmp_path)
        monkeypatch.setenv("RANK", "0")  # torchrun's counts
        checkpoints.save(3, wait=True)
    assert steps(tmp_path) == [3]


def test_others_of_a_group_wait_for_the_first_to_save(
    tmp_path: Path, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avactl_worker.checkpoint._in_group", lambda: True)
    monkeypatch.setattr("avactl_worker.checkpoint._rank", lambda: 1)
    monkeypatch.delenv("AVACTL_MASTER", raising=False)
    with Checkpoints(tmp_path, weights=weights) as checkpoints:
        signal.raise_signal(signal.SIGTERM)
        checkpoints.step(1)  # goes on
        monkeypatch.setenv("AVACTL_MASTER", "127.0.0.1:1")  # an elastic job
        with pytest.raises(SystemExit, match="143"):
            checkpoints.step(2)
    assert not steps(tmp_path)


def test_places_that_cannot_be(weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AVACTL_CHECKPOINT_DIR", "AVACTL_CHECKPOINT_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CheckpointError, match="no location of the checkpoints: add `checkpoint: "):
        Checkpoints(weights=weights)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setenv("AVACTL_CHECKPOINT_PATH", "s3://vision/ckpt")
    with pytest.raises(
        CheckpointError, match=r"checkpoints at s3://vision/ckpt need s3fs .*: pip install s3fs, or save"
    ):
        Checkpoints(weights=weights)
    monkeypatch.setenv("AVACTL_CHECKPOINT_EVERY", "15m")
    with pytest.raises(CheckpointError, match="AVACTL_CHECKPOINT_EVERY is '15m', and not a number"):
        Checkpoints("/nowhere", weights=weights)


SCRIPT = """
import sys, time
import numpy as np
from avactl_worker.checkpoint import Checkpoints

weights = {"w": np.zeros(1_000_000)}
with Checkpoints(sys.argv[1], every=1e9, weights=weights) as checkpoints:
    for step in range(checkpoints.restore(), 1_000_000):
        weights["w"] += 1
        print("step", step + 1, flush=True)
        checkpoints.step(step + 1)
        time.sleep(0.01)
"""


def test_sigterm_saves_and_ends(tmp_path: Path) -> None:
    last = 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"step {last + 1}\n"
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=patience())
        last = int((out.split() or [str(last + 2)])[-1])
        assert process.returncode == 143
        assert errors == f"terminated: saved step {last} to {tmp_path}\n"
        assert steps(tmp_path)[-1] == last
        assert set(load(tmp_path)["weights"]["w"]) == {last}
