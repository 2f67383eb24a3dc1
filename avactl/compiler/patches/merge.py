"""Strategic merge and JSON Patch.

Sources: https://github.com/kubernetes/community/blob/main/contributors/devel/sig-api-machinery/strategic-merge-patch.md
with the merge keys of the API server's schema, and RFC 6902.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

from avactl.program import kubernetes_schema
from avactl.program.kubernetes_schema import Schema
from avactl.spec.schema.base import JsonOperation

DIRECTIVE = "$patch"


class PatchError(Exception):
    """A patch that cannot be applied. `path` leads to the place in the patch."""

    def __init__(self, message: str, path: tuple[str | int, ...], hint: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.hint = hint


def strategic_merge(schema: Schema, target: Any, patch: Any, path: tuple[str | int, ...] = ()) -> Any:
    """Return the target with a strategic merge patch. None removes a key; `$patch: delete` an entry, and `$patch:
    replace` keeps nothing of a mapping."""
    schema = kubernetes_schema.resolve_reference(schema)
    if isinstance(patch, dict) and schema["type"] in ("object", "map", "any"):
        directive = patch.get(DIRECTIVE)
        if directive not in (None, "replace"):
            raise PatchError(f"`{DIRECTIVE}: {directive}` is for entries of lists", (*path, DIRECTIVE))
        found = dict(target) if isinstance(target, dict) and directive is None else {}
        for key, value in _with_moved_containers(found, patch).items():
            if key == DIRECTIVE:
                continue
            if value is None:
                found.pop(key, None)
            else:
                inner = kubernetes_schema.child_schema(schema, key)
                found[key] = strategic_merge(inner, found.get(key), value, (*path, key))
        return found
    if isinstance(patch, list) and isinstance(target, list) and "merge" in schema:
        return _list(schema, target, patch, path)
    return without_directives(patch)


def _with_moved_containers(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Move containers of a patch that are sidecars of the pod, as the programs of followers are."""
    given = patch.get("containers")
    if not isinstance(given, list) or not isinstance(target.get("initContainers"), list):
        return patch
    main = {each.get("name") for each in target.get("containers", ())}
    init = {each.get("name") for each in target["initContainers"]} - main
    moved = [each for each in given if isinstance(each, dict) and each.get("name") in init]
    if not moved:
        return patch
    left = [each for each in given if each not in moved]
    found = {**patch, "initContainers": [*(patch.get("initContainers") or ()), *moved], "containers": left}
    return found if left else {key: value for key, value in found.items() if key != "containers"}


def without_directives(value: Any) -> Any:
    """Return a value as it is where nothing was before."""
    if isinstance(value, dict):
        return {key: without_directives(each) for key, each in value.items() if key != DIRECTIVE and each is not None}
    return [without_directives(each) for each in value] if isinstance(value, list) else value


def _list(schema: Schema, target: list[Any], patch: list[Any], path: tuple[str | int, ...]) -> list[Any]:
    key, found = schema["merge"], list(target)
    for index, entry in enumerate(patch):
        at = (*path, index)
        if not key or not isinstance(entry, dict):
            if entry not in found:
                found.append(entry)
            continue
        if key not in entry:
            if entry.get(DIRECTIVE) == "replace":
                found = []
                continue
            raise PatchError(f"the entry has no `{key}`, by which entries of this list are merged", at, f"add `{key}`")
        old = next((each for each in found if each.get(key) == entry[key]), None)
        if entry.get(DIRECTIVE) == "delete":
            if old is None:
                known = ", ".join(f"`{each.get(key)}`" for each in found)
                raise PatchError(f"there is no entry with `{key}: {entry[key]}`", at, f"there are {known}")
            found.remove(old)
        elif old is None:
            found.append(without_directives(entry))
        else:
            # A volume has one source: another one replaces it.
            whole = schema["items"].get("ref", "").endswith(".core.v1.Volume") and not {*entry} - {key} <= {*old}
            new = without_directives(entry) if whole else strategic_merge(schema["items"], old, entry, at)
            found[found.index(old)] = new
    return found


# -- JSON Patch --------------------------------------------------------------------------------------------------------


def json_patched(target: Any, operations: Sequence[JsonOperation]) -> Any:
    """Return the target after the operations. Raises PatchError with the index of the one that fails."""
    from jsonpatch import JsonPatchException, JsonPointerException, apply_patch

    found = copy.deepcopy(target)
    for index, operation in enumerate(operations):
        step = {"op": operation.op, "path": operation.path, "value": copy.deepcopy(operation.value)}
        try:
            found = apply_patch(found, [step], in_place=True)
        except (JsonPatchException, JsonPointerException):  # their texts have the whole object
            message = f"`{operation.op} {operation.path}` does not fit to the object"
            raise PatchError(message, (index, "path"), "the path must exist; `/-` appends to a list") from None
    return found


def changed_paths(old: Any, new: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of the values that differ; entries of lists by their `name`, else the whole list."""
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [each for key in keys for each in changed_paths(old.get(key), new.get(key), (*path, key))]
    if isinstance(old, list) and isinstance(new, list):
        one, other = _entries_by_name(old), _entries_by_name(new)
        if one is not None and other is not None and [*one] != [*other] and {*one} == {*other}:
            return [path]  # another order
        if one is not None and other is not None:
            names = [*one, *(name for name in other if name not in one)]
            return [each for name in names for each in changed_paths(one.get(name), other.get(name), (*path, name))]
    return [path]


def _entries_by_name(entries: list[Any]) -> dict[str, Any] | None:
    found = {str(each["name"]): each for each in entries if isinstance(each, dict) and "name" in each}
    return cast("dict[str, Any]", found) if len(found) == len(entries) else None
