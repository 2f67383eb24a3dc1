"""Protocol buffers' wire format for plain classes.

Framework images have any version of the protobuf runtime, and generated code runs only with some; these messages are
few and flat. Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from typing import Any, Callable, NamedTuple, TypeVar

_DOUBLE = struct.Struct("<d")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_UINT64 = (1 << 64) - 1
_WIRE_TYPES = {"uint64": _VARINT, "bool": _VARINT, "double": _FIXED64}
_DEFAULTS: dict[Any, Any] = {"uint64": 0, "bool": False, "double": 0.0, "string": "", "bytes": b""}
_SMALL = [bytes([value]) for value in range(128)]
_CONTINUED = bytes(range(128, 256))
"""Bytes of a number that others follow."""
MAX_NUMBERS, MAX_ENTRIES = 1_000_000, 100_000
"""Numbers, and texts or messages, of a field that is repeated. In memory they take up to a hundred times as much as on
the wire."""
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
    _defaults: dict[str, Any] = {}
    _lists: tuple[str, ...] = ()
    _encoders: tuple[tuple[str, bytes, str, bool], ...] = ()
    _decoders: dict[int, tuple[str, Callable[[Any], Any] | None, bool]] = {}
    """By the key on the wire, number and wire type: name, conversion of the value, True if repeated."""

    def __init_subclass__(cls) -> None:
        cls._defaults = {name: _DEFAULTS.get(kind) for name, (_, kind, many) in cls.FIELDS.items() if not many}
        # A message has only the fields that are set; of a task and its report these are few of many.
        for name, default in cls._defaults.items():
            setattr(cls, name, default)
        cls._lists = tuple(name for name, field in cls.FIELDS.items() if field.repeated)
        encoders = []
        cls._decoders = {}
        for name, (number, kind, many) in cls.FIELDS.items():
            packed = many and kind == "uint64"
            key = number << 3 | (_BYTES if packed else _WIRE_TYPES.get(kind, _BYTES))
            encoding = "packed" if packed else kind if isinstance(kind, str) else "message"
            encoders.append((name, _varint(key), encoding, many and not packed))
            cls._decoders[key] = (name, _unpacked if packed else _converter(name, kind, cls), many)
            if packed:
                cls._decoders[number << 3 | _VARINT] = (name, None, many)
        cls._encoders = tuple(encoders)

    def __init__(self, **values: Any) -> None:
        if not values.keys() <= self.FIELDS.keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(values.keys() - self.FIELDS.keys())}")
        found = self.__dict__
        for name in self._lists:
            found[name] = []
        found.update(values)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and {**self._defaults, **self.__dict__} == {**self._defaults, **other.__dict__}

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.FIELDS)
        return f"{type(self).__name__}({shown})"

    def encode(self) -> bytes:
        """Return the message's bytes. Fields with default values are left out."""
        parts: list[bytes] = []
        values = self.__dict__
        for name, key, kind, many in self._encoders:
            if name not in values:
                continue
            value = values[name]
            if not value and (kind != "message" or value is None):
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
        found = cls.__new__(cls)
        values, decoders = found.__dict__, cls._decoders
        for name in cls._lists:
            values[name] = []
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
            name, convert, many = decoder
            if convert is not None:
                value = convert(value)
            if not many:
                values[name] = value
            elif type(value) is list:
                values[name] += value
                if len(values[name]) > MAX_NUMBERS:
                    raise WireError(f"field {name} of {cls.__name__} has more than {MAX_NUMBERS:,} numbers")
            else:
                values[name].append(value)
                if len(values[name]) > MAX_ENTRIES:
                    raise WireError(f"field {name} of {cls.__name__} has more than {MAX_ENTRIES:,} entries")
        return found


def _converter(name: str, kind: Any, message: type[Message]) -> Callable[[Any], Any] | None:
    """Return what makes the value of a field of what is on the wire; None: it is that."""
    if kind == "string":

        def text(value: bytes) -> str:
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise WireError(f"field {name} of {message.__name__} is not UTF-8") from None

        return text
    if kind == "bool":
        return bool
    if kind == "double":
        return _double
    return kind.decode if not isinstance(kind, str) else None


def _double(data: bytes) -> float:
    found: float = _DOUBLE.unpack(data)[0]
    return found


def _unpacked(data: bytes) -> list[int]:
    found, at = [], 0
    if len(data.translate(None, _CONTINUED)) > MAX_NUMBERS:  # the last byte of each number is below 128
        raise WireError(f"a list has more than {MAX_NUMBERS:,} numbers")
    while at < len(data):
        value, at = _read_varint(data, at)
        found.append(value)
    return found


def _varint(value: int) -> bytes:
    if 0 <= value < 128:
        return _SMALL[value]
    if not 0 <= value <= _MAX_UINT64:
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
                return value & _MAX_UINT64, at
            shift += 7
            if shift > 63:
                raise WireError("a number of over 10 bytes")
    except IndexError:
        raise WireError("the message ends within a number") from None
