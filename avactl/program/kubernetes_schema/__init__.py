"""The schema of Kubernetes' own kinds, and what an object violates of it.

Source: /openapi/v3 of the API server in tools/controlplane, in a short form; `python -m tools.kubernetes_schema` writes
it. Kinds of operators (CustomResourceDefinitions) are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import orjson

from avactl.base.quantity import parse_quantity
from avactl.diagnostics.suggest import closest_word
from avactl.program.manifest import templates_of

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]
ANY: Schema = {"type": "any"}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "list": (list,),
    "map": (dict,),
    "object": (dict,),
    "text-or-number": (str, int, float),
}
_QUANTITY_TYPE = "io.k8s.apimachinery.pkg.api.resource.Quantity"
KEY_DEFAULTS = {"protocol": "TCP"}
"""Keys of list entries that the API server defaults before it compares."""
_COUNT_FIELDS = ("replicas", "minReplicas", "maxReplicas", "parallelism", "completions")
_MAX_PODS = 100_000
"""Largest number of pods of one object, which `avactl plan` simulates: as in the kinds."""
_TYPE_WORDS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "list": "a list",
    "map": "a mapping",
    "object": "a mapping",
    "text-or-number": "a string or a number",
}


class Violation(NamedTuple):
    """A value that the schema does not allow."""

    path: Path
    message: str
    hint: str = ""
    at_key: bool = False
    """True if the key itself is wrong, not its value."""


@cache
def _load_definitions() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in files(__name__).joinpath("kinds.json").read_bytes().splitlines():
        found.update(orjson.loads(line))
    return found


def find(api_version: str, kind: str) -> Schema | None:
    """Return the schema of a kind; None if it is not Kubernetes' own."""
    entry = _load_definitions()["kinds"].get(f"{api_version} {kind}")
    return None if entry is None else resolve_reference(entry)


def is_namespaced(api_version: str, kind: str) -> bool | None:
    """Return True if objects of a kind are in namespaces; None if it is unknown."""
    entry = _load_definitions()["kinds"].get(f"{api_version} {kind}")
    return None if entry is None else bool(entry["namespaced"])


def api_versions(kind: str) -> list[str]:
    """Return the API versions with a kind of that name."""
    return [name.partition(" ")[0] for name in _load_definitions()["kinds"] if name.partition(" ")[2] == kind]


def resolve_reference(schema: Schema) -> Schema:
    """Return the definition that a schema refers to."""
    while "ref" in schema:
        schema = _load_definitions()[schema["ref"]]
    return schema


def child_schema(schema: Schema, step: str | int) -> Schema:
    """Return the schema of a key or entry."""
    schema = resolve_reference(schema)
    if schema["type"] == "list":
        return resolve_reference(schema["items"])
    if schema["type"] == "map":
        return resolve_reference(schema["values"])
    return resolve_reference(schema.get("fields", {}).get(step, ANY))


def is_quantity(body: Mapping[str, Any], path: Sequence[str | int]) -> bool:
    """Return whether the value at a path of an object is a quantity; False for kinds that are not Kubernetes' own,
    whose values the API server does not normalise."""
    schema = find(str(body.get("apiVersion")), str(body.get("kind")))
    if schema is None:
        return False
    for step in path:
        schema = child_schema(schema, step)
    return schema is _load_definitions().get(_QUANTITY_TYPE)


