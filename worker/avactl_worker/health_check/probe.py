"""One test of one process: a matrix product on its device, and an all-reduce with the other processes of the group.

Runs in a process of its own, which can be killed when a driver or a network hangs. With torch, over NCCL or gloo;
without it, over sockets.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
import zlib
from typing import Any

from avactl_worker.health_check.frames import listen

_HELLO = struct.Struct("!8sI")
_MAGIC = b"avprobe1"
_CHUNK = 1 << 20
_SIDE = {"cuda": 4096, "cpu": 256}
"""Rows of the matrices by type of device."""
_PRODUCTS = 8


def describe() -> dict[str, Any]:
    """Return the way of communication that this image has (`nccl`, `gloo` or `sockets`), and the number of GPUs."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
        import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return {"backend": "sockets", "devices": 0}
    if torch.cuda.is_available() and dist.is_nccl_available():
        return {"backend": "nccl", "devices": torch.cuda.device_count()}
    return {"backend": "gloo" if dist.is_gloo_available() else "sockets", "devices": 0}


def by_torch(test: dict[str, Any]) -> float:
    """Return the seconds that the product and the all-reduce took. Raises RuntimeError for a wrong result."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    if test["backend"] == "nccl":
        torch.cuda.set_device(test["device"])
    kind = "cuda" if test["backend"] == "nccl" else "cpu"
    device = torch.device(kind, test["device"]) if kind == "cuda" else torch.device(kind)
    host = f"[{test['host']}]" if ":" in test["host"] else test["host"]
    dist.init_process_group(
        test["backend"],
        init_method=f"tcp://{host}:{test['port']}",
        rank=test["rank"],
        world_size=test["world"],
        timeout=timedelta(seconds=test["timeout"]),
    )
    side = _SIDE[kind]
    ones = torch.ones(side, side, device=device)
    values = torch.full((max(1, test["bytes"] // 4),), float(test["rank"] + 1), device=device)
    dist.all_reduce(torch.ones(1, device=device))  # the first one connects
    _synchronize(torch, kind)
    start = time.monotonic()
    product = ones
    for _ in range(_PRODUCTS):
        product = ones @ ones
    dist.all_reduce(values)
    _synchronize(torch, kind)
    taken = time.monotonic() - start
    if not bool((product == side).all()):
        raise RuntimeError("a matrix product is wrong")
    if not bool((values == test["world"] * (test["world"] + 1) // 2).all()):
        raise RuntimeError("the sum of the all-reduce is wrong")
    dist.destroy_process_group()
    return taken


def _synchronize(torch: Any, kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()


def by_sockets(test: dict[str, Any]) -> float:
    """Return the seconds of an exchange between rank 0 and each other rank. Raises OSError, RuntimeError."""
    deadline = time.monotonic() + test["timeout"]
    if test["rank"]:
        with contextlib.closing(_connect(test["host"], test["port"], deadline)) as connection:
            connection.sendall(_HELLO.pack(_MAGIC, test["rank"]))
            return _exchange(connection, test["rank"], 0, test["bytes"], deadline)
    taken = 0.0
    with contextlib.closing(listen(test["host"], test["port"])) as listener:
        missing = set(range(1, test["world"]))
        while missing:
            listener.settimeout(_left(deadline))
            connection, _ = listener.accept()
            with contextlib.closing(connection):
                # A stranger is ignored, and holds nobody up.
                connection.settimeout(min(5.0, _left(deadline)))
                try:
                    magic, rank = _HELLO.unpack(_read(connection, _HELLO.size))
                except (OSError, struct.error):
                    continue
                if magic == _MAGIC and rank in missing:
                    taken += _exchange(connection, 0, rank, test["bytes"], deadline)
                    missing.remove(rank)
    return taken


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the partner does not answer")
    return left


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((host, port), timeout=_left(deadline))
        except ConnectionRefusedError:
            # It may not listen yet.
            time.sleep(min(0.05, _left(deadline)))


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = connection.recv(size - len(found))
        if not data:
            raise ConnectionError("the partner closed the connection")
        found += data
    return found


def _exchange(connection: socket.socket, rank: int, other: int, size: int, deadline: float) -> float:
    """Send and receive `size` bytes at the same time, and compare what came with what the other side sends."""
    connection.settimeout(_left(deadline))
    start = time.monotonic()
    sender = threading.Thread(target=_send, args=(connection, rank, size), daemon=True)
    sender.start()
    crc, expected, left = 0, _pattern(other), size
    while left:
        connection.settimeout(_left(deadline))
        data = connection.recv(min(left, _CHUNK))
        if not data:
            raise ConnectionError("the partner closed the connection")
        crc, left = zlib.crc32(data, crc), left - len(data)
    sender.join(_left(deadline))
    if sender.is_alive():
        raise TimeoutError("the partner does not read")
    taken = time.monotonic() - start
    if crc != _checksum(expected, size):
        raise RuntimeError("the bytes that arrived are not those that were sent")
    if rank == 0:
        connection.sendall(b".")
    else:
        _read(connection, 1)  # then the partner has all
    return taken


def _send(connection: socket.socket, rank: int, size: int) -> None:
    data, left = _pattern(rank), size
    with contextlib.suppress(OSError):  # the receiver sees the same, and says so
        while left:
            connection.sendall(data[:left])
            left -= min(left, len(data))


def _pattern(rank: int) -> bytes:
    return bytes((rank + place * 7) % 251 for place in range(251)) * (_CHUNK // 251)


def _checksum(data: bytes, size: int) -> int:
    crc = 0
    while size:
        crc = zlib.crc32(data[:size], crc)
        size -= min(size, len(data))
    return crc


def main() -> None:
    """Run the test that the arguments describe as JSON, or describe this image; print the result as JSON."""
    test = json.loads(sys.argv[1])
    try:
        if not test:
            found = describe()
        else:
            found = {"seconds": (by_sockets if test["backend"] == "sockets" else by_torch)(test)}
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        found = {"error": f"{type(error).__name__}: {lines[0][:300]}"}
    print(json.dumps(found), flush=True)
    # Threads of a communicator that hangs would hold the process.
    os._exit(0)


if __name__ == "__main__":
    main()
