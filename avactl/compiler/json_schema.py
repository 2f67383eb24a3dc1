"""JSON Schema (2020-12) of the kinds, for editors. Generated from the models; `schemas/` contains the current ones."""

from __future__ import annotations

from typing import Any

import orjson

from avactl.compiler.config import RepositoryConfig
from avactl.compiler.layers.partial_schema import (
    defaults_schema,
    inheriting_schema,
    overlay_schema,
    partial_name,
    partial_schema,
)
from avactl.compiler.layers.recognition import DEFAULTS
from avactl.policy.settings import SchemaFile
from avactl.program import registry
from avactl.spec.schema.base import API_VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ALL = "avactl.schema.json"


def file_name(kind: str) -> str:
    """File name of a kind's schema: `trainingjob.schema.json`."""
    return f"{kind.lower()}.schema.json"


def kind_schema(name: str) -> dict[str, Any]:
    """Return the schema of one kind's documents."""
    model = registry.get_model(name)
    schema = model.model_json_schema(by_alias=True)
    properties = schema["properties"]
    properties["apiVersion"] = {"const": API_VERSION, "description": "API version of the spec."}
    properties["kind"] = {"const": name, "description": "The kind."}
    required = {"apiVersion", "kind", "metadata", *schema.get("required", [])}
    schema["required"] = sorted(required)
    properties["metadata"] = {"allOf": [properties["metadata"], _metadata_rule(model.SCOPE)]}
    _close(schema)
    return {"$schema": DIALECT, "$id": file_name(name), **schema}


def _close(node: Any) -> None:
    """Close mappings whose keys have a pattern: pydantic emits the pattern but leaves the mapping open."""
    if isinstance(node, dict):
        if "patternProperties" in node:
            node.setdefault("additionalProperties", False)
        for value in node.values():
            _close(value)
    elif isinstance(node, list):
        for value in node:
            _close(value)


def _metadata_rule(scope: str) -> dict[str, Any]:
    """Add the scope's rules: team kinds require `team`; platform kinds have neither team nor namespace."""
    if scope == "team":
        return {"required": ["team"], "properties": {"team": {"type": "string"}}}
    if scope == "platform":
        return {"properties": {key: {"type": "null"} for key in ("team", "namespace", "objectName")}}
    return {"properties": {"objectName": {"type": "null"}}}


def schema_files() -> dict[str, str]:
    """Return all schema files by name: of each kind, whole and in part, of all kinds, of overlays, defaults and
    `avactl.yaml`, and of JSON Schema policies."""
    found = {}
    for name in registry.kind_names():
        whole = kind_schema(name)
        found[file_name(name)] = inheriting_schema(whole, name) if name in registry.workload_kinds() else whole
        found[partial_name(name)] = partial_schema(name, whole)
    for name, schema in (("defaults.schema.json", defaults_schema()), ("overlay.schema.json", overlay_schema())):
        found[name] = {"$schema": DIALECT, "$id": name, **schema}
    names = [*registry.kind_names(), DEFAULTS]
    conditions = {name: {"properties": {"kind": {"const": name}}, "required": ["kind"]} for name in names}
    found[ALL] = {
        "$schema": DIALECT,
        "$id": ALL,
        "title": "avactl spec",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {"apiVersion": {"const": API_VERSION}, "kind": {"enum": names}},
        "allOf": [{"if": condition, "then": {"$ref": file_name(name)}} for name, condition in conditions.items()],
    }
    for name, model in (("config.schema.json", RepositoryConfig), ("policy.schema.json", SchemaFile)):
        found[name] = {"$schema": DIALECT, "$id": name, **model.model_json_schema(by_alias=True)}
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return {name: orjson.dumps(schema, option=options).decode() for name, schema in sorted(found.items())}
