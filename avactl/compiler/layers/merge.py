"""Merge of partial values, and the origin of each merged value.

`merged` is the fast path that every spec takes; `trace` finds the origin of one value by the same rules.

Rules: mappings merge key by key. Lists in which every entry is a mapping with a `name` of its own merge by name; other
lists are replaced. `null` removes a value of a lower layer, and `$patch: delete` an entry of a named list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from avactl.spec.documents.document import Path

DIRECTIVE = "$patch"


class LayerPart(NamedTuple):
    """A value of one layer that contributes to a merged value."""

    layer: int
    """Index of the layer; higher ones win."""
    path: Path
    """Path of the value in the layer's document."""
    value: Any


def merge_values(lower: Any, upper: Any) -> Any:
    """Return the merged value of two layers; it shares unchanged values with them."""
    if isinstance(lower, dict):
        if not isinstance(upper, dict):
            return upper
        result = dict(lower)
        for key, value in upper.items():
            if key not in result:
                result[key] = value
            elif value is None:
                del result[key]
            else:
                below = result[key]
                result[key] = merge_values(below, value) if isinstance(below, dict | list) else value
        return result
    return _merged_entries(lower, upper) if _is_mergeable(lower, upper) else upper


def _merged_entries(lower: list[Any], upper: list[Any]) -> list[Any]:
    found = {entry["name"]: entry for entry in lower}
    for entry in upper:
        name = entry["name"]
        if entry.get(DIRECTIVE) == "delete" and name in found:
            del found[name]
        else:
            found[name] = merge_values(found[name], entry) if name in found else entry
    return list(found.values())


def trace_parts(parts: Sequence[LayerPart], path: Path) -> tuple[Sequence[LayerPart], Path]:
    """Return the parts of the value at a merged path; if it does not exist, of its nearest parent, and the rest."""
    for depth, step in enumerate(path):
        live = _step_parts(parts, step)
        if not live:
            return parts, path[depth:]
        parts = live
    return parts, ()


def removing_part(parts: Sequence[LayerPart], key: str | int) -> LayerPart | None:
    """Return the part that removes a key of a merged mapping, if one does."""
    found: LayerPart | None = None
    for part in parts:
        if isinstance(part.value, dict) and key in part.value:
            found = part if part.value[key] is None else None
    return None if found is None else LayerPart(found.layer, (*found.path, key), None)


def _step_parts(parts: Sequence[LayerPart], step: str | int) -> list[LayerPart]:
    value = parts[-1].value
    if isinstance(value, dict):
        return _child_parts(parts, step)
    if not isinstance(value, list) or not isinstance(step, int):
        return []
    if len(parts) == 1:
        inside = -len(value) <= step < len(value)
        return [LayerPart(parts[0].layer, (*parts[0].path, step), value[step])] if inside else []
    entries = _entry_parts(parts)
    return entries[step] if -len(entries) <= step < len(entries) else []


def _child_parts(parts: Sequence[LayerPart], key: str | int) -> list[LayerPart]:
    """Return the parts of a mapping's value that are not replaced or removed by a higher layer."""
    found: list[LayerPart] = []
    for part in parts:
        if key not in part.value:
            continue
        value = part.value[key]
        if value is None and found:
            found = []
            continue
        if found and not _is_mergeable(found[-1].value, value):
            found = []
        found.append(LayerPart(part.layer, (*part.path, key), value))
    return found


def _entry_parts(parts: Sequence[LayerPart]) -> list[list[LayerPart]]:
    """Return the parts of each entry of named lists: in the order of the lowest layer, new entries last."""
    found: dict[str, list[LayerPart]] = {}
    for part in parts:
        for index, entry in enumerate(part.value):
            name = entry["name"]
            if entry.get(DIRECTIVE) == "delete" and name in found:
                del found[name]
            else:
                found.setdefault(name, []).append(LayerPart(part.layer, (*part.path, index), entry))
    return list(found.values())


def _is_mergeable(lower: Any, upper: Any) -> bool:
    if isinstance(lower, dict):
        return isinstance(upper, dict)
    return isinstance(lower, list) and isinstance(upper, list) and _is_named(lower) and _is_named(upper)


def _is_named(entries: list[Any]) -> bool:
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    return bool(names) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