def duplicate_violations(body: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield the list entries of an object with the keys of an earlier one, which no server-side apply accepts.

    Of kinds that are not Kubernetes' own, only the pods are known.
    """
    schema = find(str(body.get("apiVersion")), str(body.get("kind")))
    if schema is not None:
        yield from _duplicates(schema, body, ())
        return
    pod = child_schema(_load_definitions()["kinds"]["v1 PodTemplate"], "template")
    for path, template in templates_of(dict(body)):
        yield from _duplicates(pod, template, path)


def _duplicates(schema: Schema, value: Any, path: Path) -> Iterator[Violation]:
    if isinstance(value, dict):
        for key, entry in value.items():
            if isinstance(entry, dict | list) and entry:
                yield from _duplicates(child_schema(schema, key), entry, (*path, key))
    elif isinstance(value, list):
        keys: list[str] | None = resolve_reference(schema).get("keys")
        if keys is not None and len(value) > 1:
            yield from _duplicate_entries(value, keys, path)
        for index, entry in enumerate(value):
            if isinstance(entry, dict | list):
                yield from _duplicates(child_schema(schema, index), entry, (*path, index))


def _duplicate_entries(entries: Sequence[Any], keys: Sequence[str], path: Path) -> Iterator[Violation]:
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if not keys:
            parts = [entry]
        else:
            parts = [entry.get(key) or KEY_DEFAULTS.get(key) for key in keys] if isinstance(entry, dict) else []
        identity = "/".join(map(str, parts))
        if not parts or None in parts or isinstance(parts[0], dict | list):
            continue  # the schema says that it is missing
        if identity in seen:
            yield Violation((*path, index, *keys[:1]), f"`{identity[:60]}` is listed twice", "remove one of them")
        seen.add(identity)


_HOLDER_KEYS = ("jobTemplate", "template", "spec")


def _holder_path(schema: Schema, key: str) -> tuple[str, ...]:
    """Return where below a mapping a key of pods belongs, such as `template.spec` of a Deployment; empty if nowhere."""
    for step in _HOLDER_KEYS:
        inner = child_schema(schema, step) if step in schema["fields"] else ANY
        if inner["type"] == "object":
            if key in inner["fields"]:
                return (step,)
            if rest := _holder_path(inner, key):
                return (step, *rest)
    return ()


def schema_violations(schema: Schema, value: Any, path: Path = ()) -> Iterator[Violation]:
    """Yield what an object violates: unknown keys, missing keys, empty entries, wrong types and amounts."""
    amount = schema.get("ref") == _QUANTITY_TYPE
    schema = resolve_reference(schema)
    kind = schema["type"]
    if kind == "any" or value is None:
        return
    wrong = isinstance(value, bool) != (kind == "boolean") or not isinstance(value, _TYPES[kind])
    if wrong:
        hint = f'quote it: `"{value}"`' if kind == "string" and isinstance(value, int | float) else ""
        if kind == "list" and not isinstance(value, dict | list):
            hint = f"write a list: `[{str(value)[:60]}]`"
        yield Violation(path, f"expected {_TYPE_WORDS[kind]}, got `{str(value)[:60]}`", hint)
    elif amount:
        try:
            parse_quantity(value)
        except ValueError:
            yield Violation(path, f"`{str(value)[:60]}` is not a quantity", "write an amount such as `500m` or `2Gi`")
    elif kind == "integer":
        if path[-1:] and path[-1] in _COUNT_FIELDS and not 0 <= value <= _MAX_PODS:
            yield Violation(path, f"{str(value)[:30]} pods", f"write a number from 0 to {_MAX_PODS:,}")
    elif kind == "list":
        for index, entry in enumerate(value):
            if entry is None and resolve_reference(schema["items"])["type"] != "any":
                yield Violation((*path, index), "the entry is empty", "remove it")
            yield from schema_violations(schema["items"], entry, (*path, index))
    elif kind == "map":
        for key, entry in value.items():
            yield from schema_violations(schema["values"], entry, (*path, key))
    elif kind == "object":
        fields = schema["fields"]
        for key, entry in value.items():
            if key in fields:
                yield from schema_violations(fields[key], entry, (*path, key))
            elif not (key == "status" and not path):
                near = closest_word(str(key), fields)
                place = _holder_path(schema, key)
                hint = f"it belongs to `{'.'.join(place)}`" if place else "`kubectl explain` shows the keys"
                hint = f"did you mean `{near}`?" if near else hint
                yield Violation((*path, key), f"unknown key `{key}`", hint, at_key=True)
        for key in schema.get("required", ()):
            if value.get(key) is None:
                yield Violation(path, f"`{key}` is missing", f"add `{key}: …`")
        # The schema calls `spec` optional even where keys in it are required.
        optional = "spec" in fields and "spec" not in schema.get("required", ())
        if optional and value.get("spec") is None and resolve_reference(fields["spec"]).get("required"):
            yield Violation(path, "`spec` is missing", "add `spec: …`")
