"""A safe subset of CEL for device selectors: bounded loops, and only the functions of `avactl.scheduler.cel.values`.

Supported: `device.driver`, `device.attributes["d"].name`, `device.capacity["d"].name`,
`device.allowMultipleAllocations`, literals, lists, `&& || ! == != < <= > >= in + - * / %`, `a ? b : c`, `has()`,
`cel.bind()`, optional values (`.?name`, `[?key]`, `orValue()`), the macros `all exists exists_one filter map`, and the
functions and methods of `values`. As in CEL, `&&` and `||` ignore an error on one side if the other side decides.
Source: https://kubernetes.io/docs/reference/kubernetes-api/resource-k8s-io (CELDeviceSelector), cel-spec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from avactl.scheduler.cel import values
from avactl.scheduler.cel.values import (
    CelDevice,
    CelError,
    MissingError,
    Optional,
    Quantity,
    quantity,
    version,
)

__all__ = ["CelDevice", "CelError", "Quantity", "compile_selector", "quantity", "version"]

Value = Any
Scope = Mapping[str, Value]
"""The device, the bound names, and the remaining evaluation steps under an empty name."""
Evaluate = Callable[[Scope], Value]

_TOKEN = re.compile(
    r"(?:(?P<odd>[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+(?:[eE][+-]?[0-9]+|[uU]|[xX][0-9a-fA-F]+))|(?P<number>[0-9]+)|(?P<string>[rR]?\"(?:[^\"\\]|\\.)*\"|[rR]?'(?:[^'\\]|\\.)*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:()\[\].,]))"
)
_SKIPPED = re.compile(r"(?:\s|//[^\n]*)*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|[xX][0-9a-fA-F]{2}|.)", re.DOTALL)
_DEPTH = 40
_WORK = 50_000
"""Tokens that one evaluation goes through, those in macros once for each item."""
_MEAN, _SAMPLE = 1000, 100
"""Maximum average steps per evaluation, and the number of evaluations after which the average is checked."""
_DIGITS = 19
_MACROS = ("all", "exists", "exists_one", "filter", "map")
_SUMS = {"+": values.plus, "-": values.minus}
_PRODUCTS = {"*": values.times, "/": values.over, "%": values.rest}


@lru_cache(maxsize=1024)
def compile_selector(expression: str) -> Callable[[CelDevice], bool]:
    """Compile an expression into a function, which raises CelError if evaluation fails for a device.

    Raises CelError for unsupported expressions.
    """
    parser = _Parser(expression)
    try:
        evaluate = parser.expression()
    except RecursionError:
        raise CelError("the expression is too deeply nested") from None
    parser.end()
    spent = [0, 0]  # evaluations, and tokens that they went through

    def selects(device: CelDevice) -> bool:
        if spent[0] >= _SAMPLE and spent[1] > _MEAN * spent[0]:
            raise CelError(f"the expression takes {spent[1] // spent[0]} steps per device; the limit is {_MEAN}")
        left = [_WORK - parser.size]
        try:
            found = evaluate({"device": device, "": left})
        except RecursionError:
            raise CelError("the expression is too deeply nested") from None
        finally:
            spent[0] += 1
            spent[1] += _WORK - left[0]
        if not isinstance(found, bool):
            raise CelError(f"`{expression[:80]}` is {values.words(found)}, not true or false")
        return found

    return selects


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens: list[tuple[str, str]] = []
        self._at = self._depth = 0
        self._bound: list[str] = []
        place = _end_of_blanks(expression, 0)
        while place < len(expression):
            match = _TOKEN.match(expression, place)
            if match is None:
                raise CelError(f"`{expression[place : place + 20]}` is not supported in `{expression[:80]}`")
            self._tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            place = _end_of_blanks(expression, match.end())

    @property
    def size(self) -> int:
        """Tokens."""
        return len(self._tokens)

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
            raise CelError(f"expected `{text}`, found `{self._peek() or 'the end'}` in `{self._expression[:80]}`")

    def end(self) -> None:
        """Nothing may follow."""
        if self._at < len(self._tokens):
            raise CelError(f"`{self._peek()}` is not supported in `{self._expression[:80]}`")

    # -- grammar ----------------------------------------------------------------------------------------------------

    def expression(self) -> Evaluate:
        """`a ? b : c`, and all that binds tighter."""
        self._depth += 1
        if self._depth > _DEPTH:
            raise CelError("the expression is too deeply nested")
        found = self._either()
        if self._take("?"):
            test, yes = found, self._either()
            self._expect(":")
            no = self.expression()

            def choose(scope: Scope) -> Value:
                return yes(scope) if values.boolean(test(scope)) else no(scope)

            found = choose
        self._depth -= 1
        return found

    def _either(self) -> Evaluate:
        parts = [self._both()]
        while self._take("||"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else _logic(parts, True)

    def _both(self) -> Evaluate:
        parts = [self._relation()]
        while self._take("&&"):
            parts.append(self._relation())
        return parts[0] if len(parts) == 1 else _logic(parts, False)

    def _relation(self) -> Evaluate:
        left = self._sum()
        while True:
            sign = self._peek()
            if sign in values.COMPARISONS and self._take(sign):
                left = _binary(left, self._sum(), values.COMPARISONS[sign])
            elif self._at < len(self._tokens) and self._tokens[self._at] == ("name", "in"):
                self._at += 1
                left = _binary(left, self._sum(), values.inside)
            else:
                return left

    def _sum(self) -> Evaluate:
        return self._chain(_SUMS, lambda: self._chain(_PRODUCTS, self._unary))

    def _chain(self, signs: Mapping[str, Callable[[Value, Value], Value]], inner: Callable[[], Evaluate]) -> Evaluate:
        left = inner()
        while (sign := self._peek()) in signs and self._take(sign):
            left = _binary(left, inner(), signs[sign])
        return left

    def _unary(self) -> Evaluate:
        if self._take("!"):
            inner = self._unary()
            return lambda scope: not values.boolean(inner(scope))
        if self._take("-"):
            number = self._unary()
            return lambda scope: -values.integer(number(scope))
        return self._member(self._primary())

    def _primary(self) -> Evaluate:
        if self._take("("):
            inner = self.expression()
            self._expect(")")
            return inner
        if self._take("["):
            items = self._arguments("]")
            return lambda scope: [item(scope) for item in items]
        if self._at >= len(self._tokens):
            raise CelError(f"`{self._expression[:80]}` ends unexpectedly")
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            if len(text) > _DIGITS:
                raise CelError(f"the number {text[:_DIGITS]}… is too large")
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
        if name == "device" or name in self._bound:
            return lambda scope: _there(scope[name])
        if name == "cel" and self._take(".") and self._peek() == "bind":
            self._at += 1
            self._expect("(")
            return self._bind()
        if name == "has" and self._take("("):
            inner = self._argument(name)
            return lambda scope: _has(inner, scope)
        if name in values.FUNCTIONS and self._take("("):
            function, inner = values.FUNCTIONS[name], self._argument(name)
            return lambda scope: function(inner(scope))
        raise CelError(f"`{name}` is not supported in `{self._expression[:80]}`")

    def _argument(self, name: str) -> Evaluate:
        arguments = self._arguments(")")
        if len(arguments) != 1:
            raise CelError(f"{name}() takes one argument")
        return arguments[0]

    def _bind(self) -> Evaluate:
        """`cel.bind(name, value, expression)`, after its parenthesis."""
        name = self._variable()
        value = self.expression()
        self._expect(",")
        body = self._within(name)
        self._expect(")")
        return lambda scope: body({**scope, name: _Later(value, scope)})

    def _variable(self) -> str:
        kind, name = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        if kind != "name":
            raise CelError(f"expected a name, found `{name or 'the end'}` in `{self._expression[:80]}`")
        self._at += 1
        self._expect(",")
        return name

    def _within(self, name: str) -> Evaluate:
        """An expression in which a name has a value."""
        self._bound.append(name)
        found = self.expression()
        self._bound.pop()
        return found

    def _macro(self, value: Evaluate, name: str) -> Evaluate:
        """`list.exists(name, expression)`, after its parenthesis."""
        variable = self._variable()
        began = self._at
        body = self._within(variable)
        after = self._within(variable) if name == "map" and self._take(",") else None
        size = self._at - began
        self._expect(")")

        def run(scope: Scope) -> Value:
            found = values.items(value(scope))
            scope[""][0] -= len(found) * size
            if scope[""][0] < 0:
                raise CelError("the expression takes too many steps")
            inner = [{**scope, variable: item} for item in found]
            if name in ("all", "exists"):
                return _decide(((body, each) for each in inner), name == "exists")
            if name == "exists_one":
                return sum(values.boolean(body(each)) for each in inner) == 1
            if name == "filter":
                return [each[variable] for each in inner if values.boolean(body(each))]
            if after is None:
                return [body(each) for each in inner]
            return [after(each) for each in inner if values.boolean(body(each))]

        return run

    def _member(self, value: Evaluate) -> Evaluate:
        while True:
            if self._take("."):
                optional = self._take("?")
                kind, name = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
                if kind != "name":
                    raise CelError(f"expected a name after `.` in `{self._expression[:80]}`")
                self._at += 1
                value = self._method(value, name) if self._take("(") else _field(value, name, optional)
            elif self._take("["):
                combine = values.optional_item if self._take("?") else values.item
                key = self.expression()
                self._expect("]")
                value = _binary(value, key, combine)
            else:
                return value

    def _method(self, value: Evaluate, name: str) -> Evaluate:
        if name in _MACROS:
            return self._macro(value, name)
        arguments = self._arguments(")")
        if not arguments and name in values.SIMPLE:
            method = values.SIMPLE[name]
            return lambda scope: method(value(scope))
        if len(arguments) == 1 and name == "orValue":
            other = arguments[0]
            return lambda scope: other(scope) if (found := value(scope)) is values.NOTHING else values.inner(found)
        if len(arguments) == 1 and name in values.METHODS:
            return _binary(value, arguments[0], values.METHODS[name])
        raise CelError(f"`.{name}()` is not supported in `{self._expression[:80]}`")

    def _arguments(self, close: str) -> list[Evaluate]:
        found: list[Evaluate] = []
        while not self._take(close):
            if found:
                self._expect(",")
            found.append(self.expression())
        return found


def _end_of_blanks(text: str, place: int) -> int:
    """Behind blanks and comments."""
    found = _SKIPPED.match(text, place)
    return found.end() if found else place


# -- evaluating ------------------------------------------------------------------------------------------------------


class _Later:
    """A value that is bound to a name: worked out once, and only if the name is used."""

    __slots__ = ("_evaluate", "_scope", "_value")

    def __init__(self, evaluate: Evaluate, scope: Scope) -> None:
        self._evaluate, self._scope = evaluate, scope
        self._value: tuple[Value, ...] = ()

    def get(self) -> Value:
        if not self._value:
            self._value = (self._evaluate(self._scope),)
        return self._value[0]


def _there(value: Value) -> Value:
    return value.get() if isinstance(value, _Later) else value


def _decide(parts: Iterable[tuple[Evaluate, Scope]], decides: bool) -> bool:
    failed: CelError | None = None
    for part, scope in parts:
        try:
            if values.boolean(part(scope)) is decides:
                return decides
        except CelError as error:
            failed = error
    if failed is not None:
        raise failed
    return not decides


def _logic(parts: list[Evaluate], decides: bool) -> Evaluate:
    return lambda scope: _decide(((part, scope) for part in parts), decides)


def _binary(left: Evaluate, right: Evaluate, combine: Callable[[Value, Value], Value]) -> Evaluate:
    return lambda scope: combine(left(scope), right(scope))


def _field(value: Evaluate, name: str, optional: bool) -> Evaluate:
    if optional:
        return lambda scope: values.optional_item(value(scope), name)
    return lambda scope: values.member(value(scope), name)


def _has(inner: Evaluate, scope: Scope) -> bool:
    try:
        found = inner(scope)
    except MissingError:
        return False
    return found.there if isinstance(found, Optional) else True


def _string(literal: str) -> str:
    if literal[0] in "rR":
        return literal[2:-1]

    def unescape(match: re.Match[str]) -> str:
        letter = match[1]
        if len(letter) > 1:
            return chr(int(letter[1:], 16))
        if letter.isalnum() and letter not in _ESCAPES:
            raise CelError(f"the escape \\{letter} is not supported")
        return _ESCAPES.get(letter, letter)

    return _ESCAPED.sub(unescape, literal[1:-1])
