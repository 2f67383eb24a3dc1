"""Field ownership: the sets in `metadata.managedFields`, and the values at their paths.

Source: sigs.k8s.io/structured-merge-diff, `fieldpath`: `f:NAME` is a key of a mapping, `k:{…}` an entry of a list by
its keys, `v:…` an entry of a set by its value, `i:…` one by its position; `.` marks ownership of the element itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
        if _is_our_apply(entry):
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


def own_fields(
    live: Mapping[str, Any], claimed: Collection[Path], released: Collection[Path] = ()
) -> list[dict[str, Any]]:
    """Return `managedFields` in which our apply is the only owner of the claimed fields, and no owner of the released.

    An apply then removes claimed fields that it does not have, and leaves released ones: in one write, because without
    an entry that it replaces an object can be invalid.
    """
    entries: list[dict[str, Any]] = orjson.loads(orjson.dumps(live["metadata"].get("managedFields") or []))
    ours = next((entry for entry in entries if _is_our_apply(entry)), None)
    if ours is None:
        ours = {"manager": FIELD_MANAGER, "operation": "Apply", "apiVersion": live["apiVersion"]}
        ours |= {"fieldsType": "FieldsV1", "fieldsV1": {}}
        entries.append(ours)
    for path in released:
        _remove_path(ours["fieldsV1"], path)
    for path in claimed:
        removed = [
            _remove_path(entry["fieldsV1"], path)
            for entry in entries
            if entry.get("fieldsV1") and entry.get("subresource") != "status"
        ]
        holder = ours["fieldsV1"]
        for step in path:
            below = holder.get(step)
            if below == {}:
                below["."] = {}  # Owned as a whole so far; without the mark, only its new child would be.
            holder = holder.setdefault(step, {})
        for fields in removed:
            _merge_fields(holder, fields or {})
    return [entry for entry in entries if entry.get("fieldsV1")]


def _is_our_apply(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource")


def _remove_path(fields: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """Remove a path and the parents that contain nothing else; return what the set has below it, None if nothing."""
    step, *rest = path
    if step not in fields:
        return None
    if not rest:
        removed: dict[str, Any] = fields.pop(step)
        return removed
    found = _remove_path(fields[step], tuple(rest))
    if found is not None and not fields[step]:
        del fields[step]
    return found


def _merge_fields(into: dict[str, Any], fields: Mapping[str, Any]) -> None:
    for step, below in fields.items():
        _merge_fields(into.setdefault(step, {}), below)


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
