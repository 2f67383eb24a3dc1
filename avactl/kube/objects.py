"""Objects of the API server as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def object_key(item: Mapping[str, Any]) -> str:
    """Return `namespace/name`, or the name of an object without a namespace."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    name: str = metadata["name"]
    return f"{namespace}/{name}" if namespace else name


def object_reference(api_version: str, kind: str, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the reference to an object by its metadata, as Events have it."""
    known = {key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)}
    return {"apiVersion": api_version, "kind": kind, **known}
