"""Local runs of copies of examples/training."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from tests.test_layout import ROOT
from tools.waiting import patience

EXAMPLE = ROOT / "examples" / "training"
SCRIPTS = Path(__file__).with_name("scripts")
LIMIT = patience(300.0)
"""Seconds after which a run is taken for hanging."""


def copy_example(directory: Path) -> Path:
    """A copy of the example, where runs may write."""
    return Path(
        shutil.copytree(EXAMPLE, directory / "training", ignore=shutil.ignore_patterns(".avactl", "__pycache__"))
    )


def environment(home: Path, modules: str = "", **more: str) -> dict[str, str]:
    """The environment of a caller whose `python` is this one; `modules`: a directory where it finds some."""
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "AVACTL_DEBUG", "MASTER_ADDR", "RANK")}
    paths = filter(None, [modules, str(ROOT), str(ROOT / "worker"), os.environ.get("PYTHONPATH")])
    return {
        **clean,
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        **more,
    }


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "avactl.cli.main", "local", "run", *words]


def local_run(cwd: Path, *words: str, modules: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run `avactl local run WORDS` to its end; one without an end shows what it has printed."""
    try:
        return subprocess.run(
            command(*words),
            cwd=cwd,
            env=environment(cwd.parent, modules, **env),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired as stuck:
        said = b"".join(each for each in (stuck.stdout, stuck.stderr) if isinstance(each, bytes)).decode()
        raise AssertionError(f"no end after {LIMIT:.0f} s:\n{said}") from None


class Running:
    """A local run that goes on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.output = ""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.output += line
                self._changed.notify_all()

    def wait_for(self, *texts: str) -> None:
        """Wait until all texts are in the output."""
        with self._changed:
            done = self._changed.wait_for(lambda: all(text in self.output for text in texts), LIMIT)
            assert done, self.output

    def pods_with(self, variable: str) -> list[int]:
        """Return the first processes of the pods with a variable, `NAME=VALUE`."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = []
        for pid in children:
            with suppress(ProcessLookupError):  # it has ended
                if variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(int(pid))
        return found

    def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal, if one is given, and return the exit code of the end."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        return code


@contextmanager
def running(cwd: Path, *words: str, modules: str = "", **env: str) -> Iterator[Running]:
    """Start `avactl local run WORDS`; it is stopped at the end of the block."""
    process = subprocess.Popen(
        command(*words),
        cwd=cwd,
        env=environment(cwd.parent, modules, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    run = Running(process)
    try:
        yield run
    finally:
        if process.poll() is None:
            process.terminate()
        run.end()


def rewrite(training: Path, job: str, old: str, new: str) -> None:
    """Change the spec of a job."""
    path = training / "jobs" / f"{job}.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def losses(output: str) -> list[float]:
    """The loss of each epoch; each epoch is reported once."""
    found = [(int(epoch), float(loss)) for epoch, loss in re.findall(r"epoch (\d+) loss ([\d.]+)", output)]
    assert [epoch for epoch, _ in found] == list(range(len(found))), output
    return [loss for _, loss in found]


@cache
def plain_losses() -> list[float]:
    """The losses of the plain script."""
    done = subprocess.run([sys.executable, EXAMPLE / "scripts/linear.py"], capture_output=True, text=True, check=True)
    found = losses(done.stdout)
    assert len(found) == 10
    assert found[-1] < found[0] / 10
    return found
