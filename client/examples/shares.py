"""Calls to two servers, one of which is three times as fast: the shares that each of them gets."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc

import avactl_client


def serve(name: str, seconds: float) -> tuple[grpc.Server, str]:
    """Start a server that takes this time for each request, and return it with its address."""

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        time.sleep(seconds)
        return name.encode()

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"Serve": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("example.Model", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


def main() -> None:
    """Send 400 requests, at most four at the same time."""
    servers = [serve("slow", 0.03), serve("fast", 0.01)]
    # In a cluster, DNS has the addresses: avactl_client.channel("NAME-headless.NAMESPACE:PORT")
    with avactl_client.channel("example:1", addresses=lambda: [address for _, address in servers]) as channel:
        call = channel.unary_unary("/example.Model/Serve")
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: call(b"", timeout=10).decode(), range(400)))
    for name, count in Counter(answers).most_common():
        print(f"{name}: {count / len(answers):.0%}")
    for server, _ in servers:
        server.stop(None)


if __name__ == "__main__":
    main()
