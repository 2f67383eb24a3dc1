"""Packing survives kill -9 at any point: the next run continues, and the result is that of one run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from avactl.datasets.stores.opening import open_store
from tests.cli.running import Run
from tests.datasets.conftest import fill
from tests.datasets.test_pack import packed, tree
from tools.waiting import patience, wait_until

FILES = {f"{number % 11}/{number:04}.jpg": random.Random(number).randbytes(number % 900) for number in range(1500)}


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "avactl.cli.main", "dataset", "pack", *args]


def children(process: int) -> list[int]:
    """The processes that any thread of a process started."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _has_worker(process: int) -> bool:
    return bool(children(process)) or gone(process)


def _has_written(process: int, out: Path, least: int) -> bool:
    return len(list((out / ".pack").glob("shard-*.json"))) >= least or gone(process)


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("format", ["webdataset", "tfrecord", "recordio", "lmdb"])
def test_kill_at_any_point(tmp_path: Path, avactl: Run, format: str, rounds: int) -> None:
    fill(tmp_path / "data", FILES)
    options = ("--format", format, "--class", "", "--shard-size", "5k")
    packed(avactl, "data", "whole", *options)
    whole, out = tree(tmp_path / "whole"), tmp_path / "out"
    shards = len(list((tmp_path / "whole" / ".pack").glob("shard-*")))
    rng, counts, killed, late = random.Random(rounds), [0], 0, 0
    while killed < rounds:
        # Between all shards and none, at a moment that the machine's speed does not decide.
        least = min(shards * killed // rounds + rng.randrange(3), shards - 1)
        process = subprocess.Popen(command("data", "out", *options), cwd=tmp_path, stdout=subprocess.DEVNULL)
        wait_until(partial(_has_worker, process.pid), poll=0.002)
        wait_until(partial(_has_written, process.pid, out, least), poll=0.002)
        time.sleep(rng.random() * 0.02)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            # It ended before the signal came, as on a busy machine; what is packed now cannot be cut any more.
            late += 1
            assert late < 10 * rounds, f"of {killed + late} runs {killed} could be killed"
            shutil.rmtree(out)
            counts = [0]
            continue
        killed += 1
        for worker in workers:
            wait_until(partial(gone, worker))  # they end with the process that started them
        counts.append(len(list((out / ".pack").glob("shard-*.json"))))
        for path in (out / ".pack").glob("shard-*.json"):
            name = path.stem
            assert (out / "records" / f"{name}.jsonl").read_bytes() == whole[f"records/{name}.jsonl"]
    assert counts[-1] <= shards
    assert counts == sorted(counts), "no complete shard is lost"
    kept = counts[-1]
    told = packed(avactl, "data", "out", *options)
    assert f"{shards} shards, {kept} kept" in told
    found = {name: content for name, content in tree(out).items() if name != "manifest.jsonl"}
    assert found == {name: content for name, content in whole.items() if name != "manifest.jsonl"}
    done = avactl("dataset", "verify", "out/manifest.jsonl", "--content")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_kill_while_a_store_is_written(tmp_path: Path, s3: str, bucket: str, avactl: Run) -> None:
    fill(tmp_path / "data", FILES)
    args = ("data", "s3://data/out", "--format", "webdataset", "--shard-size", "50k", "--endpoint", s3)
    packed(avactl, "data", "whole", *args[2:-2])
    rng = random.Random(3)
    for _ in range(15):
        process = subprocess.Popen(command(*args), cwd=tmp_path, stdout=subprocess.DEVNULL)
        wait_until(partial(_has_worker, process.pid))
        time.sleep(rng.random() * 2)
        process.kill()
        process.wait()
    packed(avactl, *args)
    store = open_store("s3://data/out", s3)
    found = {each.key: store.read(each) for each in store.objects() if each.key[0] not in ".m"}
    assert found == {name: content for name, content in tree(tmp_path / "whole").items() if name != "manifest.jsonl"}


def test_a_worker_that_is_killed_ends_the_run(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "data", FILES)
    process = subprocess.Popen(
        command("data", "out", "--format", "recordio", "--class", "", "--shard-size", "2k"),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: children(process.pid))
    os.kill(children(process.pid)[0], signal.SIGKILL)
    _, told = process.communicate(timeout=patience())
    assert process.returncode == 3
    assert b"the process that wrote shard-0" in told
    assert b"Traceback" not in told
    packed(avactl, "data", "out", "--format", "recordio", "--class", "", "--shard-size", "2k")


def test_two_runs_into_one_directory(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "data", FILES)
    args = ("data", "out", "--format", "recordio", "--class", "", "--shard-size", "2k")
    with subprocess.Popen(command(*args), cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: children(process.pid))
        process.send_signal(signal.SIGSTOP)
        try:
            done = avactl("dataset", "pack", *args)
        finally:
            process.send_signal(signal.SIGCONT)
        assert (done.returncode, "another run packs into" in done.stderr) == (2, True), done.stderr
        assert process.wait(patience()) == 0
