"""Writes the schema of Kubernetes' own kinds, by which patches and raw manifests are checked, from a real API server.

`KUBERNETES=1.36 python -m tools.kubernetes_schema`: with the oldest version that the tests run on, a key that it does
not know is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.controlplane import ControlPlane

OUTPUT = Path(__file__).resolve().parent.parent / "avactl" / "program" / "kubernetes_schema" / "kinds.json"
GROUPS = (
    "api/v1",
    "apis/apps/v1",
    "apis/batch/v1",
    "apis/autoscaling/v2",
    "apis/policy/v1",
    "apis/networking.k8s.io/v1",
    "apis/resource.k8s.io/v1",
    "apis/rbac.authorization.k8s.io/v1",
    "apis/scheduling.k8s.io/v1",
    "apis/storage.k8s.io/v1",
    "apis/admissionregistration.k8s.io/v1",
    "apis/apiextensions.k8s.io/v1",
    "apis/discovery.k8s.io/v1",
    "apis/coordination.k8s.io/v1",
    "apis/node.k8s.io/v1",
)
_PREFIX = "#/components/schemas/"


def _small(schema: dict[str, Any]) -> Any:
    """Return a schema in short form: a definition's name, a type, or a mapping with the keys that avactl reads."""
    for key in ("allOf", "oneOf"):
        if key in schema and len(schema[key]) == 1:
            return _small({**schema, **schema[key][0], key: ()})
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_PREFIX)
        merge = schema.get("x-kubernetes-patch-merge-key")
        return {"ref": name, "key": merge} if merge else {"ref": name}
    if schema.get("format") == "int-or-string" or schema.get("oneOf"):
        return {"type": "text-or-number"}
    kind = schema.get("type")
    if kind == "array":
        found = {"type": "list", "items": _small(schema["items"])}
        if "merge" in schema.get("x-kubernetes-patch-strategy", ""):
            found["merge"] = schema.get("x-kubernetes-patch-merge-key", "")
        # By these, server-side apply merges the list; the key above is that of older patches.
        if schema.get("x-kubernetes-list-type") == "map":
            found["keys"] = schema["x-kubernetes-list-map-keys"]
        elif schema.get("x-kubernetes-list-type") == "set":
            found["keys"] = []
        return found
    if kind == "object" and "additionalProperties" in schema:
        return {"type": "map", "values": _small(schema["additionalProperties"])}
    if "properties" in schema:
        # Nobody but controllers writes the status of an object; conditions have a key of that name.
        left_out = "status" if "x-kubernetes-group-version-kind" in schema else ""
        fields = {key: _small(value) for key, value in sorted(schema["properties"].items()) if key != left_out}
        found = {"type": "object", "fields": fields}
        if schema.get("required"):
            found["required"] = [key for key in schema["required"] if key != left_out]
        return found
    return {"type": {None: "any", "object": "any"}.get(kind, kind)}


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        inner = set().union(*map(_references, value.values())) if value else set()
        return inner | ({value["ref"]} if isinstance(value.get("ref"), str) else set())
    return set().union(*map(_references, value)) if isinstance(value, list) and value else set()


def main() -> None:
    """Write the schema."""
    every: dict[str, Any] = {}
    kinds: dict[str, dict[str, Any]] = {}
    with ControlPlane() as plane, plane.client() as kube:
        for group in GROUPS:
            document = kube.request("GET", f"/openapi/v3/{group}").body
            # Those that can be created at a collection, with or without a namespace.
            paths = {
                operations["post"]["x-kubernetes-group-version-kind"]["kind"]: "{namespace}" in path
                for path, operations in document["paths"].items()
                if "post" in operations and not path.replace("/namespaces/{namespace}", "").count("{")
            }
            for name, schema in document["components"]["schemas"].items():
                every[name] = _small(schema)
                for id_ in schema.get("x-kubernetes-group-version-kind", ()):
                    version = f"{id_['group']}/{id_['version']}".strip("/")
                    if id_["kind"] in paths and group in (f"api/{version}", f"apis/{version}"):
                        kinds[f"{version} {id_['kind']}"] = {"ref": name, "namespaced": paths[id_["kind"]]}
    needed: dict[str, Any] = {}
    pending = [kind["ref"] for kind in kinds.values()]
    while pending:
        name = pending.pop()
        if name not in needed:
            needed[name] = every[name]
            pending += _references(every[name])
    lines = [json.dumps({"kinds": dict(sorted(kinds.items()))}, sort_keys=True)]
    lines += [json.dumps({name: needed[name]}, sort_keys=True) for name in sorted(needed)]
    OUTPUT.write_text("\n".join(lines) + "\n")
    print(f"{len(kinds)} kinds, {len(needed)} definitions, {OUTPUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
