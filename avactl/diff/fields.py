"""Compare two plain values field by field: lists by Kubernetes' merge keys, texts by their parsed content.

Entries of a keyed list are matched at any position. A changed order is reported separately, because it is significant
in `env`, `args` and `initContainers`, and in a pod template always restarts pods.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import orjson

from avactl.diff.model import ABSENT, FieldOp
from avactl.quantity import quantity


class Entry(str):
    """A list step of a path: the entry's key or index."""

    __slots__ = ()


class Text(str):
    """A path step into a text whose content was compared as data."""

    __slots__ = ()


Steps = tuple[str, ...]


class Change(NamedTuple):
    """One difference. `name`: name of the value, by which credentials are recognised."""

    path: Steps
    op: FieldOp
    old: Any = ABSENT
    new: Any = ABSENT
    name: str = ""
    lines: tuple[str, ...] = ()


KEYS = {
    "volumeMounts": ("mountPath",), "ports": ("name", "containerPort protocol", "port protocol"),
    "taints": ("key effect",), "tolerations": ("key value effect",), "subjects": ("kind namespace name",),
    "rules": ("apiGroups resources resourceNames",), "volumeClaimTemplates": ("metadata.name",),
    "matchExpressions": ("key operator",), "topologySpreadConstraints": ("topologyKey",), "hostAliases": ("ip",),
    "items": ("key",), "datasets": ("name mount", "mount", "name"), "gpus": ("gpu",), "tiers": ("medium",),
    "underStores": ("mount",), "under_stores": ("mount",),
}  # fmt: skip
"""Name of a list → fields that form the key of an entry; the first combination unique on both sides is used.
Other lists are keyed by `name`, or by content if names are not unique.
Source: `x-kubernetes-list-map-keys` in the API's OpenAPI document, and the kinds of avactl."""

_MAPS = frozenset(
    {"spec", "metadata", "annotations", "labels", "data", "nodeSelector", "matchLabels", "resources", "requests",
     "limits", "hard", "env"}
)  # fmt: skip
"""Mappings whose entries are independent: adding or removing the whole mapping is reported entry by entry."""
_MOST_COMPARED = 1_000_000
"""Maximum number of pairs of entries compared to align two lists; longer lists are compared by position."""
_QUANTITY_MAPS = frozenset({"requests", "limits", "hard", "capacity", "default", "defaultRequest", "max", "min"})
_QUANTITIES = frozenset(
    {"sizeLimit", "storage", "cpu", "memory", "quota", "size", "volume", "journal", "sharedMemory", "podMaxCpu",
     "podMaxMemory"}
)  # fmt: skip


def differences(old: Any, new: Any, path: Steps = ()) -> list[Change]:
    """Return every difference between two plain values, in path order."""
    found: list[Change] = []
    _compare(old, new, path, found)
    return found


def dotted(path: Steps) -> str:
    """Format a path for people: `spec.containers[train].image`, `data[train.json]: workers`."""
    text = ""
    for step in path:
        inside = text.endswith(": ")
        if isinstance(step, Entry) or not (inside or _PLAIN(step)):
            text += f"[{step}]"
        else:
            text += step if inside or not text else f".{step}"
        if isinstance(step, Text):
            text += ": "
    return text.removesuffix(": ")


_PLAIN = re.compile(r"[A-Za-z0-9_$-]+").fullmatch


def _compare(old: Any, new: Any, path: Steps, found: list[Change]) -> None:
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({**old, **new}):
            if key in _MAPS and _is_map(old.get(key)) and _is_map(new.get(key)) and (old.get(key) or new.get(key)):
                _compare(old.get(key) or {}, new.get(key) or {}, (*path, key), found)
            elif key not in new:
                found.append(_change((*path, key), "removed", old[key], ABSENT))
            elif key not in old:
                found.append(_change((*path, key), "added", ABSENT, new[key]))
            else:
                _compare(old[key], new[key], (*path, key), found)
    elif isinstance(old, list) and isinstance(new, list):
        _lists(old, new, path, found)
    elif isinstance(old, str) and isinstance(new, str):
        _texts(old, new, path, found)
    elif not _same_quantity(old, new, path):
        found.append(_change(path, "changed", old, new))


