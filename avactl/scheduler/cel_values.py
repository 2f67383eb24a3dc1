"""Values of CEL as device selectors meet them (quantities, versions, optional values), and what is done with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import re2  # type: ignore[import-untyped]

from avactl.scheduler.quantities import whole

Value = Any
_NANO = 10**9
_INT = 2**63
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


class CelError(ValueError):
    """An expression that is not supported, or that has no value for a device."""


class MissingError(CelError):
    """A key that is not there."""


class Quantity(NamedTuple):
    """A quantity in nano units: exact and comparable."""

    nano: int


class Version(NamedTuple):
    """A semantic version without its build; a pre-release comes before its release."""

    numbers: tuple[int, int, int]
    release: bool
    pre: tuple[tuple[bool, int, str], ...]


class Optional(NamedTuple):
    """A value that may not be there."""

    there: bool
    value: Value = None


class Device(NamedTuple):
    """A device as selectors see it: attributes and capacities by domain, then by name."""

    driver: str
    attributes: Mapping[str, Mapping[str, Value]]
    capacity: Mapping[str, Mapping[str, Value]]
    shared: bool = False
    """Whether several claims can have parts of it."""


@lru_cache(maxsize=16_384)
def quantity(text: str) -> Quantity:
    """Raises CelError."""
    try:
        return Quantity(whole(text, 10**9))
    except ValueError as error:
        raise CelError(str(error)) from None


@lru_cache(maxsize=16_384)
def version(text: str) -> Version:
    """Raises CelError."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise CelError(f"not a semantic version: {text}")
    pre = tuple(
        (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in (match[4] or "").split(".") if part
    )
    return Version((int(match[1]), int(match[2]), int(match[3])), not pre, pre)


class Domains(NamedTuple):
    """Attributes or capacities by domain; a domain that a device does not have is empty."""

    names: Mapping[str, Mapping[str, Value]]


def boolean(value: Value) -> bool:
    """Raises CelError."""
    if not isinstance(value, bool):
        raise CelError(f"{value!r} is not true or false")
    return value


def integer(value: Value) -> int:
    """Raises CelError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise CelError(f"{value!r} is not a number")
    return value


def text(value: Value) -> str:
    """Raises CelError."""
    if not isinstance(value, str):
        raise CelError(f"{value!r} is not a string")
    return value


def items(value: Value) -> list[Value]:
    """What macros go through: a list, or the keys of a map. Raises CelError."""
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping):
        return list(value)
    raise CelError(f"{value!r} is neither a list nor a map")


def _alike(one: Value, other: Value) -> None:
    if type(one) is not type(other):
        raise CelError(f"{one!r} and {other!r} cannot be compared")


def _ordered(compare: Callable[[Value, Value], bool]) -> Callable[[Value, Value], bool]:
    def ordered(one: Value, other: Value) -> bool:
        _alike(one, other)
        if isinstance(one, Quantity | Version):
            raise CelError("quantities and versions are compared by `.compareTo()`")
        return compare(one, other)

    return ordered


COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "==": lambda one, other: type(one) is type(other) and one == other,
    "!=": lambda one, other: type(one) is not type(other) or one != other,
    "<=": _ordered(lambda one, other: bool(one <= other)),
    ">=": _ordered(lambda one, other: bool(one >= other)),
    "<": _ordered(lambda one, other: bool(one < other)),
    ">": _ordered(lambda one, other: bool(one > other)),
}


def _small(number: int) -> int:
    if not -_INT <= number < _INT:
        raise CelError("the number is too large")
    return number


def plus(one: Value, other: Value) -> Value:
    """Numbers, strings or lists together. Raises CelError."""
    _alike(one, other)
    if isinstance(one, str | list):
        return one + other
    return _small(integer(one) + integer(other))


def minus(one: Value, other: Value) -> int:
    """Raises CelError."""
    return _small(integer(one) - integer(other))


def times(one: Value, other: Value) -> int:
    """Raises CelError."""
    return _small(integer(one) * integer(other))


def over(one: Value, other: Value) -> int:
    """Division as CEL has it, towards zero. Raises CelError."""
    if not integer(other):
        raise CelError("division by zero")
    quotient: int = abs(integer(one)) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


def rest(one: Value, other: Value) -> int:
    """What division leaves, with the sign of the dividend. Raises CelError."""
    return integer(one) - over(one, other) * integer(other)


def inside(value: Value, container: Value) -> bool:
    """`value in container`. Raises CelError."""
    if isinstance(container, Domains):
        return value in container.names
    if not isinstance(container, list | Mapping):
        raise CelError(f"`in` needs a list or a map, not {container!r}")
    return value in container


def item(container: Value, key: Value) -> Value:
    """`container[key]`. Raises CelError."""
    if isinstance(container, Optional):
        return optional_item(container.value, key) if container.there else container
    if isinstance(container, Domains):
        return container.names.get(key, {})
    if isinstance(container, Mapping):
        if key not in container:
            raise MissingError(f"no such key: {key}")
        return container[key]
    if isinstance(container, list):
        if not 0 <= integer(key) < len(container):
            raise CelError(f"no item {key} in a list of {len(container)}")
        return container[key]
    raise CelError(f"{container!r} has no items")


def optional_item(container: Value, key: Value) -> Optional:
    """`container[?key]`. Raises CelError."""
    try:
        found = item(container, key)
    except MissingError:
        return Optional(False)
    return found if isinstance(found, Optional) else Optional(True, found)


def member(value: Value, name: str) -> Value:
    """`value.name`. Raises CelError."""
    if not isinstance(value, Device):
        return item(value, name)
    if name == "driver":
        return value.driver
    if name in ("attributes", "capacity"):
        return Domains(getattr(value, name))
    if name == "allowMultipleAllocations":
        return value.shared
    raise CelError(f"device.{name} is not supported")


def _compare(one: Value, other: Value) -> int:
    _alike(one, other)
    if not isinstance(one, Quantity | Version):
        raise CelError("`.compareTo()` is of quantities and versions")
    return int(one > other) - int(one < other)


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> Callable[[str], object]:
    options = re2.Options()
    options.log_errors = False
    try:
        search: Callable[[str], object] = re2.compile(pattern, options=options).search
    except re2.error as error:
        raise CelError(f"`{pattern}` is no regular expression: {error}") from None
    return search


def _optional(value: Value) -> Optional:
    if not isinstance(value, Optional):
        raise CelError(f"{value!r} is not optional")
    return value


def _value(value: Value) -> Value:
    found = _optional(value)
    if not found.there:
        raise CelError("an optional value is not there")
    return found.value


def _quantity(value: Value) -> Quantity:
    if not isinstance(value, Quantity):
        raise CelError(f"{value!r} is not a quantity")
    return value


def _version(value: Value) -> Version:
    if not isinstance(value, Version):
        raise CelError(f"{value!r} is not a version")
    return value


def _units(value: Value) -> int:
    nano = _quantity(value).nano
    if nano % _NANO:
        raise CelError("the quantity is not a whole number")
    return _small(nano // _NANO)


def _more(sign: int) -> Callable[[Value, Value], Quantity]:
    def add(one: Value, other: Value) -> Quantity:
        more = other * _NANO if isinstance(other, int) else _quantity(other).nano
        return Quantity(_quantity(one).nano + sign * more)

    return add


def size(value: Value) -> int:
    """Raises CelError."""
    if isinstance(value, Domains):
        return len(value.names)
    if isinstance(value, str | list | Mapping):
        return len(value)
    raise CelError(f"{value!r} has no size")


def sure(make: Callable[[str], Value]) -> Callable[[Value], bool]:
    """Whether a text can be read."""

    def can(value: Value) -> bool:
        try:
            make(text(value))
        except CelError:
            return False
        return True

    return can


FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    "quantity": lambda value: quantity(text(value)),
    "semver": lambda value: version(text(value)),
    "isQuantity": sure(lambda value: quantity(value)),
    "isSemver": sure(lambda value: version(value)),
    "size": size,
}
SIMPLE: dict[str, Callable[[Value], Value]] = {
    "size": size,
    "lowerAscii": lambda value: text(value).lower(),
    "upperAscii": lambda value: text(value).upper(),
    "trim": lambda value: text(value).strip(),
    "hasValue": lambda value: _optional(value).there,
    "value": _value,
    "sign": lambda value: (_quantity(value).nano > 0) - (_quantity(value).nano < 0),
    "isInteger": lambda value: _quantity(value).nano % _NANO == 0,
    "asInteger": _units,
    "major": lambda value: _version(value).numbers[0],
    "minor": lambda value: _version(value).numbers[1],
    "patch": lambda value: _version(value).numbers[2],
}
"""Methods without arguments."""
METHODS: dict[str, Callable[[Value, Value], Value]] = {
    "matches": lambda value, pattern: _pattern(text(pattern))(text(value)) is not None,
    "startsWith": lambda value, part: text(value).startswith(text(part)),
    "endsWith": lambda value, part: text(value).endswith(text(part)),
    "contains": lambda value, part: text(part) in text(value),
    "compareTo": _compare,
    "isGreaterThan": lambda one, other: _compare(one, other) > 0,
    "isLessThan": lambda one, other: _compare(one, other) < 0,
    "add": _more(1),
    "sub": _more(-1),
    "orValue": lambda value, other: _optional(value).value if _optional(value).there else other,
}
"""Methods with one argument."""
