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
_WIRE_TYPES = {"uint64": _VARINT, "bool": _VARINT, "double": _FIXED64}
_DEFAULTS: dict[Any, Any] = {"uint64": 0, "bool": False, "double": 0.0, "string": "", "bytes": b""}
_SMALL = [bytes([value]) for value in range(128)]
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
    _scalars: dict[str, Any] = {}
    _lists: tuple[str, ...] = ()
    _encoders: tuple[tuple[str, bytes, Any, bool], ...] = ()
    _decoders: dict[int, tuple[str, Any, bool]] = {}
    """By the key on the wire: number and wire type."""

    def __init_subclass__(cls) -> None:
        cls._scalars = {name: _DEFAULTS.get(kind) for name, (_, kind, many) in cls.FIELDS.items() if not many}
        cls._lists = tuple(name for name, field in cls.FIELDS.items() if field.repeated)
        encoders = []
        cls._decoders = {}
        for name, (number, kind, many) in cls.FIELDS.items():
            packed = many and kind == "uint64"
            key = number << 3 | (_BYTES if packed else _WIRE_TYPES.get(kind, _BYTES))
            encoders.append((name, _varint(key), "packed" if packed else kind, many and not packed))
            cls._decoders[key] = (name, "packed" if packed else kind, many)
            if packed:
                cls._decoders[number << 3 | _VARINT] = (name, kind, many)
        cls._encoders = tuple(encoders)

    def __init__(self, **values: Any) -> None:
        found = self.__dict__
        found.update(self._scalars)
        for name in self._lists:
            found[name] = []
        if values:
            if not values.keys() <= found.keys():
                raise TypeError(f"{type(self).__name__} has no field {', '.join(values.keys() - found.keys())}")
            found.update(values)

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
        for name, key, kind, many in self._encoders:
            value = values[name]
            if not value and not isinstance(value, Message):
                continue
            for each in value if many else (value,):
                parts.append(key)
                if kind == "uint64" or kind == "bool":
                    parts.append(_SMALL[each] if 0 <= each < 128 else _varint(each))
                    continue
                if kind == "double":
                    parts.append(_DOUBLE.pack(each))
                    continue
                if kind == "bytes":
                    raw = bytes(each)
                elif kind == "packed":
                    raw = b"".join([_varint(number) for number in each])
                else:
                    raw = each.encode()
                size = len(raw)
                parts.append(_SMALL[size] if size < 128 else _varint(size))
                parts.append(raw)
        return b"".join(parts)

    @classmethod
    def decode(cls: type[M], data: bytes) -> M:
        """Return the message that `data` encodes; unknown fields are skipped. Raises WireError."""
        found = cls()
        values, decoders = found.__dict__, cls._decoders
        at, end = 0, len(data)
        while at < end:
            key = data[at]
            at += 1
            if key > 127:
                key, at = _read_varint(data, at - 1)
            wire = key & 7
            value: Any
            if wire in (_VARINT, _BYTES):
                if at < end and data[at] < 128:
                    value = data[at]
                    at += 1
                else:
                    value, at = _read_varint(data, at)
                if wire == _BYTES:
                    value, at = data[at : at + value], at + value
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
                value, at = data[at : at + size], at + size
            else:
                raise WireError(f"wire type {wire}")
            if at > end:
                raise WireError("the message ends within a field")
            decoder = decoders.get(key)
            if decoder is None:
                if any(key >> 3 == known >> 3 for known in decoders):
                    raise WireError(f"field {key >> 3} of {cls.__name__} has wire type {wire}")
                continue
            name, kind, many = decoder
            if kind == "packed":
                values[name] += _unpacked(value)
                continue
            if kind == "string":
                try:
                    value = value.decode()
                except UnicodeDecodeError:
                    raise WireError(f"field {name} of {cls.__name__} is not UTF-8") from None
            elif kind == "bool":
                value = bool(value)
            elif kind == "double":
                value = _DOUBLE.unpack(value)[0]
            elif kind != "uint64" and kind != "bytes":
                value = kind.decode(value)
            if many:
                values[name].append(value)
            else:
                values[name] = value
        return found


def _unpacked(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _read_varint(data, at)
        found.append(value)
    return found


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
