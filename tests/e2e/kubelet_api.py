"""Messages of the kubelet's gRPC APIs, defined here: no package on PyPI has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TEXTS, BOOL, INT = "repeated string", "bool", "int32"
_MAP = "map "


def define(package: str, messages: Mapping[str, Mapping[str, tuple[int, str]]]) -> dict[str, Any]:
    """Return message classes by name, from the number and type of each field.

    A type is a scalar, a message, `repeated TYPE`, or `map TYPE` with strings as keys.
    """
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": kinds.TYPE_STRING, "bool": kinds.TYPE_BOOL, "int32": kinds.TYPE_INT32}

    def set_type(field: descriptor_pb2.FieldDescriptorProto, word: str) -> None:
        if word in scalars:
            field.type = scalars[word]
        else:
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".{package}.{word}"

    file = descriptor_pb2.FileDescriptorProto(name=f"fake_{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            repeated = kind.startswith(("repeated ", _MAP))
            made = message.field.add(name=field, number=number)
            made.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            word = kind.removeprefix("repeated ")
            if kind.startswith(_MAP):
                entry = message.nested_type.add(name=f"{field.capitalize()}Entry")
                entry.options.map_entry = True
                for part, index in (("key", 1), ("value", 2)):
                    other = entry.field.add(name=part, number=index, label=kinds.LABEL_OPTIONAL)
                    set_type(other, "string" if part == "key" else kind.removeprefix(_MAP))
                word = f"{name}.{entry.name}"
            set_type(made, word)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in messages}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def unary(method: Callable[[Any, Any], Any], request: Any) -> Any:
    """Return the handler of a method whose requests are of a class."""
    return grpc.unary_unary_rpc_method_handler(
        method, request_deserializer=request.FromString, response_serializer=lambda answer: answer.SerializeToString()
    )
