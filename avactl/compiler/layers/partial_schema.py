"""JSON Schema of partial specs: templates, overlays and the defaults of a kind."""

from __future__ import annotations

import copy
from typing import Any

from avactl.compiler.layers.recognition import DEFAULTS
from avactl.program import registry
from avactl.spec.schema.base import API_VERSION

Schema = dict[str, Any]


_INHERITANCE_KEYS = {
    "template": {"type": "boolean", "description": "A template: compiled to nothing, for others to extend."},
    "extends": {"type": "string", "description": "Template of the same kind, of the team or the platform."},
}


def partial_name(kind: str) -> str:
    """File name of the schema of a kind's partial specs: `trainingjob.partial.schema.json`."""
    return f"{kind.lower()}.partial.schema.json"


def partial_schema(name: str, whole: Schema) -> Schema:
    """Return the schema of the keys that a template, an overlay or an entry of defaults may have."""
    properties = copy.deepcopy(whole["properties"])
    metadata = properties["metadata"]["allOf"][0]
    schema = {
        **{key: value for key, value in copy.deepcopy(whole).items() if key.startswith("$")},
        "$id": partial_name(name),
        "title": f"Part of a {name}",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **properties,
            "metadata": metadata,
            **(_INHERITANCE_KEYS if name in registry.workload_kinds() else {}),
        },
    }
    _relax_schema(schema)
    return schema


def _relax_schema(node: Any) -> None:
    """Require no key, and allow `null` and `$patch` as in overlays."""
    if isinstance(node, list):
        for each in node:
            _relax_schema(each)
    if not isinstance(node, dict):
        return
    properties = node.get("properties")
    if isinstance(properties, dict) and "$ref" not in properties:
        node.pop("required", None)
        node.pop("minProperties", None)
        node.pop("dependentRequired", None)
        for key in ("oneOf", "anyOf"):
            if all(branch.keys() == {"required"} for branch in node.get(key, ())):
                node.pop(key, None)  # one of several keys, which the other part may have
        for key, value in properties.items():
            _relax_schema(value)
            if "const" not in value:
                properties[key] = {"anyOf": [value, {"type": "null"}]}
        if "name" in properties:
            properties["$patch"] = {"const": "delete", "description": "Remove the entry of this name from the list."}
    for key, value in node.items():
        if key not in ("properties", "const", "enum", "default", "examples"):
            _relax_schema(value)


def defaults_schema() -> Schema:
    """Return the schema of `kind: Defaults`."""
    keys = ("metadata", "spec", "patches")
    team = {"type": "string", "description": "Team whose specs get them. Default: the platform's."}
    parts = {
        name: {
            "type": "object",
            "description": f"Defaults of each {name}.",
            "additionalProperties": False,
            "properties": {key: {"$ref": f"{partial_name(name)}#/properties/{key}"} for key in keys},
        }
        for name in registry.kind_names()
    }
    return {
        "type": "object",
        "title": DEFAULTS,
        "description": "Values for the specs of the platform or of one team that do not set them.",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "spec"],
        "properties": {
            "apiVersion": {"const": API_VERSION, "description": "API version of the spec."},
            "kind": {"const": DEFAULTS, "description": "The kind."},
            "metadata": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"team": team},
            },
            "spec": {
                "type": "object",
                "description": "Partial specs by kind.",
                "additionalProperties": False,
                "properties": parts,
            },
        },
    }


def overlay_schema() -> Schema:
    """Return the schema of overlays of all kinds."""
    found = [
        {
            "if": {"properties": {"kind": {"const": name}}, "required": ["kind"]},
            "then": {
                "$ref": partial_name(name),
                "required": ["metadata"],
                # An overlay inherits nothing, and is no template.
                "properties": {"metadata": {"required": ["name"]}, "template": False, "extends": False},
            },
        }
        for name in registry.kind_names()
    ]
    defaults = {
        "if": {"properties": {"kind": {"const": DEFAULTS}}},
        "then": {"$ref": f"{DEFAULTS.lower()}.schema.json"},
    }
    return {
        "title": "avactl overlay",
        "type": "object",
        "required": ["apiVersion", "kind"],  # those of the platform's defaults have no metadata
        "properties": {"apiVersion": {"const": API_VERSION}, "kind": {"enum": [*registry.kind_names(), DEFAULTS]}},
        "allOf": [*found, defaults],
    }


def inheriting_schema(whole: Schema, name: str) -> Schema:
    """Return the schema of a workload kind: its specs may be templates or extend one, and are partial then."""
    condition = [{"required": ["extends"]}, {"required": ["template"], "properties": {"template": {"const": True}}}]
    part = {
        "$ref": partial_name(name),
        "required": ["apiVersion", "kind", "metadata"],
        "properties": {"metadata": {"required": ["name"]}},
    }
    own = {key: value for key, value in whole.items() if key.startswith("$")}
    body = {key: value for key, value in whole.items() if not key.startswith("$")}
    body["properties"] = {**body["properties"], "template": {"const": False, "description": "Not a template."}}
    return {**own, "title": body["title"], "if": {"anyOf": condition}, "then": part, "else": body}
