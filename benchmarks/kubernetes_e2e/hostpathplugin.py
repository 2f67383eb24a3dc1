#!/usr/bin/python3
"""Stands in for hostpathplugin, whose proxy mode is all that Kubernetes' tests of DRA use of it.

`--endpoint` is a Unix socket, `--proxy-endpoint` a TCP port (tcp://:9000). Each connection to the socket is joined
with one to the port: from there, the test program answers the kubelet.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path

BUFFER_BYTES = 65536

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(BUFFER_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _join(endpoint: str, port: int) -> None:
    callers: asyncio.Queue[Connection] = asyncio.Queue()
    answerers: asyncio.Queue[Connection] = asyncio.Queue()
    Path(endpoint).unlink(missing_ok=True)

    async def call(*connection: *Connection) -> None:
        await callers.put(connection)

    async def answer(*connection: *Connection) -> None:
        await answerers.put(connection)

    await asyncio.start_unix_server(call, endpoint)
    await asyncio.start_server(answer, port=port)
    running: set[asyncio.Task[None]] = set()
    while True:
        caller, answerer = await callers.get(), await answerers.get()
        for reader, writer in ((caller[0], answerer[1]), (answerer[0], caller[1])):
            task = asyncio.create_task(_copy(reader, writer))
            running.add(task)
            task.add_done_callback(running.discard)


def main() -> None:
    """Join connections until the process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--proxy-endpoint", required=True)
    parser.add_argument("--v")
    options = parser.parse_args()
    asyncio.run(_join(options.endpoint, int(options.proxy_endpoint.rpartition(":")[2])))


if __name__ == "__main__":
    main()
