"""Values that are read otherwise than they look: empty ones, numbers with leading zeros, typographic characters."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from types import NoneType
from typing import Any

from avactl.base.terminal import shorten_middle
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.lookalikes import mixed_text
from avactl.diagnostics.redaction import redact_text
from avactl.program.explain import introspect
from avactl.program.program import Item
from avactl.spec.documents.document import Path
from avactl.spec.documents.yaml import YamlLocator, written_scalar

_LEADING_ZERO = re.compile(r"(?<![^\s\[{,:])[-+]?0[0-9]+(?![\w.])").search
"""A number with a leading zero at the start of a YAML scalar; not those in names and dates (`team-0004`)."""


_DASHES, _QUOTES = "\u2010-\u2015\u2212", "\u2018-\u201f"
_TYPOGRAPHIC = re.compile(
    rf"(?<!\S)(?:[{_DASHES}][-{_DASHES}]?[A-Za-z0-9][\w.-]*|[{_QUOTES}][^\s{_QUOTES}]*[{_QUOTES}]?)"
)
"""A word as word processors and chats write an option or a quoted value: `–epochs`, `“90”`."""
_has_typography = re.compile(f"[{_DASHES}{_QUOTES}]").search


def likely_typos(item: Item) -> Iterator[Diagnostic]:
    """Yield the problems of one spec."""
    yield from _typographic_words(item)
    # In Python, None and octal numbers are written on purpose.
    locator = item.doc.locator
    if not isinstance(locator, YamlLocator) or "spec" not in item.doc.value:
        return
    types = (NoneType, int) if _has_zeros(locator) else (NoneType,)
    for path, value in _scalar_values({"spec": item.doc.get("spec")}, types):
        if value is None and _is_field(item, path):
            yield Diagnostic(
                "without-effect",
                f"`{path[-1]}` has no value",
                item.span(*path, key=True),
                severity="warning",
                hint=f"give `{path[-1]}` a value, or remove the key: then the default applies",
            )
        elif value is not None:
            text = written_scalar(item.doc, *path)
            if _LEADING_ZERO(text) and len(text) > 1:
                yield Diagnostic(
                    "invalid-value",
                    f"`{text}` is the decimal number {value} here; kubectl reads it as octal",
                    item.span(*path),
                    severity="warning",
                    hint=f"write `{value}`, or `0o{text.lstrip('0')}` for an octal number",
                )


def _typographic_words(item: Item) -> Iterator[Diagnostic]:
    """Yield words that are not what they look like: with typographic, invisible or foreign characters."""
    locator = item.doc.locator
    if isinstance(locator, YamlLocator) and locator.text.isascii():
        return
    for path, text in _scalar_values({"spec": item.doc.get("spec")}, (str,)):
        if text.isascii() or len(path) < 2:
            continue
        if text.strip() == "…":
            yield Diagnostic(
                "invalid-value",
                "`…` stands for a value in examples",
                item.span(*path),
                # A program may be given any text.
                severity="error" if {"command", "args", "env"}.isdisjoint(path) else "warning",
                hint="write the value",
            )
            continue
        is_word = path[-2] in ("command", "args") and isinstance(path[-1], int)
        if is_word or not re.search(r"\s", text.strip()):
            mixed = mixed_text(text)
            if mixed is not None:
                yield Diagnostic(
                    "invalid-value",
                    f"`{shorten_middle(redact_text(text), 60)}` is not the text that it looks like: {mixed.reason}",
                    item.span(*path),
                    # A longer text may be meant for people.
                    severity="warning" if re.search(r"\s", text.strip()) else "error",
                    hint=f"write `{shorten_middle(redact_text(mixed.plain), 60)}`",
                )
                continue
        if not is_word and path[-2] != "env":
            continue
        word = _typographic_word(text)
        plain = _plain_text(word)
        if not plain:
            continue
        index = path[-1]
        before = item.doc.get(*path[:-1], index - 1) if is_word and isinstance(index, int) and index else ""
        # A quotation, a longer text, and the value of an option may be meant for people.
        option = word == text and plain.startswith("-") and not str(before).startswith("-")
        yield Diagnostic(
            "invalid-value",
            f"`{shorten_middle(redact_text(word), 60)}` has the typographic character "
            f"U+{ord(_odd_character(word)):04X}, which programs take for text",
            item.span(*path),
            severity="error" if option else "warning",
            hint=f"write `{shorten_middle(redact_text(plain), 60)}`",
        )


def _typographic_word(text: str) -> str:
    """Return the first such word outside of a script's comments; "" if there is none."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return next((match[0] for match in map(_TYPOGRAPHIC.search, lines) if match is not None), "")


def _odd_character(word: str) -> str:
    return next(each for each in word if _has_typography(each))


def _plain_text(word: str) -> str:
    """Return a word as a shell takes it: with dashes for options, and without quotes, which YAML has."""
    if "\u2018" <= word[:1] <= "\u201f":
        return re.sub(f"[{_QUOTES}]", "", word)
    name = word.lstrip("-\u2010\u2011\u2012\u2013\u2014\u2015\u2212")
    if not name:
        return ""
    return f"-{name}" if len(name) == 1 or name[0].isdigit() else f"--{name}"


@lru_cache(maxsize=8)
def _has_zeros(locator: YamlLocator) -> bool:
    return _LEADING_ZERO(locator.text) is not None


def _scalar_values(value: Any, types: Collection[type]) -> Iterator[tuple[Path, Any]]:
    """Yield the scalars of some types in a mapping or list, with their paths."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        if type(inner) in types:
            yield (key,), inner
        elif isinstance(inner, dict | list):
            # Paths grow on the way out, because few values are of these types.
            for path, scalar in _scalar_values(inner, types):
                yield (key, *path), scalar


def _is_field(item: Item, path: Path) -> bool:
    """Return False below fields of any type, such as manifests, where an empty value has a meaning."""
    models = introspect.models_at(type(item.resource), path[:-1])
    return any(str(path[-1]) in introspect.fields_by_key(model) for model in models)
