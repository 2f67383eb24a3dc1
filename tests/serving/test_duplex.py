"""Bodies that gateways stream through an endpoint picker come back as they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest

from tools.endpointpicker import ext_proc
from tools.endpointpicker.duplex import Duplex

POD = "10.1.0.3:8000"
_NO_PROXY = [("grpc.enable_http_proxy", 0)]
_MESSAGES = ext_proc._TYPES
Process = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]


async def _picks(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for content in messages:
        assert ext_proc.parse_request(content).request_headers.end_of_stream
        answer = _MESSAGES["ProcessingResponse"]()
        option = answer.request_headers.response.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = ext_proc.DESTINATION, POD.encode()
        yield answer.SerializeToString()


async def _refuses(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for _ in messages:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no pods available")
        yield b""


async def _serve(process: Process) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    service, method = ext_proc.METHOD.strip("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


async def _exchange(picker: Process, messages: list[Any]) -> list[Any]:
    """Return the answers to the messages of one stream. Raises AioRpcError."""
    server, address = await _serve(picker)
    async with grpc.aio.insecure_channel(address, _NO_PROXY) as channel:
        front, front_address = await _serve(Duplex(channel.stream_stream(ext_proc.METHOD)).process)
        async with grpc.aio.insecure_channel(front_address, _NO_PROXY) as clients:
            call = clients.stream_stream(ext_proc.METHOD)()
            found = []
            try:
                for message in messages:
                    await call.write(message.SerializeToString())
                    found.append(await call.read())
            finally:
                await front.stop(0)
                await server.stop(0)
    return found


def _message(kind: str, **fields: Any) -> Any:
    message = _MESSAGES["ProcessingRequest"]()
    part = getattr(message, kind)
    part.SetInParent()
    for name, value in fields.items():
        setattr(part, name, value)
    return message


def test_bodies_come_back() -> None:
    sent = [
        _message("request_headers"),
        _message("request_body", body=b"{", end_of_stream=False),
        _message("request_body", body=b"}", end_of_stream=True),
        _message("response_headers"),
        _message("response_body", body=b"7", end_of_stream=True),
        _message("response_trailers"),
    ]
    headers, *answers = asyncio.run(_exchange(_picks, sent))
    assert ext_proc.read_answer(headers) == POD
    parsed = [_MESSAGES["ProcessingResponse"].FromString(each) for each in answers]
    assert [each.WhichOneof("response") for each in parsed] == [each.WhichOneof("request") for each in sent[1:]]
    bodies = [parsed[0].request_body, parsed[1].request_body, parsed[3].response_body]
    streamed = [each.response.body_mutation.streamed_response for each in bodies]
    assert [(each.body, each.end_of_stream) for each in streamed] == [(b"{", False), (b"}", True), (b"7", True)]


def test_a_picker_without_pods_refuses() -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        asyncio.run(_exchange(_refuses, [_message("request_headers")]))
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.UNAVAILABLE, "no pods available")
