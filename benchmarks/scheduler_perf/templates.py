"""The manifests of scheduler_perf: YAML with the actions of Go templates that they use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
_ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}")
_USER_KEYS = frozenset({"annotations", "labels", "limits", "matchLabels", "nodeSelector", "requests"})
"""Maps whose keys are the user's own, not names of fields."""


class TemplateError(Exception):
    """A template uses what this interpreter does not know; the message names it."""


def _product(*numbers: float) -> float:
    result = 1.0
    for number in numbers:
        result *= number
    return result


_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "Add": lambda *numbers: sum(numbers),
    "Subtract": lambda left, right: left - right,
    "Multiply": _product,
    "Divide": lambda left, right: left / right,
}


def render(path: Path, index: int, count: int) -> Manifest:
    """Return the object of a template, the `index`-th of `count`. Raises TemplateError."""
    text = _read(path)
    values = {".Index": index, ".Count": count}
    return _manifest(path, _ACTION.sub(lambda match: _evaluate(path, match.group(1), values), text))


def read(path: Path) -> Manifest:
    """Return the object of a file that is no template, as it is."""
    return _manifest(path, _read(path))


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _manifest(path: Path, text: str) -> Manifest:
    manifest = _lower_fields(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    if not isinstance(manifest, dict):
        raise TemplateError(f"{path}: not an object")
    return manifest


def _evaluate(path: Path, action: str, values: Mapping[str, int]) -> str:
    name, *words = action.split()
    if not words and name in values:
        return str(values[name])
    arguments = [values[word] if word in values else _number(path, action, word) for word in words]
    if name == "Mod":
        return str(int(arguments[0]) % int(arguments[1]))
    for suffix, convert in (("Int", int), ("Float", float)):
        if function := _FUNCTIONS.get(name.removesuffix(suffix)) if name.endswith(suffix) else None:
            return str(convert(function(*arguments)))
    raise TemplateError(f"{path}: unknown template action {{{{ {action} }}}}")


def _number(path: Path, action: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise TemplateError(f"{path}: unknown template action {{{{ {action} }}}}") from None


def _lower_fields(value: object) -> object:
    """Spell fields as the API does: scheduler_perf decodes manifests by names without regard to case."""
    if isinstance(value, list):
        return [_lower_fields(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key[:1].lower() + key[1:]: item if key in _USER_KEYS else _lower_fields(item) for key, item in value.items()
    }
