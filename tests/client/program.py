"""A gRPC server of the tests: `python program.py NAME ADDRESS MODE`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

NAME, ADDRESS, MODE = sys.argv[1:]


def one(request: bytes, context: Any) -> bytes:
    if MODE == "unavailable":
        context.abort(grpc.StatusCode.UNAVAILABLE, "the queue is full")
    if MODE == "die":  # in the middle of a call
        os.kill(os.getpid(), signal.SIGKILL)
    if MODE == "hang":
        time.sleep(3600)
    if request == b"bad":
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a bad request")
    context.set_trailing_metadata((("server", NAME),))
    return NAME.encode()


def many(request: bytes, context: Any) -> Iterator[bytes]:
    for number in range(int(request)):
        yield f"{NAME} {number}".encode()


def count(requests: Iterator[bytes], context: Any) -> bytes:
    return f"{NAME} {b''.join(requests).decode()}".encode()


def echo(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    for request in requests:
        if request == b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        yield NAME.encode() + b" " + request


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    def service(self, details: Any) -> Any:
        handlers = {
            "/test/One": grpc.unary_unary_rpc_method_handler(one),
            "/test/Many": grpc.unary_stream_rpc_method_handler(many),
            "/test/Count": grpc.stream_unary_rpc_method_handler(count),
            "/test/Echo": grpc.stream_stream_rpc_method_handler(echo),
        }
        return handlers.get(details.method)


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(8), options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(ADDRESS)
    server.start()
    print("serves", flush=True)
    server.wait_for_termination()


main()
