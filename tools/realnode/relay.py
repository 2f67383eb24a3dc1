"""Runs as `python relay.py LISTEN_NETWORK LISTEN CONNECT_NETWORK CONNECT`: joins two network namespaces.

A network is the path of a network namespace, an address is HOST:PORT or the path of a UNIX socket. With `CONNECT` as
last argument, each client names its target by HTTP CONNECT, as the API server's egress selector does.
"""

import asyncio
import ctypes
import os
import socket
import sys
from contextlib import suppress

BLOCK = 65536  # bytes


def main() -> None:
    """Listen in the first namespace, then move to the second and relay until killed."""
    listen_network, listen, connect_network, connect = sys.argv[1:]
    # Opened first: in a namespace, a path of the other may not exist. A socket keeps the namespace of its creation.
    networks = [os.open(path, os.O_RDONLY) for path in (listen_network, connect_network)]
    _enter(networks[0])
    listener = _listener(listen)
    _enter(networks[1])
    asyncio.run(_serve(listener, connect))


def _enter(network: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(network, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _listener(address: str) -> socket.socket:
    if address.startswith("/"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
    else:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(_host_port(address))
    listener.listen(128)
    return listener


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def _serve(listener: socket.socket, connect: str) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.LimitOverrunError, ValueError):
            target = connect if connect != "CONNECT" else await _asked_target(reader)
            far_reader, far_writer = await asyncio.open_connection(*_host_port(target))
            if connect == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
            far_writer.close()
        writer.close()

    server = await asyncio.start_server(accepted, sock=listener)
    await server.serve_forever()


async def _asked_target(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    return head.split()[1].decode()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(BLOCK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


main()
