"""Lets gateways send bodies to the lightweight picker: `python -m tools.endpointpicker.duplex ADDRESS PICKER`.

Gateways stream the bodies of requests and answers through a picker (FULL_DUPLEX_STREAMED), but version 1.6.0 of the
lightweight one does not send them back, so every request with a body fails; 1.6.1 does. This server, at ADDRESS, asks
the picker at PICKER for the pod, as of a request without a body, and sends bodies back itself.

Sources: `docs/proposals/004-endpoint-picker-protocol` of sigs.k8s.io/gateway-api-inference-extension 1.6;
`envoy/service/ext_proc/v3/external_processor.proto` of github.com/envoyproxy/go-control-plane/envoy 1.37.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from tools.endpointpicker.ext_proc import METHOD, TIMEOUT_S, answer_body, answer_nothing, parse_request, without_body

_SERVICE, _METHOD = METHOD.strip("/").split("/")
_OPTIONS = [("grpc.enable_http_proxy", 0)]


class Duplex:
    """Answers the streams of gateways; `picker` is the method of the picker."""

    def __init__(self, picker: grpc.aio.StreamStreamMultiCallable[bytes, bytes]) -> None:
        self._picker = picker

    async def process(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Yield the answers to the messages of one stream."""
        async for content in messages:
            message = parse_request(content)
            kind = message.WhichOneof("request")
            if kind == "request_headers":
                try:
                    yield await self._pick(without_body(message))
                except grpc.aio.AioRpcError as error:
                    await context.abort(error.code(), error.details())
            elif kind in ("request_body", "response_body"):
                yield answer_body(kind, getattr(message, kind))
            elif kind:
                yield answer_nothing(kind)

    async def _pick(self, request: bytes) -> bytes:
        """Return the picker's answer to the headers of a request. Raises AioRpcError if it chooses no pod."""
        call = self._picker(timeout=TIMEOUT_S)
        await call.write(request)
        await call.done_writing()
        answer = await call.read()
        if isinstance(answer, bytes):
            call.cancel()
            return answer
        raise grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), await call.details())


async def _serve(address: str, picker: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with grpc.aio.insecure_channel(picker, _OPTIONS) as channel:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(Duplex(channel.stream_stream(METHOD)).process)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        if not server.add_insecure_port(address):
            raise OSError(f"cannot listen on {address}")
        await server.start()
        await ended.wait()
        await server.stop(1)


def main() -> None:
    """Serve until SIGTERM."""
    asyncio.run(_serve(*sys.argv[1:]))


if __name__ == "__main__":
    main()
