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
