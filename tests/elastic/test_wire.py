"""The worker library's own codec against the protobuf runtime, and its tables against `protocol.proto`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from avactl_worker import messages
from avactl_worker.wire import Message, WireError
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

FOLDER = Path(messages.__file__).parent
PROTO = (FOLDER / "protocol.proto").read_text()
CLASSES = {name: each for name, each in vars(messages).items() if isinstance(each, type) and issubclass(each, Message)}
CLASSES.pop("Message")
SCALARS = {"uint64": 4, "bool": 8, "double": 1, "string": 9, "bytes": 12}


def runtime() -> dict[str, Any]:
    """Return protobuf's own classes for `protocol.proto`."""
    file = descriptor_pb2.FileDescriptorProto(name="protocol.proto", package=messages.PACKAGE, syntax="proto3")
    for name, body in re.findall(r"message (\w+) \{(.*?)\}", PROTO, re.DOTALL):
        described = file.message_type.add(name=name)
        for repeated, kind, field, number in re.findall(r"^ *(repeated )?(\w+) (\w+) = (\d+);", body, re.MULTILINE):
            added = described.field.add(name=field, number=int(number), label=3 if repeated else 1)
            added.type = SCALARS.get(kind, 11)
            if kind not in SCALARS:
                added.type_name = f".{messages.PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName("protocol.proto").message_types_by_name
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


RUNTIME = runtime()
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    "uint64": st.integers(0, 2**64 - 1),
    "bool": st.booleans(),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
}


def instances(kind: type[Message]) -> st.SearchStrategy[Message]:
    fields = {}
    for name, field in kind.FIELDS.items():
        value = VALUES[field.kind] if field.kind in VALUES else instances(field.kind)
        optional = value if field.kind in VALUES else st.none() | value
        fields[name] = st.lists(value, max_size=3) if field.repeated else optional
    return st.builds(kind, **fields)


def test_the_tables_are_those_of_the_proto() -> None:
    assert set(CLASSES) == set(RUNTIME)
    for name, kind in CLASSES.items():
        described = RUNTIME[name].DESCRIPTOR.fields
        assert {each.name: each.number for each in described} == {k: v.number for k, v in kind.FIELDS.items()}
        for each in described:
            field = kind.FIELDS[each.name]
            expected = SCALARS.get(field.kind, 11)
            assert (each.type, each.message_type.name if expected == 11 else None) == (
                expected,
                field.kind.__name__ if expected == 11 else None,
            )


@settings(deadline=None)
@given(st.data())
def test_messages_are_read_by_the_protobuf_runtime_and_back(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([messages.Request, messages.Answer]))
    message = data.draw(instances(kind))
    raw = message.encode()
    theirs = RUNTIME[kind.__name__].FromString(raw)
    assert theirs.SerializeToString(deterministic=True) == raw
    assert kind.decode(raw) == message


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    try:
        messages.Request.decode(data)
    except WireError:
        return


@pytest.mark.parametrize("data", [b"\x08", b"\x08" + b"\xff" * 10 + b"\x01", b"\x0f", b"\x12\x05\x0a", b"\x0a\x00"])
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(WireError):
        messages.Request.decode(data)


def test_fields_of_later_versions_are_skipped() -> None:
    later = b"\x98\x06\x05" + b"\xa2\x06\x03abc" + b"\xa9\x06" + bytes(8) + b"\xb5\x06" + bytes(4)
    assert messages.Request.decode(messages.Request(id=7).encode() + later) == messages.Request(id=7)


def test_the_library_is_python_3_8() -> None:
    files = sorted(FOLDER.glob("*.py"))
    assert len(files) > 4
    for path in files:
        ast.parse(path.read_text(), feature_version=(3, 8))
