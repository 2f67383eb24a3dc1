"""Compare two plain values field by field: lists by Kubernetes' merge keys, texts by their parsed content.

Entries of a keyed list are matched at any position. A changed order is reported separately, because it is significant
in `env`, `args` and `initContainers`, and in a pod template always restarts pods.

There is a difference wherever the values differ as JSON. Two notations of a quantity are equal only where the caller
knows that the value is one. A text is compared as data only if that shows all of its differences; otherwise its
changed lines are reported too.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from decimal import Decimal
from itertools import zip_longest
from typing import Any, NamedTuple

from avactl.base.equality import canonical_json, is_same
from avactl.base.quantity import parse_quantity
from avactl.base.terminal import visible_text
from avactl.change.diff.model import ABSENT, FieldOp
from avactl.program import kubernetes_schema


class ListStep(str):
    """A list step of a path: the entry's key or index."""

    __slots__ = ()


class Text(str):
    """A path step into a text whose content was compared as data."""

    __slots__ = ()


Steps = tuple[str, ...]


class ValueChange(NamedTuple):
    """One difference. `name`: name of the value, by which credentials are recognised."""

    path: Steps
    op: FieldOp
    old: Any = ABSENT
    new: Any = ABSENT
    name: str = ""
    notation: bool = False
    """True for a text whose data is unchanged: only comments, whitespace, order or notation differ."""


IsQuantity = Callable[[Steps], bool]
"""Return whether the value at a path is a resource quantity, so that `1Gi` and `1024Mi` are equal."""


class _FieldChanges(list[ValueChange]):
    """The differences found so far, and which values are quantities."""

    def __init__(self, is_quantity: IsQuantity) -> None:
        super().__init__()
        self.is_quantity = is_quantity


KEYS = {
    "volumeMounts": ("mountPath",),
    "ports": ("name", "containerPort protocol", "port protocol"),
    "taints": ("key effect",),
    "tolerations": ("key value effect",),
    "subjects": ("kind namespace name",),
    "rules": ("apiGroups resources resourceNames",),
    "volumeClaimTemplates": ("metadata.name",),
    "matchExpressions": ("key operator",),
    "topologySpreadConstraints": ("topologyKey",),
    "hostAliases": ("ip",),
    "items": ("key",),
    "datasets": ("name mount", "mount", "name"),
    "gpus": ("gpu",),
    "tiers": ("medium",),
    "underStores": ("mount",),
    "under_stores": ("mount",),
}
"""Name of a list → fields that form the key of an entry; the first combination unique on both sides is used.
Other lists are keyed by `name`, or by content if names are not unique.
Source: `x-kubernetes-list-map-keys` in the API's OpenAPI document, and the kinds of avactl."""

_FREE_MAPS = frozenset(
    {
        "spec",
        "metadata",
        "annotations",
        "labels",
        "data",
        "nodeSelector",
        "matchLabels",
        "resources",
        "requests",
        "limits",
        "hard",
        "env",
    }
)
"""Mappings whose entries are independent: adding or removing the whole mapping is reported entry by entry."""
_MAX_COMPARED = 1_000_000
"""Maximum number of pairs of entries compared to align two lists; longer lists are compared by position."""


def _is_no_quantity(path: Steps) -> bool:
    return False


def field_differences(
    old: Any, new: Any, path: Steps = (), is_quantity: IsQuantity = _is_no_quantity
) -> list[ValueChange]:
    """Return every difference between two plain values, in path order."""
    found = _FieldChanges(is_quantity)
    _compare(old, new, path, found)
    return list(found)


def object_differences(old: dict[str, Any], new: dict[str, Any]) -> list[ValueChange]:
    """Return every difference between two Kubernetes objects; quantities are those of the schema of their kind."""

    def is_quantity(path: Steps) -> bool:
        return all(kubernetes_schema.is_quantity(body, path) for body in (old, new))

    return field_differences(old, new, is_quantity=is_quantity)


