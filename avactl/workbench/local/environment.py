"""Environment of a container, resolved as the kubelet does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from avactl.base.variable_references import expand_references
from avactl.workbench.local.errors import LocalRunError

Body = dict[str, Any]
_KEYED_FIELD = re.compile(r"metadata\.(annotations|labels)\['([^']+)'\]")


def resolve(
    container: Body,
    pod: str,
    fields: Body,
    config_maps: Mapping[str, Mapping[str, str]],
    caller: Mapping[str, str],
) -> dict[str, str]:
    """Return a container's variables.

    `fields`: metadata, status and spec of the pod. Secrets are taken from variables of the same name of the caller.
    Raises LocalRunError for a value that does not exist on this machine.
    """
    result: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        data = config_maps.get(source.get("configMapRef", {}).get("name", ""), {})
        result |= {f"{source.get('prefix', '')}{key}": value for key, value in data.items()}
    for entry in container.get("env", ()):
        name = entry["name"]
        value = _entry_value(entry, pod, fields, config_maps, caller)
        if value is not None:
            result[name] = expand_references(value, result) if "value" in entry else value
    return result


def _entry_value(
    entry: Body, pod: str, fields: Body, config_maps: Mapping[str, Mapping[str, str]], caller: Mapping[str, str]
) -> str | None:
    name, source = entry["name"], entry.get("valueFrom")
    if source is None:
        return str(entry.get("value", ""))
    if "fieldRef" in source:
        return _field_value(source["fieldRef"]["fieldPath"], fields)
    if "configMapKeyRef" in source:
        wanted = source["configMapKeyRef"]
        found = config_maps.get(wanted["name"], {}).get(wanted["key"])
        if found is None and not wanted.get("optional"):
            message = f"{pod}: {name} is in the ConfigMap {wanted['name']}, which the job does not have"
            raise LocalRunError(message, f"write it in `env` of the job: `{name}: VALUE`")
        return found
    if "secretKeyRef" in source:
        wanted = source["secretKeyRef"]
        found = caller.get(name)
        if found is None and not wanted.get("optional"):
            message = f"{pod}: {name} is in the cluster's Secret {wanted['name']} (key {wanted['key']})"
            raise LocalRunError(message, f"set it for this run: `export {name}=…`")
        return found
    raise LocalRunError(f"{pod}: {name} is from {', '.join(source)}, which exists only in a cluster")


def _field_value(path: str, fields: Body) -> str:
    """Return a field of the pod; "" if it is not set, like the kubelet."""
    keyed = _KEYED_FIELD.fullmatch(path)
    if keyed:
        return str(fields["metadata"].get(keyed[1], {}).get(keyed[2], ""))
    value: Any = fields
    for key in path.split("."):
        value = value.get(key, {}) if isinstance(value, dict) else {}
    return value if isinstance(value, str) else ""
