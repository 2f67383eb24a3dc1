"""Fails as often as FAILURES says, in the pod FAILS; a leading pod succeeds then, others wait.

The exit code is CODE, or 7. Pods in NEEDS must have started before, and those in WAITS never end. The first worker ends
after the pod AFTER, the evaluator when the file UNTIL exists.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_ended(pod: str) -> bool:
    path = Path(f"{pod}.pid")
    return path.exists() and bool(pid := path.read_text()) and not Path(f"/proc/{pid}").exists()


def main() -> None:
    label = f"{os.environ['AVACTL_ROLE']}-{os.environ['AVACTL_INDEX']}"
    Path(f"{label}.pid").write_text(str(os.getpid()))
    attempts = Path(f"{label}.attempts")
    with attempts.open("a") as file:
        file.write("x")
    if label == os.environ.get("FAILS") and len(attempts.read_text()) <= int(os.environ["FAILURES"]):
        sys.exit(int(os.environ.get("CODE", "7")))
    wait_for(lambda: all(Path(f"{pod}.attempts").exists() for pod in os.environ.get("NEEDS", "").split()))
    role = os.environ["AVACTL_ROLE"]
    if label == "worker-0" and "AFTER" in os.environ:
        wait_for(lambda: has_ended(os.environ["AFTER"]))
    if role == "evaluator" and "UNTIL" in os.environ:
        wait_for(Path(os.environ["UNTIL"]).exists)
    if role not in ("worker", "chief", "evaluator") or label in os.environ.get("WAITS", ""):
        signal.pause()


if __name__ == "__main__":
    main()
