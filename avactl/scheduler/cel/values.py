"""CEL values in device selectors (quantities, versions, optional values), and their operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import re2  # type: ignore[import-untyped]

from avactl.base.quantity import whole_units

Value = Any
_NANO = 10**9
_INT = 2**63
_UINT = 2**64
_LONGEST = 20_000
"""Characters of a text that is made, or items of a list; the API server takes expressions of 10 KiB."""
_VERSION_LENGTH = 256
_NUMBER, _BUILD = "(?:0|[1-9][0-9]*)", "[0-9A-Za-z-]+"
_PART = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PART}(?:\.{_PART})*))?(?:\+{_BUILD}(?:\.{_BUILD})*)?"
)
_NO_DIGITS = re.compile(r"[+-]?\.?(?=[A-Za-z]|$)")
_DECIMALS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LOWER, _UPPER = str.maketrans(ascii_uppercase, ascii_lowercase), str.maketrans(ascii_lowercase, ascii_uppercase)
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""Characters that Go's unicode.IsSpace accepts."""


class CelError(ValueError):
    """An unsupported expression, or a failed evaluation."""


class MissingError(CelError):
    """A missing key."""


@dataclass(frozen=True, order=True, slots=True)
class Quantity:
    """A quantity in nano units: exact and comparable."""

    nano: int
    integer: bool = field(default=True, compare=False)
    """True if Kubernetes stores it as a 64-bit integer; it does not treat others, such as 1.0 or 1.5Gi, as integers."""
    sum: bool = field(default=False, compare=False)
    """True for results of `add()` and `sub()`: cel-go compares them differently on the right of `==`."""


class SemanticVersion(NamedTuple):
    """A semantic version without its build; a pre-release comes before its release."""

    numbers: tuple[int, int, int]
    release: bool
    pre: tuple[tuple[bool, int, str], ...]


class Optional(NamedTuple):
    """A CEL optional value."""

    there: bool
    value: Value = None


NOTHING = Optional(False)


class CelDevice(NamedTuple):
    """A device as seen by selectors: attributes and capacities by domain, then by name."""

    driver: str
    attributes: Mapping[str, Mapping[str, Value]]
    capacity: Mapping[str, Mapping[str, Value]]
    shared: bool = False
    """True if several claims can hold parts of the device."""


@lru_cache(maxsize=16_384)
def quantity(text: str) -> Quantity:
    """Parse a quantity; no digits mean zero. Raises CelError.

    Source: k8s.io/apimachinery/pkg/api/resource, ParseQuantity.
    """
    digits = f"0{text[match.end() :]}" if text and (match := _NO_DIGITS.match(text)) else text
    try:
        if not text.isascii() or (digits is not text and text.endswith(("Pi", "Ei"))):
            raise ValueError(f"not a quantity: {text!r}")
        return Quantity(whole_units(digits, _NANO), _is_integer(digits))
    except ValueError as error:
        raise CelError(str(error)) from None


def _is_integer(text: str) -> bool:
    number = text.lstrip("+-0").rstrip("iKkMGTPEnum")
    suffix = text[len(text.rstrip("iKkMGTPEnum")) :]
    number, _, exponent = number.lower().partition("e")
    units, _, parts = number.partition(".")
    count = max(1, len(units + parts))
    if suffix.endswith("i"):
        return not parts and count + 3 * ("KMGTPE".index(suffix[0]) + 1) <= 14
    scale = (int(exponent) if exponent else _DECIMALS[suffix]) - len(parts)
    return scale >= 0 and count <= 18 and int(units + parts or "0") * 10**scale < _INT


@lru_cache(maxsize=16_384)
def version(text: str) -> SemanticVersion:
    """Raises CelError."""
    match = _VERSION.fullmatch(text) if len(text) <= _VERSION_LENGTH else None
    pre = (match[4] or "").split(".") if match else []
    if match is None or any(part.isdigit() and int(part) >= _UINT for part in (*match.groups()[:3], *pre)):
        raise CelError(f"not a semantic version: {text[:80]}")
    parts = tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in pre if part)
    return SemanticVersion((int(match[1]), int(match[2]), int(match[3])), not parts, parts)


class Domains(NamedTuple):
    """Attributes or capacities by domain; a missing domain is empty."""

    names: Mapping[str, Mapping[str, Value]]


def words(value: Value) -> str:
    """Describe a value for an error message."""
    if isinstance(value, bool | int | str):
        return repr(value)[:80]
    kinds = {
        CelDevice: "the device",
        Quantity: "a quantity",
        SemanticVersion: "a version",
        Optional: "an optional value",
    }
    return kinds.get(type(value), "a list" if isinstance(value, list) else "a map")


def boolean(value: Value) -> bool:
    """Raises CelError."""
    if not isinstance(value, bool):
        raise CelError(f"{words(value)} is not true or false")
    return value


