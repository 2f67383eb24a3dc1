"""Starts processes that leave it: a session of its own, and one that also cleared its environment.

Prints their process IDs, then does as MODE says: `wait` for ever, `ignore` SIGTERM as well, or exit with that number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main() -> None:
    mode = os.environ["MODE"]
    if mode == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    children = [
        subprocess.Popen(sleep),
        subprocess.Popen(sleep, start_new_session=True, **quiet),
        subprocess.Popen(sleep, start_new_session=True, env={}, **quiet),
    ]
    print("started", *(child.pid for child in children), os.getpid(), "end", flush=True)
    if mode.isdigit():
        os._exit(int(mode))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
