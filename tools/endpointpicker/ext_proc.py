"""Envoy's external processing protocol: the messages of `envoy/service/ext_proc/v3` that a gateway sends for a request
and its answer, those of a picker, and a client.

Sources: `envoy/service/ext_proc/v3/external_processor.proto` and `envoy/config/core/v3/base.proto` of
github.com/envoyproxy/go-control-plane/envoy 1.37.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DESTINATION = "x-gateway-destination-endpoint"
TIMEOUT_S = 5.0
_Field = descriptor_pb2.FieldDescriptorProto
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    # Name, number, type and whether it is repeated.
    "HeaderValue": (("key", 1, "string", False), ("value", 2, "string", False), ("raw_value", 3, "bytes", False)),
    "HeaderMap": (("headers", 1, "HeaderValue", True),),
    "HttpHeaders": (("headers", 1, "HeaderMap", False), ("end_of_stream", 3, "bool", False)),
    "HttpBody": (("body", 1, "bytes", False), ("end_of_stream", 2, "bool", False)),
    "HttpTrailers": (),
    "ProcessingRequest": (
        ("request_headers", 2, "HttpHeaders", False),
        ("response_headers", 3, "HttpHeaders", False),
        ("request_body", 4, "HttpBody", False),
        ("response_body", 5, "HttpBody", False),
        ("request_trailers", 6, "HttpTrailers", False),
        ("response_trailers", 7, "HttpTrailers", False),
    ),
    "HeaderValueOption": (("header", 1, "HeaderValue", False),),
    "HeaderMutation": (("set_headers", 1, "HeaderValueOption", True),),
    "BodyMutation": (("streamed_response", 3, "HttpBody", False),),
    "CommonResponse": (("header_mutation", 2, "HeaderMutation", False), ("body_mutation", 3, "BodyMutation", False)),
    # Of headers, or of a body.
    "HeadersResponse": (("response", 1, "CommonResponse", False),),
    "TrailersResponse": (),
    "ProcessingResponse": (
        ("request_headers", 1, "HeadersResponse", False),
        ("response_headers", 2, "HeadersResponse", False),
        ("request_body", 3, "HeadersResponse", False),
        ("response_body", 4, "HeadersResponse", False),
        ("request_trailers", 5, "TrailersResponse", False),
        ("response_trailers", 6, "TrailersResponse", False),
    ),
}
_CHOICES = {"ProcessingRequest": "request", "ProcessingResponse": "response"}
"""Messages of which only one field is set, and the name of the choice."""


class Picked(NamedTuple):
    """An answer of a picker."""

    endpoint: str
    """Address and port of the pod; empty: none."""
    error: str
    """Why there is none."""


def _build_messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="ext_proc.proto", package="picker", syntax="proto3")
    plain = {"string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "bool": _Field.TYPE_BOOL}
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _CHOICES:
            message.oneof_decl.add(name=_CHOICES[name])
        for field, number, kind, repeated in fields:
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, label=label)
            if name in _CHOICES:
                made.oneof_index = 0
            if kind in plain:
                made.type = plain[kind]
            else:
                made.type, made.type_name = _Field.TYPE_MESSAGE, f".picker.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"picker.{name}")) for name in _MESSAGES}


_TYPES = _build_messages()


def build_request(path: str = "/") -> bytes:
    """Return the headers of a request without a body."""
    value = _TYPES["HeaderValue"]
    headers = _TYPES["HeaderMap"](headers=[value(key=":path", raw_value=path.encode())])
    inner = _TYPES["HttpHeaders"](headers=headers, end_of_stream=True)
    message: bytes = _TYPES["ProcessingRequest"](request_headers=inner).SerializeToString()
    return message


def read_answer(content: bytes) -> str:
    """Return the endpoint that an answer names; empty if it names none."""
    answer = _TYPES["ProcessingResponse"].FromString(content)
    for each in answer.request_headers.response.header_mutation.set_headers:
        if each.header.key == DESTINATION:
            return each.header.raw_value.decode() or str(each.header.value)
    return ""


def parse_request(content: bytes) -> Any:
    """Return a message of a gateway."""
    return _TYPES["ProcessingRequest"].FromString(content)


def without_body(message: Any) -> bytes:
    """Return the headers of a request as if it had no body, for a message with headers."""
    message.request_headers.end_of_stream = True
    content: bytes = message.SerializeToString()
    return content


def answer_body(kind: str, part: Any) -> bytes:
    """Return the answer to a part of a body (`request_body` or `response_body`) that leaves it as it is."""
    mutation = _TYPES["BodyMutation"](streamed_response=part)
    response = _TYPES["HeadersResponse"](response=_TYPES["CommonResponse"](body_mutation=mutation))
    content: bytes = _TYPES["ProcessingResponse"](**{kind: response}).SerializeToString()
    return content


def answer_nothing(kind: str) -> bytes:
    """Return the answer to headers or trailers that leaves them as they are."""
    message = _TYPES["ProcessingResponse"]()
    getattr(message, kind).SetInParent()
    content: bytes = message.SerializeToString()
    return content


def ask(address: str) -> Picked:
    """Ask the picker at an address, without TLS, for the pod of a request."""
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.stream_stream(METHOD)(iter([build_request()]), timeout=TIMEOUT_S)
        try:
            return Picked(next((read_answer(content) for content in call), ""), "")
        except grpc.RpcError as error:
            return Picked("", f"{error.code().name} {error.details()}")
