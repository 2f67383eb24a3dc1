"""Listens on all addresses at the job's port until it is stopped."""

from __future__ import annotations

import os
import signal
import socket


def main() -> None:
    if os.environ["AVACTL_INDEX"] != "0":
        signal.pause()
    with socket.create_server(("", int(os.environ["MASTER_PORT"]))):
        print("listening", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