def integer(value: Value) -> int:
    """Raises CelError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise CelError(f"{words(value)} is not a number")
    return value


def text(value: Value) -> str:
    """Raises CelError."""
    if not isinstance(value, str):
        raise CelError(f"{words(value)} is not a string")
    return value


def items(value: Value) -> list[Value]:
    """Return the items that a macro iterates over: a list, or the keys of a map. Raises CelError."""
    if isinstance(value, list):
        return value
    if isinstance(value, Domains):
        return list(value.names)
    if isinstance(value, Mapping):
        return list(value)
    raise CelError(f"{words(value)} is neither a list nor a map")


def _alike(one: Value, other: Value) -> None:
    if type(one) is not type(other):
        raise CelError(f"{words(one)} and {words(other)} cannot be compared")


def equal(one: Value, other: Value) -> bool:
    """`==`, by value and type. Raises CelError."""
    if type(one) is not type(other) or (isinstance(other, Quantity) and other.sum):
        if isinstance(one, Quantity | SemanticVersion):
            raise CelError(f"{words(one)} and {words(other)} cannot be compared by ==")
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def differs(one: Value, other: Value) -> bool:
    """`!=`, also defined for values that `==` cannot compare."""
    try:
        return not equal(one, other)
    except CelError:
        return True


def _ordered(compare: Callable[[Value, Value], bool]) -> Callable[[Value, Value], bool]:
    def ordered(one: Value, other: Value) -> bool:
        _alike(one, other)
        if isinstance(one, Quantity | SemanticVersion):
            raise CelError("use `.compareTo()` to compare quantities and versions")
        return compare(one, other)

    return ordered


COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "==": equal,
    "!=": differs,
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
    """`+` for numbers, strings and lists. Raises CelError."""
    _alike(one, other)
    if isinstance(one, str | list):
        if len(one) + len(other) > _LONGEST:
            raise CelError(f"a string or list longer than {_LONGEST}")
        return one + other
    return _small(integer(one) + integer(other))


def minus(one: Value, other: Value) -> int:
    """Raises CelError."""
    return _small(integer(one) - integer(other))


def times(one: Value, other: Value) -> int:
    """Raises CelError."""
    return _small(integer(one) * integer(other))


def over(one: Value, other: Value) -> int:
    """`/`; integer division truncates towards zero, as in CEL. Raises CelError."""
    if not integer(other):
        raise CelError("division by zero")
    quotient: int = abs(integer(one)) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


def rest(one: Value, other: Value) -> int:
    """Return the remainder of a division, with the sign of the dividend. Raises CelError."""
    return integer(one) - over(one, other) * integer(other)


def inside(value: Value, container: Value) -> bool:
    """`value in container`. Raises CelError."""
    if isinstance(container, Domains):
        return isinstance(value, str) and value in container.names
    if not isinstance(container, list | Mapping):
        raise CelError(f"`in` needs a list or a map, not {words(container)}")
    if isinstance(container, Mapping):
        return isinstance(value, str) and value in container
    return any(not differs(value, each) for each in container)


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
    raise CelError(f"{words(container)} has no items")


def optional_item(container: Value, key: Value) -> Optional:
    """`container[?key]`. Raises CelError."""
    if isinstance(container, CelDevice):
        return Optional(True, member(container, key))
    try:
        found = item(container, key)
    except MissingError:
        return NOTHING
    return found if isinstance(found, Optional) else Optional(True, found)


def member(value: Value, name: str) -> Value:
    """`value.name`. Raises CelError."""
    if not isinstance(value, CelDevice):
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
    if not isinstance(one, Quantity | SemanticVersion):
        raise CelError("`.compareTo()` requires quantities or versions")
    return int(one > other) - int(one < other)


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> Callable[[str], object]:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        search: Callable[[str], object] = re2.compile(pattern, options=options).search
    except re2.error as error:
        raise CelError(f"`{pattern[:80]}` is not a regular expression: {error}") from None
    return search


def _optional(value: Value) -> Optional:
    if not isinstance(value, Optional):
        raise CelError(f"{words(value)} is not optional")
    return value


def inner(value: Value) -> Value:
    """Return the inner value for `orValue()`; a non-optional value is returned unchanged, as in cel-go."""
    return value.value if isinstance(value, Optional) else value


def _value(value: Value) -> Value:
    found = _optional(value)
    if not found.there:
        raise CelError("the optional value is absent")
    return found.value


def _quantity(value: Value) -> Quantity:
    if not isinstance(value, Quantity):
        raise CelError(f"{words(value)} is not a quantity")
    return value


def _version(value: Value) -> SemanticVersion:
    if not isinstance(value, SemanticVersion):
        raise CelError(f"{words(value)} is not a version")
    return value


def _units(value: Value) -> int:
    if not _quantity(value).integer:
        raise CelError("the quantity is not an integer")
    return int(value.nano // _NANO)


def _more(sign: int) -> Callable[[Value, Value], Quantity]:
    def add(one: Value, other: Value) -> Quantity:
        more = Quantity(integer(other) * _NANO) if isinstance(other, int) else _quantity(other)
        nano = _quantity(one).nano + sign * more.nano
        return Quantity(nano, one.integer and more.integer and abs(nano) < _INT * _NANO, True)

    return add


def size(value: Value) -> int:
    """Raises CelError."""
    if isinstance(value, Domains):
        return len(value.names)
    if isinstance(value, str | list | Mapping):
        return len(value)
    raise CelError(f"{words(value)} has no size")


def sure(make: Callable[[str], Value]) -> Callable[[Value], bool]:
    """Return a predicate that is True if the text can be parsed."""

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
    "lowerAscii": lambda value: text(value).translate(_LOWER),
    "upperAscii": lambda value: text(value).translate(_UPPER),
    "trim": lambda value: text(value).strip(_BLANKS),
    "hasValue": lambda value: _optional(value).there,
    "value": _value,
    "sign": lambda value: (_quantity(value).nano > 0) - (_quantity(value).nano < 0),
    "isInteger": lambda value: _quantity(value).integer,
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
}
"""Methods with one argument."""