def _is_map(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _change(path: Steps, op: FieldOp, old: Any, new: Any, name: str = "") -> Change:
    if not name and path and not isinstance(path[-1], Entry):
        # The value of `env[TOKEN].value` has the name TOKEN.
        is_value = len(path) > 1 and path[-1] == "value" and isinstance(path[-2], Entry)
        name = path[-2] if is_value else path[-1]
    return Change(path, op, old, new, str(name))


def _same_quantity(old: Any, new: Any, path: Steps) -> bool:
    """Return whether two notations are the same quantity: `1Gi` and `1024Mi`."""
    if len(path) < 2 or not (path[-1] in _QUANTITIES or path[-2] in _QUANTITY_MAPS):
        return False
    try:
        return quantity(old) == quantity(new)
    except ValueError:
        return False


# -- lists -----------------------------------------------------------------------------------------------------------


def _lists(old: list[Any], new: list[Any], path: Steps, found: list[Change]) -> None:
    if all(isinstance(entry, dict) for entry in (*old, *new)):
        for fields in (*KEYS.get(path[-1] if path else "", ()), "name"):
            before, after = (_keyed(entries, fields.split()) for entries in (old, new))
            if before is not None and after is not None:
                _by_key(before, after, path, found)
                return
    scalars = not any(isinstance(entry, dict | list) for entry in (*old, *new))
    if scalars and sorted(map(repr, old)) == sorted(map(repr, new)):
        found.append(_change(path, "reordered", old, new))
        return
    _aligned(old, new, path, found)


def _keyed(entries: list[Any], fields: list[str]) -> dict[str, Any] | None:
    """Return the entries by key; None if a key is missing or not unique."""
    found: dict[str, Any] = {}
    for entry in entries:
        parts = [_field(entry, field) for field in fields]
        if parts[0] is None:
            return None
        given = (part for part in parts if part not in (None, ""))
        key = "/".join(",".join(map(str, part)) if isinstance(part, list) else str(part) for part in given)
        if key in found:
            return None
        found[key] = entry
    return found


def _field(entry: dict[str, Any], field: str) -> Any:
    value: Any = entry
    for step in field.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _by_key(before: dict[str, Any], after: dict[str, Any], path: Steps, found: list[Change]) -> None:
    for key, entry in before.items():
        if key not in after:
            found.append(_change((*path, Entry(key)), "removed", entry, ABSENT))
        else:
            _compare(entry, after[key], (*path, Entry(key)), found)
    for key, entry in after.items():
        if key not in before:
            found.append(_change((*path, Entry(key)), "added", ABSENT, entry))
    was, now = [k for k in before if k in after], [k for k in after if k in before]
    if was != now:
        found.append(_change(path, "reordered", was, now))


def _aligned(old: list[Any], new: list[Any], path: Steps, found: list[Change]) -> None:
    """Compare entries without keys: align equal ones, and compare the rest by position."""
    same = len(old) == len(new)
    blocks = [("replace", 0, len(old), 0, len(new))] if same else _opcodes(_hashable(old), _hashable(new))
    for op, i, i_end, j, j_end in blocks:
        if op == "equal":
            continue
        pairs = min(i_end - i, j_end - j)
        for k in range(pairs):
            one, other = old[i + k], new[j + k]
            here = (*path, Entry(j + k))
            if isinstance(one, dict | list) and type(one) is type(other):
                _compare(one, other, here, found)
            elif one != other:
                found.append(_change(here, "changed", one, other, option(new, j + k)))
        for k in range(i + pairs, i_end):
            found.append(_change((*path, Entry(k)), "removed", old[k], ABSENT, option(old, k)))
        for k in range(j + pairs, j_end):
            found.append(_change((*path, Entry(k)), "added", ABSENT, new[k], option(new, k)))


def _opcodes(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[str, int, int, int, int]]:
    """Return opcodes as `SequenceMatcher.get_opcodes`, in bounded time for long sequences."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    i_end, j_end = len(old) - end, len(new) - end
    if (i_end - start) * (j_end - start) > _MOST_COMPARED:
        return [("replace", start, i_end, start, j_end)]
    matcher = difflib.SequenceMatcher(None, old[start:i_end], new[start:j_end], autojunk=False)
    return [(op, i + start, k + start, j + start, m + start) for op, i, k, j, m in matcher.get_opcodes()]


def _hashable(entries: list[Any]) -> list[bytes]:
    return [orjson.dumps(entry, option=orjson.OPT_SORT_KEYS) for entry in entries]


def option(words: Sequence[Any], index: int) -> str:
    """Return the option whose value a command-line word is: `token` for `abc` in `--token abc`."""
    before = words[index - 1] if index else ""
    if isinstance(before, str) and before.startswith("-") and "=" not in before:
        return before.lstrip("-")
    return ""


# -- texts -----------------------------------------------------------------------------------------------------------


def _texts(old: str, new: str, path: Steps, found: list[Change]) -> None:
    """Compare texts that hold JSON or `key=value` lines as data, and other long texts line by line."""
    readers: tuple[Callable[[str], Any], ...] = (_json, _properties)
    for read in readers if path else ():
        before, after = read(old), read(new)
        if before is not None and after is not None and before != after:
            _compare(before, after, (*path[:-1], Text(path[-1])), found)
            return
    if "\n" in old.rstrip("\n") or "\n" in new.rstrip("\n"):
        found.append(_change(path, "changed", old, new)._replace(lines=tuple(changed_lines(old, new))))
    elif not _same_quantity(old, new, path):
        found.append(_change(path, "changed", old, new))


def _json(text: str) -> Any:
    """Parse a text as a JSON mapping or list; None if it is neither."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _properties(text: str) -> dict[str, str] | None:
    """Parse a properties file of `key=value` lines; None if the text is something else."""
    if "\n" not in text:
        return None
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals or key in found or not re.fullmatch(r"[\w.$/{}-]+", key):
            return None
        found[key] = value.strip()
    return found or None


def changed_lines(old: str, new: str) -> list[str]:
    """Return removed lines with the prefix `-` and added lines with `+`."""
    before, after = old.splitlines(), new.splitlines()
    found: list[str] = []
    for op, i, i_end, j, j_end in _opcodes(before, after):
        if op != "equal":
            found += [f"-{line}" for line in before[i:i_end]]
            found += [f"+{line}" for line in after[j:j_end]]
    return found
