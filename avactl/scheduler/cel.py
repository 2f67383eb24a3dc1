"""The part of CEL that selects devices, evaluated safely: no loops, no functions but those named here.

What it has: `device.driver`, `device.attributes["d"].name`, `device.capacity["d"].name`, `in`, literals, lists,
`&& || ! == != < <= > >=`, `has()`, `quantity()`, `semver()`, and on values `matches startsWith endsWith contains`,
`compareTo isGreaterThan isLessThan`. As in CEL, `&&` and `||` forgive an error on one side where the other decides.
Source: https://kubernetes.io/docs/reference/kubernetes-api/resource-k8s-io (CELDeviceSelector), cel-spec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from avactl.scheduler.quantities import whole

Value = Any
Evaluate = Callable[["Device"], Value]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<string>r?\"(?:[^\"\\]|\\.)*\"|r?'(?:[^'\\]|\\.)*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>&&|\|\||==|!=|<=|>=|[-<>!()\[\].,]))"
)
_DEPTH = 100


class CelError(ValueError):
    """An expression that is not supported, or that has no value for a device."""


class Quantity(NamedTuple):
    """A quantity in nano units: exact and comparable."""

    nano: int


class Version(NamedTuple):
    """A semantic version without its build; a pre-release comes before its release."""

    numbers: tuple[int, int, int]
    release: bool
    pre: tuple[tuple[bool, int, str], ...]


class Device(NamedTuple):
    """A device as selectors see it: attributes and capacities by domain, then by name."""

    driver: str
    attributes: Mapping[str, Mapping[str, Value]]
    capacity: Mapping[str, Mapping[str, Value]]


def quantity(text: str) -> Quantity:
    """Raises CelError."""
    try:
        return Quantity(whole(text, 10**9))
    except ValueError as error:
        raise CelError(str(error)) from None


def version(text: str) -> Version:
    """Raises CelError."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", text)
    if match is None:
        raise CelError(f"not a semantic version: {text}")
    pre = tuple(
        (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in (match[4] or "").split(".") if part
    )
    return Version((int(match[1]), int(match[2]), int(match[3])), not pre, pre)


@lru_cache(maxsize=1024)
def compile_selector(expression: str, trusted: bool = True) -> Callable[[Device], bool]:
    """The expression as a function. It raises CelError for devices for which the expression has no value.

    Raises CelError for what is not supported. `trusted`: by an administrator; regular expressions of others could take
    exponential time here, which RE2 cannot.
    """
    parser = _Parser(expression, trusted)
    evaluate = parser.either()
    parser.end()

    def selects(device: Device) -> bool:
        found = evaluate(device)
        if not isinstance(found, bool):
            raise CelError(f"`{expression[:80]}` is {found!r}, not true or false")
        return found

    return selects


class _Parser:
    def __init__(self, expression: str, trusted: bool) -> None:
        self._expression, self._trusted = expression, trusted
        self._tokens: list[tuple[str, str]] = []
        self._at = self._depth = 0
        place = 0
        text = expression.rstrip()
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise CelError(f"`{text[place : place + 20]}` is not supported in `{expression[:80]}`")
            self._tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            place = match.end()

    # -- tokens -----------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self, text: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == ("sign", text):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise CelError(f"`{text}` expected, found `{self._peek() or 'the end'}` in `{self._expression[:80]}`")

    def end(self) -> None:
        """Nothing may follow."""
        if self._at < len(self._tokens):
            raise CelError(f"`{self._peek()}` is not supported in `{self._expression[:80]}`")

    # -- grammar ----------------------------------------------------------------------------------------------------

    def either(self) -> Evaluate:
        """`a || b`."""
        self._depth += 1
        if self._depth > _DEPTH:
            raise CelError("the expression is nested too deep")
        parts = [self._both()]
        while self._take("||"):
            parts.append(self._both())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else _logic(parts, True)

    def _both(self) -> Evaluate:
        parts = [self._relation()]
        while self._take("&&"):
            parts.append(self._relation())
        return parts[0] if len(parts) == 1 else _logic(parts, False)

    def _relation(self) -> Evaluate:
        left = self._unary()
        for sign, compare in _COMPARISONS.items():
            if self._take(sign):
                return _binary(left, self._unary(), compare)
        if self._at < len(self._tokens) and self._tokens[self._at] == ("name", "in"):
            self._at += 1
            return _binary(left, self._unary(), _inside)
        return left

    def _unary(self) -> Evaluate:
        if self._take("!"):
            inner = self._unary()
            return lambda device: not _boolean(inner(device))
        if self._take("-"):
            number = self._unary()
            return lambda device: -_integer(number(device))
        return self._member(self._primary())

    def _primary(self) -> Evaluate:
        if self._take("("):
            inner = self.either()
            self._expect(")")
            return inner
        if self._take("["):
            items = self._arguments("]")
            return lambda device: [item(device) for item in items]
        if self._at >= len(self._tokens):
            raise CelError(f"`{self._expression[:80]}` ends too early")
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            number = int(text)
            return lambda _: number
        if kind == "string":
            value = _string(text)
            return lambda _: value
        if kind == "name":
            return self._named(text)
        raise CelError(f"`{text}` is not supported in `{self._expression[:80]}`")

    def _named(self, name: str) -> Evaluate:
        if name in ("true", "false"):
            return lambda _: name == "true"
        if name == "device":
            return lambda device: device
        if name in ("quantity", "semver", "has") and self._take("("):
            arguments = self._arguments(")")
            if len(arguments) != 1:
                raise CelError(f"{name}() takes one argument")
            inner = arguments[0]
            if name == "has":
                return lambda device: _has(inner, device)
            make = quantity if name == "quantity" else version
            return lambda device: make(_text(inner(device)))
        raise CelError(f"`{name}` is not supported in `{self._expression[:80]}`")

    def _member(self, value: Evaluate) -> Evaluate:
        while True:
            if self._take("."):
                kind, name = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
                if kind != "name":
                    raise CelError(f"a name expected after `.` in `{self._expression[:80]}`")
                self._at += 1
                value = self._method(value, name) if self._take("(") else _field(value, name)
            elif self._take("["):
                key = self.either()
                self._expect("]")
                value = _binary(value, key, _item)
            else:
                return value

    def _method(self, value: Evaluate, name: str) -> Evaluate:
        arguments = self._arguments(")")
        method = _METHODS.get(name)
        if method is None or len(arguments) != 1:
            raise CelError(f"`.{name}()` is not supported in `{self._expression[:80]}`")
        if name == "matches" and not self._trusted:
            raise CelError("`.matches()` is supported in device classes only: compare values in claims")
        return _binary(value, arguments[0], method)

    def _arguments(self, close: str) -> list[Evaluate]:
        found: list[Evaluate] = []
        while not self._take(close):
            if found:
                self._expect(",")
            found.append(self.either())
        return found


# -- values ----------------------------------------------------------------------------------------------------------


def _logic(parts: list[Evaluate], decides: bool) -> Evaluate:
    def evaluate(device: Device) -> Value:
        failed: CelError | None = None
        for part in parts:
            try:
                if _boolean(part(device)) is decides:
                    return decides
            except CelError as error:
                failed = error
        if failed is not None:
            raise failed
        return not decides

    return evaluate


def _binary(left: Evaluate, right: Evaluate, combine: Callable[[Value, Value], Value]) -> Evaluate:
    return lambda device: combine(left(device), right(device))


def _boolean(value: Value) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"{value!r} is not true or false")
    return value


