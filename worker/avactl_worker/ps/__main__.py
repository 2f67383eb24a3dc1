"""A parameter server of a job: `python -m avactl_worker.ps`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
from pathlib import Path

from avactl_worker.ps.frames import PORT
from avactl_worker.ps.server import Server

_SHARE = 0.8
"""Share of the memory that tables may have."""
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory() -> int:
    """Return the bytes of memory of this machine, or of this container if it has less."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for each in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found = min(found, int(Path(each).read_text()))
    return found


def main() -> None:
    """Serve until the process is ended."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser("python -m avactl_worker.ps", description="Hold a part of a job's parameters.")
    hosts, index = os.environ.get("AVACTL_SERVER_HOSTS", "127.0.0.1").split(","), os.environ.get("AVACTL_INDEX", "0")
    default = f"{hosts[int(index)]}:{os.environ.get('AVACTL_PORT', PORT)}"
    parser.add_argument("--listen", default=default, help="HOST:PORT; default: of this server of the job")
    parser.add_argument("--memory", type=int, default=int(_SHARE * memory()), help="bytes that the tables may have")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    host = host.strip("[]")
    family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(1024)
        logging.getLogger("avactl_worker").info("parameter server at %s", options.listen)
        Server(options.memory).serve(listener)


if __name__ == "__main__":
    main()
