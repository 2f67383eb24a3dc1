"""Protocol buffers' wire format for plain classes.

Framework images have any version of the protobuf runtime, and generated code runs only with some; these messages are
few and flat. Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeVar

_DOUBLE = struct.Struct("<d")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST = (1 << 64) - 1
M = TypeVar("M", bound="Message")


class WireError(ValueError):
    """The bytes are not a message."""


class Field(NamedTuple):
    """A field: its kind is a type of .proto files, or a class of messages."""

    number: int
    kind: Any
    repeated: bool = False


class Message:
    """A message. A subclass lists its fields in `FIELDS`, by name; all are arguments of its constructor."""

    FIELDS: dict[str, Field] = {}
    _by_number: dict[int, tuple[str, Field]] = {}

    def __init_subclass__(cls) -> None:
        cls._by_number = {field.number: (name, field) for name, field in cls.FIELDS.items()}

    def __init__(self, **values: Any) -> None:
        for name, field in self.FIELDS.items():
            setattr(self, name, values.pop(name) if name in values else _default(field))
        if values:
            raise TypeError("{} has no field {}".format(type(self).__name__, ", ".join(values)))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.FIELDS)
        return f"{type(self).__name__}({shown})"

    def encode(self) -> bytes:
        """Return the message's bytes. Fields with default values are left out."""
        parts: list[bytes] = []
        values = self.__dict__
        for name, field in self.FIELDS.items():
            value = values[name]
            if not value and not isinstance(value, Message):
                continue
            number, kind, repeated = field
            if repeated and kind == "uint64":
                packed = b"".join([_varint(each) for each in value])
                parts += (_varint(number << 3 | _BYTES), _varint(len(packed)), packed)
                continue
            for each in value if repeated else (value,):
                if kind in ("uint64", "bool"):
                    parts += (_varint(number << 3 | _VARINT), _varint(int(each)))
                elif kind == "double":
                    parts += (_varint(number << 3 | _FIXED64), _DOUBLE.pack(each))
                else:
                    raw = each.encode() if isinstance(each, (str, Message)) else bytes(each)
                    parts += (_varint(number << 3 | _BYTES), _varint(len(raw)), raw)
        return b"".join(parts)

    @classmethod
    def decode(cls: type[M], data: bytes) -> M:
        """Return the message that `data` encodes; unknown fields are skipped. Raises WireError."""
        found = cls()
        at, end = 0, len(data)
        while at < end:
            key, at = _read_varint(data, at)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                value: Any
                value, at = _read_varint(data, at)
            elif wire == _BYTES:
                size, at = _read_varint(data, at)
                value, at = data[at : at + size], at + size
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
                value, at = data[at : at + size], at + size
            else:
                raise WireError(f"wire type {wire}")
            if at > end:
                raise WireError("the message ends within a field")
            name, field = cls._by_number.get(number, ("", None))
            if field is not None:
                found._set(name, field, wire, value)
        return found

    def _set(self, name: str, field: Field, wire: int, value: Any) -> None:
        _, kind, repeated = field
        if kind == "uint64" and repeated and wire == _BYTES:
            at = 0
            while at < len(value):
                each, at = _read_varint(value, at)
                getattr(self, name).append(each)
            return
        expected = _VARINT if kind in ("uint64", "bool") else _FIXED64 if kind == "double" else _BYTES
        if wire != expected:
            raise WireError(f"field {name} of {type(self).__name__} has wire type {wire}")
        if kind == "bool":
            value = bool(value)
        elif kind == "double":
            value = _DOUBLE.unpack(value)[0]
        elif kind == "string":
            try:
                value = value.decode()
            except UnicodeDecodeError:
                raise WireError(f"field {name} of {type(self).__name__} is not UTF-8") from None
        elif kind not in ("uint64", "bytes"):
            value = kind.decode(value)
        if repeated:
            getattr(self, name).append(value)
        else:
            setattr(self, name, value)


def _default(field: Field) -> Any:
    if field.repeated:
        return []
    defaults: dict[Any, Any] = {"uint64": 0, "bool": False, "double": 0.0, "string": "", "bytes": b""}
    return defaults.get(field.kind)


_SMALL = [bytes([value]) for value in range(128)]


def _varint(value: int) -> bytes:
    if 0 <= value < 128:
        return _SMALL[value]
    if not 0 <= value <= _MOST:
        raise WireError(f"{value!r} is not an unsigned number of 64 bits")
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & _MOST, at
            shift += 7
            if shift > 63:
                raise WireError("a number of over 10 bytes")
    except IndexError:
        raise WireError("the message ends within a number") from None
