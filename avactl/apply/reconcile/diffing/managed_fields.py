"""Field ownership: the sets in `metadata.managedFields`, and the values at their paths.

Source: sigs.k8s.io/structured-merge-diff, `fieldpath`: `f:NAME` is a key of a mapping, `k:{…}` an entry of a list by
its keys, `v:…` an entry of a set by its value, `i:…` one by its position; `.` marks ownership of the element itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from avactl.kube.object_client import FIELD_MANAGER

Fields = Mapping[str, Any]
Path = tuple[str, ...]
"""Steps in the notation of field sets: `("f:spec", "f:replicas")`."""

ABSENT: Any = object()


class FieldOwner(NamedTuple):
    """An entry of `managedFields`."""

    manager: str
    subresource: str
    fields: Fields


def field_owners(live: Mapping[str, Any]) -> list[FieldOwner]:
    """Return all managers of an object's fields."""
    return [
        FieldOwner(entry.get("manager", ""), entry.get("subresource", ""), entry["fieldsV1"] or {})
        for entry in live["metadata"].get("managedFields") or ()
        if entry.get("fieldsV1") is not None
    ]


def applied_fields(live: Mapping[str, Any]) -> Fields | None:
    """Return the fields we own by apply; None if there are none, or only in another API version."""
    for entry in live["metadata"].get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            return entry.get("fieldsV1") if entry.get("apiVersion") == live["apiVersion"] else None
    return None


def leaf_paths(fields: Fields, before: Path = ()) -> Iterator[Path]:
    """Yield the paths of a set that have no children."""
    for step, below in fields.items():
        if step == ".":
            continue
        if below and not below.keys() <= {"."}:
            yield from leaf_paths(below, (*before, step))
        else:
            yield (*before, step)


def has_path(fields: Fields | None, path: Path) -> bool:
    """Return whether a set contains the path, one of its children, or an ancestor owned as a whole."""
    for step in path:
        if fields is None:
            return False
        if not fields:
            return True  # owned as a whole
        fields = fields.get(step)
    return fields is not None


def find(value: Any, path: Path) -> Any:
    """Return the value at a path; ABSENT if there is none."""
    for step in path:
        _, value = child_at(value, step)
        if value is ABSENT:
            return ABSENT
    return value


def child_at(value: Any, step: str) -> tuple[str | int, Any]:
    """Return the key or index of one step, and the value there."""
    kind, text = step[:2], step[2:]
    if kind == "f:":
        return text, value.get(text, ABSENT) if isinstance(value, dict) else ABSENT
    if isinstance(value, list):
        wanted = orjson.loads(text)
        for index, entry in enumerate(value):
            if kind == "k:":
                if isinstance(entry, dict) and all(
                    entry.get(key, _KEY_DEFAULTS.get(key)) == want for key, want in wanted.items()
                ):
                    return index, entry
            elif entry == wanted if kind == "v:" else index == wanted:
                return index, entry
    return text, ABSENT


_KEY_DEFAULTS = {"protocol": "TCP"}
"""List keys that the API server defaults before it compares."""


def json_pointer(value: Any, path: Path) -> str:
    """Return the JSON pointer (RFC 6901) of a path in an object that has it."""
    out = ""
    for step in path:
        key, value = child_at(value, step)
        out += "/" + str(key).replace("~", "~0").replace("/", "~1")
    return out


def list_positions(value: Any, path: Path) -> tuple[int, ...]:
    """Return the list indices along a path, so that the last entries can be removed first."""
    found: list[int] = []
    for step in path:
        key, value = child_at(value, step)
        if isinstance(key, int):
            found.append(key)
    return tuple(found)


def format_path(path: Path) -> str:
    """Format a path for people: `spec.template.spec.containers[train].image`."""
    text = ""
    for step in path:
        kind, name = step[:2], step[2:]
        if kind == "f:":
            text += f".{name}" if text and _is_plain(name) else (name if _is_plain(name) else f"[{name}]")
        elif kind == "k:":
            text += f"[{','.join(str(part) for part in orjson.loads(name).values())}]"
        else:
            text += f"[{name}]"
    return text


def _is_plain(name: str) -> bool:
    return name.replace("_", "").replace("-", "").isalnum()