def _integer(value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CelError(f"{value!r} is not a number")
    return value


def _text(value: Value) -> str:
    if not isinstance(value, str):
        raise CelError(f"{value!r} is not a string")
    return value


def _string(literal: str) -> str:
    if literal[0] == "r":
        return literal[2:-1]
    plain = {"n": "\n", "t": "\t", "r": "\r"}

    def unescape(match: re.Match[str]) -> str:
        letter = match[1]
        if letter.isalnum() and letter not in plain:
            raise CelError(f"the escape \\{letter} is not supported")
        return plain.get(letter, letter)

    return re.sub(r"\\(.)", unescape, literal[1:-1])


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


_COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "==": lambda one, other: type(one) is type(other) and one == other,
    "!=": lambda one, other: type(one) is not type(other) or one != other,
    "<=": _ordered(lambda one, other: bool(one <= other)),
    ">=": _ordered(lambda one, other: bool(one >= other)),
    "<": _ordered(lambda one, other: bool(one < other)),
    ">": _ordered(lambda one, other: bool(one > other)),
}


def _inside(value: Value, container: Value) -> bool:
    if not isinstance(container, list | Mapping):
        raise CelError(f"`in` needs a list or a map, not {container!r}")
    return value in container


def _item(container: Value, key: Value) -> Value:
    if isinstance(container, _Domains):
        return container.names.get(key, {})
    if isinstance(container, Mapping):
        if key not in container:
            raise CelError(f"no such key: {key}")
        return container[key]
    raise CelError(f"{container!r} has no items")


class _Domains(NamedTuple):
    """Attributes or capacities by domain; a domain that a device does not have is empty."""

    names: Mapping[str, Mapping[str, Value]]


def _field(value: Evaluate, name: str) -> Evaluate:
    def field(device: Device) -> Value:
        found = value(device)
        if isinstance(found, Device):
            if name == "driver":
                return found.driver
            if name in ("attributes", "capacity"):
                return _Domains(getattr(found, name))
            raise CelError(f"device.{name} is not supported")
        return _item(found, name)

    return field


def _has(inner: Evaluate, device: Device) -> bool:
    try:
        inner(device)
    except CelError as error:
        if str(error).startswith("no such key"):
            return False
        raise
    return True


def _compare(one: Value, other: Value) -> int:
    _alike(one, other)
    if not isinstance(one, Quantity | Version):
        raise CelError("`.compareTo()` is of quantities and versions")
    return int(one > other) - int(one < other)


def _matches(value: Value, pattern: Value) -> bool:
    try:
        return re.search(_text(pattern), _text(value)) is not None
    except re.error as error:
        raise CelError(f"`{pattern}` is no regular expression: {error}") from None


_METHODS: dict[str, Callable[[Value, Value], Value]] = {
    "matches": _matches,
    "startsWith": lambda value, part: _text(value).startswith(_text(part)),
    "endsWith": lambda value, part: _text(value).endswith(_text(part)),
    "contains": lambda value, part: _text(part) in _text(value),
    "compareTo": _compare,
    "isGreaterThan": lambda one, other: _compare(one, other) > 0,
    "isLessThan": lambda one, other: _compare(one, other) < 0,
}
