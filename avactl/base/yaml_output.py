"""Write plain data as block YAML that every parser reads alike.

Two families of parsers read Kubernetes manifests: YAML 1.1 (`kubectl`'s sigs.k8s.io/yaml, PyYAML), where `no` is false
and `12:30` is 750, and YAML 1.2. Text is plain only if both read it as the same text, else quoted. Mappings are sorted,
with `apiVersion`, `kind` and `metadata` first.

Sources: YAML 1.1 type repository (bool, int, float, null, timestamp, merge, value), YAML 1.2.2 section 10.3.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from avactl.base.terminal import inert_text

Emit = Callable[[str], None]

_FIRST_KEYS = ("apiVersion", "kind", "metadata")

# Plain: words that begin with a letter, `/`, `_` or `$`, separated by single spaces, with `:` and `#` only where they
# neither end a key nor begin a comment; quantities and durations; command-line options.
_IS_PLAIN = re.compile(
    r"[A-Za-z_/$](?:[A-Za-z0-9_./@+=~,;()*<>|$%^&?!'\"\\\-]|[:#](?=[^\s\[\]{},])| (?=[^ #:]))*"
    r"|[0-9]{1,12}(?:\.[0-9]{1,3})?(?:m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|Ei|s|ms|h|d)"
    r"|--?[A-Za-z][A-Za-z0-9_./@+=\-]*(?: [A-Za-z0-9_./@+=\-]+)*",
    re.ASCII,
).fullmatch
_NOT_TEXT = frozenset(
    spelling
    for word in ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity")
    for spelling in (word, word.capitalize(), word.upper())
)
_ESCAPE_SEQUENCES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}

_LONGEST_KEY = 128
"""Longest implicit key; a longer one is written with `? `. YAML allows up to 1024 characters."""
_MAX_CACHED_BYTES = 64 * 1024
"""Maximum number of cached texts and their maximum length in characters: manifests share a few thousand texts."""
_LONGEST_CACHED = 200


def _escape_character(char: str) -> str:
    short = _ESCAPE_SEQUENCES.get(char)
    # Python's printable characters are printable in YAML too; unusual white space is escaped to be visible.
    if short is not None or char.isprintable():
        return short or char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _split(text: str) -> str:
    """Escape a text, and in each command for CI systems the first character that `inert_text` replaces."""
    pairs = zip(text, inert_text(text), strict=True)
    return "".join(_escape_character(char) if char == shown else f"\\x{ord(char):02x}" for char, shown in pairs)


def quote_scalar(text: str) -> str:
    """Return text as a one-line scalar: plain if safe, else quoted. Escapes take commands for CI systems apart."""
    if inert_text(text) != text:
        return f'"{_split(text)}"'
    if _IS_PLAIN(text) and text not in _NOT_TEXT:
        return text
    if text.isprintable():
        if '"' not in text and "\\" not in text:
            return f'"{text}"'
        if "'" not in text:
            return f"'{text}'"
    return f'"{"".join(map(_escape_character, text))}"'


def _is_block(text: str) -> bool:
    """Return whether YAML can show multi-line text literally: only printable characters and tabs, and no space at the
    start of the first non-empty line, which determines the block's indentation."""
    start = text.lstrip("\n")[:1]
    printable = text.replace("\n", "").replace("\t", "").isprintable()
    return start not in ("", " ", "\t") and printable and inert_text(text) == text


class _Cache(dict[str, str]):
    """Texts in written form."""

    def __missing__(self, text: str) -> str:
        written = quote_scalar(text)
        if len(text) <= _LONGEST_CACHED:
            if len(self) >= _MAX_CACHED_BYTES:
                self.clear()
            self[text] = written
        return written


class _Keys(dict[str, str]):
    """Keys in written form, with the colon."""

    def __missing__(self, key: str) -> str:
        written = quote_scalar(key)
        if len(written) > _LONGEST_KEY:
            return ""
        written += ":"
        if len(self) >= _MAX_CACHED_BYTES:
            self.clear()
        self[key] = written
        return written


_texts = _Cache()
_keys = _Keys()


def _format_number(value: Any) -> str:
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = repr(value)
        if "n" in text:  # inf, -inf, nan
            return {"inf": ".inf", "-inf": "-.inf"}.get(text, ".nan")
        mantissa, exponent, power = text.partition("e")
        # YAML 1.1 reads `1e+16` as text.
        return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else text
    raise TypeError(f"{type(value).__name__} is not plain data")


def _write_block(emit: Emit, text: str, newline: str) -> None:
    """Write multi-line text as a literal block if possible, else quoted."""
    if not _is_block(text):
        emit(" " + quote_scalar(text))
        return
    body = text.rstrip("\n")
    more = len(text) - len(body)
    emit(" |-" if not more else " |" if more == 1 else " |+")
    for line in body.split("\n"):
        emit(newline + line if line else "\n")
    if more > 1:
        emit("\n" * (more - 1))


def _write_mapping(emit: Emit, mapping: Mapping[str, Any], newline: str, keys: Iterable[str], lead: str) -> None:
    """Write a non-empty mapping. `lead` precedes the first entry, `newline` before the others."""
    for key in keys:
        value = mapping[key]
        written = _keys[key] or f"? {quote_scalar(key)}{newline}:"
        kind = type(value)
        if kind is str and "\n" not in value:  # nine of ten
            emit(f"{lead}{written} {_texts[value]}")
        else:
            emit(lead + written)
            if kind is dict:
                if value:
                    inner = newline + "  "
                    _write_mapping(emit, value, inner, sorted(value), inner)
                else:
                    emit(" {}")
            elif kind is list:
                if value:
                    _write_sequence(emit, value, newline)
                else:
                    emit(" []")
            elif kind is str:
                _write_block(emit, value, newline + "  ")
            else:
                emit(" " + _format_number(value))
        lead = newline


def _write_sequence(emit: Emit, values: list[Any], newline: str) -> None:
    """Write a non-empty list, its dashes below the parent's first column."""
    inner = newline + "  "
    for value in values:
        kind = type(value)
        if kind is str:
            if "\n" in value:
                emit(newline + "-")
                _write_block(emit, value, inner)
            else:
                emit(f"{newline}- {_texts[value]}")
        elif kind is dict:
            if value:
                _write_mapping(emit, value, inner, sorted(value), newline + "- ")
            else:
                emit(newline + "- {}")
        elif kind is list:
            emit(newline + "-")
            if value:
                _write_sequence(emit, value, inner)
            else:
                emit(" []")
        else:
            emit(f"{newline}- {_format_number(value)}")


def dump(value: Mapping[str, Any]) -> str:
    """Return a mapping as one block-YAML document, with a trailing newline and without `---`.

    Values are dict, list, str, int, float, bool and None; keys are str; no lone surrogates.
    Raises TypeError on anything else.
    """
    if not value:
        return "{}\n"
    parts: list[str] = []
    keys = [key for key in _FIRST_KEYS if key in value] + sorted(key for key in value if key not in _FIRST_KEYS)
    _write_mapping(parts.append, value, "\n", keys, "")
    parts.append("\n")
    return "".join(parts)
