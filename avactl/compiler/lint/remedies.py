"""Remedies for values of the wrong type or form: what to write instead."""

from __future__ import annotations

import re
import shlex
from typing import Any

from pydantic import BaseModel

from avactl.compiler.lint import forms
from avactl.program.checks.words import flow_list
from avactl.program.explain import introspect, kubernetes_keys
from avactl.spec.documents.document import Path

_MAX_DIGITS = 12
"""Numbers with at least this many digits are not suggested as fixes."""
_MAX_COMMAND_LENGTH = 4096
"""Characters of a text searched for credentials; far fewer are shown."""
_MAX_SUGGESTION_LENGTH = 200
"""Maximum characters of a suggested value; more would be cut off and could not be copied."""


def shorten_and_redact(text: str, length: int = 60) -> str:
    """Truncate text to a short line and redact credentials."""
    from avactl.diagnostics.redaction import redact_text  # its patterns take long to compile

    text = redact_text(text[:_MAX_COMMAND_LENGTH])
    return text if len(text) <= length else text[: length - 3] + "…"


def describe_value(value: Any) -> str:
    """Describe a value in a short line: its type and text."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = shorten_and_redact(str(value).replace("\n", "\\n"))
    return f"string `{text}`" if isinstance(value, str) else f"number `{text}`"


def quote_remedy(value: Any, written: str = "") -> str:
    """Return the remedy for a number or a flag where text is expected; `written` is its source, with all its zeros."""
    text = written or (str(value).lower() if isinstance(value, bool) else str(value))
    return f'quote it: `"{shorten_and_redact(text)}"`'


_SHELL_SYNTAX = re.compile(r"&&|\|\||[|;<>\n]|\$\(").search


def command_list(text: str) -> str:
    """Write a command line as a YAML list of its words; with a shell if it needs one. "" if a quote is not closed."""
    if _SHELL_SYNTAX(text):
        return f"[{flow_list(('sh', '-c', text.strip()))}]"
    try:
        return f"[{flow_list(shlex.split(text))}]"
    except ValueError:
        return ""


_MAPPING_ERRORS = frozenset(("dict_type", "model_type", "model_attributes_type"))


def of_type(model: type[BaseModel], types: set[str], value: Any, path: Path, written: str) -> str:
    """Return the remedy for a value whose type is wrong; "" if there is none.

    `types` are pydantic's names of the errors, `written` is the scalar as in the file.
    """
    hint = _of_type(model, types, value, path, written)
    # An entry of a list has a number, and no key.
    return hint.replace(f"`{path[-1]}: ", "`") if path and isinstance(path[-1], int) else hint


def _of_type(model: type[BaseModel], types: set[str], value: Any, path: Path, written: str) -> str:
    key = path[-1] if path else ""
    if key == "gpu" and type(value) is int and types == {"string_type"}:
        return f"write the number as `gpus: {value}`, and the model here"
    if "string_type" in types and isinstance(value, bool | int | float):
        hint = forms.of_text(model, path, written or str(value))
        return hint or quote_remedy(value, written)
    if types == {"string_type"} and isinstance(value, dict) and len(value) == 1:
        inner = next(iter(value.values()))
        if isinstance(inner, str) and forms.of_text(model, path, inner) == "":
            return f"write `{key}: {shorten_and_redact(flow_list([inner]))}`"
    if "list_type" in types and value is not None:
        entries = introspect.models_at(model, (*path, 0))
        if entries and isinstance(value, str | int) and (entry := forms.of_mapping(entries, value)):
            return f"write `{key}: [{shorten_and_redact(entry)}]`"
        return _as_list(str(key), value, entries)
    if types & {"int_type", "int_parsing"} and isinstance(value, str) and value.strip().isdigit():
        return f"write {value.strip()} without quotes" if len(value) < _MAX_DIGITS else ""
    if "int_type" in types and value == "root" and key == "runAsUser":
        return "write the number of the user: `runAsUser: 0` is root"
    if "bool_type" in types and isinstance(value, str):
        word = value.lower()
        if word in ("yes", "on", "y", "true"):
            return "write `true`"
        if word in ("no", "off", "n", "false"):
            return "write `false`"
        return "write `true` or `false`"
    if value is None:
        return "remove the empty entry" if isinstance(key, int) else f"give `{key}` a value, or remove the key"
    if types & {"int_type", "int_from_float", "float_type"} and _meant_number(value) is not None:
        return f"write `{_meant_number(value)}`"
    if types & {"int_type", "int_from_float"} and isinstance(value, float):
        return (
            kubernetes_keys.SHARED_GPUS
            if key == "gpus"
            else forms.percentage_remedy(model, path, value) or "write a whole number"
        )
    if types <= {"int_type", "int_parsing", "float_type"} and isinstance(value, str | dict | list):
        return forms.number_remedy(model, path, value)
    if types == {"string_type"} and isinstance(value, list) and value and isinstance(value[0], str):
        words = flow_list([each for each in value if isinstance(each, str)])
        return f"write a text: `{shorten_and_redact(words)}`" + ("" if len(value) == 1 else ", without the inner list")
    if types & _MAPPING_ERRORS:
        models = introspect.models_at(model, path)
        return _as_mapping(str(key), value, models) or (forms.its_keys(models) if types <= _MAPPING_ERRORS else "")
    return ""


def _as_list(key: str, value: Any, models: forms.Models) -> str:
    if isinstance(value, dict):
        if entry := forms.of_list(models, value):
            return f"write a list: `{key}: [{shorten_and_redact(entry)}]`"
        first = next(iter(value), "name")
        return f"begin each entry with `- `: `- {shorten_and_redact(str(first))}: …`"
    text = str(value)
    if key in ("command", "args") and isinstance(value, str):
        words = command_list(
            shorten_and_redact(text, _MAX_SUGGESTION_LENGTH + 1)
        )  # redacted as a whole: `--token` tells of the next word
    elif key in ("command", "args"):
        words = f"[{flow_list([text])}]"
    else:
        words = f"[{', '.join(text.split())}]" if "," in text else f"[{text}]"
    return (
        f"write `{key}: {shorten_and_redact(words, _MAX_SUGGESTION_LENGTH)}`"
        if words and len(words) <= _MAX_SUGGESTION_LENGTH
        else "write a list"
    )


_VARIABLE_WORD = re.compile(r"([A-Za-z_][\w-]{0,40})(?:=(.{0,100}))?").fullmatch
"""A word, or `NAME=value` as in a shell."""


def _as_mapping(key: str, value: Any, models: forms.Models) -> str:
    if isinstance(value, list):
        entries = [(entry.get("name"), entry.get("value")) for entry in value if isinstance(entry, dict)]
        named = [
            f"{name}: {_format_scalar(inner)}"
            for name, inner in entries
            if name and isinstance(inner, str | int | float)
        ]
        words = [_VARIABLE_WORD(entry) for entry in value if isinstance(entry, str)]
        if not models and words and len(words) == len(value) and all(words):
            named = [f"{word[1]}: {_format_scalar(word[2]) if word[2] is not None else '…'}" for word in words if word]
        if not named and models:
            flags = forms.of_mapping(models, value)
            return f"write `{key}: {flags}`" if flags else ""
        return f"write a mapping: `{key}: {{{shorten_and_redact(', '.join(named[:3])) or 'NAME: value'}}}`"
    if isinstance(value, str):
        word, colon, _ = value.partition(":")
        if colon and word in forms.keys_of(models):
            return f"put a space after the colon: `{word}: …`"
        entry = forms.of_mapping(models, value) if value.isprintable() else ""
        if entry:
            return (
                f"write `{shorten_and_redact(entry)}`"
                if key.isdigit()
                else f"write `{key}: {shorten_and_redact(entry)}`"
            )
    if value is True:
        least = forms.shortest_mapping(models[0]) if models else "{}"
        return f"write `{key}: {least}`" + (" for the defaults" if least == "{}" else "")
    if isinstance(value, int) and not isinstance(value, bool):
        if "replicas" in forms.keys_of(models):
            return f"write `{key}: {{replicas: {value}}}`"
        if entry := forms.of_mapping(models, value):
            return f"write `{entry}`" if key.isdigit() else f"write `{key}: {entry}`"
    return ""


def _format_scalar(value: Any) -> str:
    return flow_list([str(value)])


def _meant_number(value: Any) -> int | None:
    """Return the integer that was probably meant by `3.0` or `1_000`."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 10**_MAX_DIGITS else None
    digits = value.replace("_", "").replace(",", "").strip() if isinstance(value, str) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < _MAX_DIGITS else None


_FIX_HINT = re.compile(
    r"""quote it: `("[^`…*]+")`|write `(true|false)`|write ([0-9]+) without quotes|write `(-?[0-9]+)`"""
).fullmatch
_LIST_HINT = re.compile(r"write `[A-Za-z]+: (\[[^`…*]+\])`").fullmatch


def fix_of(hint: str) -> str:
    """Return the text that a remedy of this module writes in place of a value; "" if it is not the whole value."""
    match = _FIX_HINT(hint) or _LIST_HINT(hint)
    return next(filter(None, match.groups()), "") if match else ""


def of_text(value: Any) -> str:
    """Return the remedy for slips of any text that is not valid: quotes of a word processor, comments, templates."""
    if not isinstance(value, str):
        return ""
    if value[:1] in "“”„‘’«" and value:
        return 'write the quotes as `"`; typographic quotes belong to the text'
    if re.search(r"\$\{|\$\(", value):
        return "variables are not substituted in specs; write the value"
    if "{{" in value:
        return "avactl does not render templates (`{{ … }}`); write the value"
    if re.search(r"\S#", value):
        return "a comment begins with a space: ` #`"
    return ""
