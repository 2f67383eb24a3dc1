"""Warnings about values that YAML reads otherwise than they look: empty ones, and numbers with leading zeros."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from types import NoneType
from typing import Any

from avactl.diagnostics import Diagnostic
from avactl.program.explain import introspect
from avactl.program.program import Item
from avactl.spec.documents.document import Path
from avactl.spec.documents.yaml import YamlLocator, written_scalar

_LEADING_ZERO = re.compile(r"(?<![^\s\[{,:])[-+]?0[0-9]+(?![\w.])").search
"""A number with a leading zero at the start of a YAML scalar; not those in names and dates (`team-0004`)."""


def likely_typos(item: Item) -> Iterator[Diagnostic]:
    """Yield the warnings for one spec of a YAML file; in Python, None and octal numbers are written on purpose."""
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
