"""A gRPC server that serves one request at a time, each for the same time: `python -m benchmarks.balancing.server`."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

METHOD = "/avactl.Benchmark/Serve"


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    """The one method: it takes its time, and returns the port of the server."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.port = 0

    def service(self, details: Any) -> Any:
        """Return the method's handler; None for other methods."""
        return grpc.unary_unary_rpc_method_handler(self._serve) if details.method == METHOD else None

    def _serve(self, request: bytes, context: Any) -> bytes:
        time.sleep(self._seconds)
        return str(self.port).encode()


def main() -> None:
    """Serve on the address (`127.0.0.1:0`: any port) of the first argument, each request for the seconds of the second.

    Prints the port once it serves.
    """
    address, seconds = sys.argv[1], float(sys.argv[2])
    # A killed server's port must refuse connections, not share them with the next one.
    server = grpc.server(ThreadPoolExecutor(1), options=(("grpc.so_reuseport", 0),))
    handler = Handler(seconds)
    server.add_generic_rpc_handlers((handler,))
    handler.port = server.add_insecure_port(address)
    server.start()
    print(handler.port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