def format_path(path: Steps) -> str:
    """Format a path for people: `spec.containers[train].image`, `data[train.json]: workers`."""
    text = ""
    for step in path:
        inside = text.endswith(": ")
        if isinstance(step, ListStep) or not (inside or _IS_PLAIN_KEY(step)):
            text += f"[{step}]"
        else:
            text += step if inside or not text else f".{step}"
        if isinstance(step, Text):
            text += ": "
    return text.removesuffix(": ")


_IS_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$-]+").fullmatch


def _compare(old: Any, new: Any, path: Steps, found: _FieldChanges) -> None:
    if is_same(old, new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({**old, **new}):
            if key in _FREE_MAPS and _is_map(old.get(key)) and _is_map(new.get(key)) and (old.get(key) or new.get(key)):
                _compare(old.get(key) or {}, new.get(key) or {}, (*path, key), found)
            elif key not in new:
                found.append(_make_change((*path, key), "removed", old[key], ABSENT))
            elif key not in old:
                found.append(_make_change((*path, key), "added", ABSENT, new[key]))
            else:
                _compare(old[key], new[key], (*path, key), found)
    elif isinstance(old, list) and isinstance(new, list):
        _compare_lists(old, new, path, found)
    elif isinstance(old, str) and isinstance(new, str):
        _compare_texts(old, new, path, found)
    elif not _same_quantity(old, new, path, found):
        found.append(_make_change(path, "changed", old, new))


def _is_map(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _make_change(path: Steps, op: FieldOp, old: Any, new: Any, name: str = "") -> ValueChange:
    if not name and path and not isinstance(path[-1], ListStep):
        # The value of `env[TOKEN].value` has the name TOKEN.
        is_value = len(path) > 1 and path[-1] == "value" and isinstance(path[-2], ListStep)
        name = path[-2] if is_value else path[-1]
    return ValueChange(path, op, old, new, str(name))


def _same_quantity(old: Any, new: Any, path: Steps, found: _FieldChanges) -> bool:
    """Return whether two values are notations of one quantity: `1Gi` and `1024Mi`."""
    scalars = not any(isinstance(value, bool) or not isinstance(value, str | int | float) for value in (old, new))
    if not scalars or not found.is_quantity(path):
        return False
    try:
        return parse_quantity(old) == parse_quantity(new)
    except ValueError:
        return False


# -- lists -----------------------------------------------------------------------------------------------------------


def _compare_lists(old: list[Any], new: list[Any], path: Steps, found: _FieldChanges) -> None:
    if all(isinstance(entry, dict) for entry in (*old, *new)):
        for fields in (*KEYS.get(path[-1] if path else "", ()), "name"):
            before, after = (_entries_by_key(entries, fields.split()) for entries in (old, new))
            if before is not None and after is not None:
                _by_key(before, after, path, found)
                return
    scalars = not any(isinstance(entry, dict | list) for entry in (*old, *new))
    if scalars and sorted(map(repr, old)) == sorted(map(repr, new)):
        found.append(_make_change(path, "reordered", old, new))
        return
    _compare_aligned(old, new, path, found)


def _entries_by_key(entries: list[Any], fields: list[str]) -> dict[str, Any] | None:
    """Return the entries by key; None if a key is missing or not unique."""
    found: dict[str, Any] = {}
    for entry in entries:
        parts = [_field_value(entry, field) for field in fields]
        if parts[0] is None:
            return None
        given = (part for part in parts if part not in (None, ""))
        key = "/".join(",".join(map(str, part)) if isinstance(part, list) else str(part) for part in given)
        if key in found:
            return None
        found[key] = entry
    return found


def _field_value(entry: dict[str, Any], field: str) -> Any:
    value: Any = entry
    for step in field.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _by_key(before: dict[str, Any], after: dict[str, Any], path: Steps, found: _FieldChanges) -> None:
    for key, entry in before.items():
        if key not in after:
            found.append(_make_change((*path, ListStep(key)), "removed", entry, ABSENT))
        else:
            _compare(entry, after[key], (*path, ListStep(key)), found)
    for key, entry in after.items():
        if key not in before:
            found.append(_make_change((*path, ListStep(key)), "added", ABSENT, entry))
    was, now = [k for k in before if k in after], [k for k in after if k in before]
    if was != now:
        found.append(_make_change(path, "reordered", was, now))


def _compare_aligned(old: list[Any], new: list[Any], path: Steps, found: _FieldChanges) -> None:
    """Compare entries without keys: align equal ones, and compare the rest by position."""
    by_position = len(old) == len(new)
    blocks = (
        [("replace", 0, len(old), 0, len(new))]
        if by_position
        else bounded_opcodes(_hash_entries(old), _hash_entries(new))
    )
    for op, i, i_end, j, j_end in blocks:
        if op == "equal":
            continue
        pairs = min(i_end - i, j_end - j)
        for k in range(pairs):
            one, other = old[i + k], new[j + k]
            here = (*path, ListStep(j + k))
            if isinstance(one, dict | list) and type(one) is type(other):
                _compare(one, other, here, found)
            elif not is_same(one, other):
                found.append(_make_change(here, "changed", one, other, option_of_word(new, j + k)))
        for k in range(i + pairs, i_end):
            found.append(_make_change((*path, ListStep(k)), "removed", old[k], ABSENT, option_of_word(old, k)))
        for k in range(j + pairs, j_end):
            found.append(_make_change((*path, ListStep(k)), "added", ABSENT, new[k], option_of_word(new, k)))


def bounded_opcodes(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[str, int, int, int, int]]:
    """Return opcodes as `SequenceMatcher.get_opcodes`, in bounded time for long sequences."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    i_end, j_end = len(old) - end, len(new) - end
    if (i_end - start) * (j_end - start) > _MAX_COMPARED:
        middle = [("replace", start, i_end, start, j_end)]
    else:
        matcher = difflib.SequenceMatcher(None, old[start:i_end], new[start:j_end], autojunk=False)
        middle = [(op, i + start, k + start, j + start, m + start) for op, i, k, j, m in matcher.get_opcodes()]
    ends = [("equal", i_end, len(old), j_end, len(new))] if end else []
    return [*([("equal", 0, start, 0, start)] if start else []), *middle, *ends]


def _hash_entries(entries: list[Any]) -> list[str]:
    return [canonical_json(entry) for entry in entries]


def option_of_word(words: Sequence[Any], index: int) -> str:
    """Return the option whose value a command-line word is: `token` for `abc` in `--token abc`."""
    before = words[index - 1] if index else ""
    if isinstance(before, str) and before.startswith("-") and "=" not in before:
        return before.lstrip("-")
    return ""


# -- texts -----------------------------------------------------------------------------------------------------------


def _compare_texts(old: str, new: str, path: Steps, found: _FieldChanges) -> None:
    """Compare texts that hold JSON or `key=value` lines as data, and other long texts line by line."""
    equal = False
    for read, tells_all in _READERS if path else ():
        before, after = read(old), read(new)
        if before is None or type(before) is not type(after):
            continue
        inside = _FieldChanges(_is_no_quantity)
        _compare(before, after, (*path[:-1], Text(path[-1])), inside)
        found += inside
        if inside and tells_all(old, new):
            return
        equal = not inside
        break
    if "\n" in old.rstrip("\n") or "\n" in new.rstrip("\n") or not _same_quantity(old, new, path, found):
        found.append(_make_change(path, "changed", old, new)._replace(notation=equal))


_MAX_DEPTH = 64
"""Maximum depth of JSON in a text that is compared as data."""
_JSON_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|([\[\]{},:])|(\s+)|([^\s\[\]{},:"]+)', re.DOTALL)


def _parse_json(text: str) -> Any:
    """Parse a text as a JSON mapping or list; None if it is neither, or a parser could read it in several ways."""
    if not text.lstrip().startswith(("{", "[")) or _json_depth(text) > _MAX_DEPTH:
        return None
    try:
        return json.loads(
            text,
            object_pairs_hook=_reject_duplicates,
            parse_float=_parse_exact_float,
            parse_constant=_parse_exact_float,
        )
    except ValueError:
        return None


def _json_depth(text: str) -> int:
    depth = most = 0
    for token in _JSON_TOKEN.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[3] or "", 0)
        most = max(most, depth)
    return most


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError on a duplicate key, of which each parser takes another."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate key")
    return found


def _parse_exact_float(text: str) -> float:
    """Raises ValueError on a number that is none, or that a float rounds."""
    value = float(text)
    if abs(value) == float("inf") or Decimal(repr(value)) != Decimal(text):
        raise ValueError(f"not exact: {text}")
    return value


def _json_tells_all(old: str, new: str) -> bool:
    """Return whether two JSON texts that differ in their data differ in nothing else: they are written in one form, or
    differ in single values only."""
    for form in _JSON_FORMS:
        if all(form(json.loads(text)) == text.rstrip("\n") for text in (old, new)):
            return _line_ending(old) == _line_ending(new)
    return all(
        one is not None and other is not None and (one[0] == other[0] or (one[1] != other[1] and one[1] and other[1]))
        for one, other in zip_longest(_json_tokens(old), _json_tokens(new))
    )


def _json_form(**options: Any) -> Callable[[Any], str]:
    return lambda data: json.dumps(data, sort_keys=True, **options)


_JSON_FORMS = tuple(
    _json_form(ensure_ascii=ascii_only, **layout)
    for ascii_only in (False, True)
    for layout in ({"indent": 2}, {"separators": (",", ":")}, {}, {"indent": 4})
)
"""Forms of JSON with sorted keys, in which equal data is equal text: those of avactl first."""


def _line_ending(text: str) -> str:
    return text[len(text.rstrip("\n")) :]


def _json_tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a JSON text as they are written; of values, their data too."""
    for token in _JSON_TOKEN.finditer(text):
        value = token[5] or (token[1] if token[2] is None else None)
        yield token[0], "" if value is None else canonical_json(json.loads(value))


def _parse_properties(text: str) -> dict[str, str] | None:
    """Parse a properties file of `key=value` lines; None if the text is something else."""
    if "\n" not in text:
        return None
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        assigned = _parse_assignment(line)
        if assigned is None or assigned[0] in found:
            return None
        found[assigned[0]] = assigned[1]
    return found or None


def _parse_assignment(line: str) -> tuple[str, str] | None:
    key, equals, value = line.partition("=")
    return (key, value) if equals and re.fullmatch(r"[\w.$/{}-]+", key, re.ASCII) else None


def _properties_tell_all(old: str, new: str) -> bool:
    """Return whether two properties files differ in nothing but values, and keys of one side."""
    before, after = _parse_properties(old) or {}, _parse_properties(new) or {}
    ordered = [key for key in before if key in after] == [key for key in after if key in before]
    return ordered and all(_parse_assignment(line[1:]) for line in _line_changes(old, new))


_READERS: tuple[tuple[Callable[[str], Any], Callable[[str, str], bool]], ...] = (
    (_parse_json, _json_tells_all),
    (_parse_properties, _properties_tell_all),
)
"""Readers of texts, each with the check whether a comparison of their data shows all differences of two texts."""


def changed_lines(old: str, new: str) -> list[str]:
    """Return removed lines with the prefix `-` and added lines with `+`.

    Lines with characters that are not shown are in quotes, all if lines that differ look alike.
    """
    found = _line_changes(old, new)
    removed, added = ({line[1:] for line in found if line[0] == sign} for sign in "-+")
    looks = ({visible_text(line).rstrip() for line in side} for side in (removed - added, added - removed))
    every = not set.isdisjoint(*looks)
    return [f"{line[0]}{json.dumps(line[1:])}" if every or _is_comment(line) else line for line in found]


def _is_comment(line: str) -> bool:
    return line != line.rstrip() or not line.replace("\t", "").isprintable()


def _line_changes(old: str, new: str) -> list[str]:
    before, after = old.split("\n"), new.split("\n")
    found: list[str] = []
    for op, i, i_end, j, j_end in bounded_opcodes(before, after):
        if op != "equal":
            found += [f"-{line}" for line in before[i:i_end]]
            found += [f"+{line}" for line in after[j:j_end]]
    return found
