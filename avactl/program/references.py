"""ConfigMaps and PersistentVolumeClaims that pods name, in specs and in objects alike: both have Kubernetes' keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from avactl.spec.documents.document import Path

CLAIM, CONFIG_MAP = "PersistentVolumeClaim", "ConfigMap"


class PodReference(NamedTuple):
    """One use of an object by a pod."""

    kind: str
    """`ConfigMap` or `PersistentVolumeClaim`."""
    name: str
    path: Path
    """Path of the name."""
    keys: tuple[tuple[str, Path], ...] = ()
    """Keys of the ConfigMap that the pod uses, with their paths."""
    optional: bool = False
    """True if the pod starts without it."""


def find_references(value: Any, path: Path = ()) -> Iterator[PodReference]:
    """Yield the ConfigMaps and claims that a value names."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            if isinstance(each, dict | list):
                yield from find_references(each, (*path, index))
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(inner, dict | list):
                continue
            at = (*path, key)
            match key, inner:
                case "persistentVolumeClaim", {"claimName": str(name)}:
                    yield PodReference(CLAIM, name, (*at, "claimName"))
                case "configMap" | "configMapRef" | "configMapKeyRef", {"name": str(name)} if isinstance(inner, dict):
                    optional = inner.get("optional") is True
                    yield PodReference(CONFIG_MAP, name, (*at, "name"), tuple(_key_references(inner, at)), optional)
                case _:
                    yield from find_references(inner, at)


def _key_references(source: dict[str, Any], path: Path) -> Iterator[tuple[str, Path]]:
    if isinstance(source.get("key"), str):
        yield source["key"], (*path, "key")
    items = source.get("items")
    for index, entry in enumerate(items if isinstance(items, list) else ()):
        if isinstance(entry, dict) and isinstance(entry.get("key"), str):
            yield entry["key"], (*path, "items", index, "key")


def keys_of(config_map: dict[str, Any]) -> frozenset[str]:
    """Return the keys of a ConfigMap."""
    groups = (config_map.get("data"), config_map.get("binaryData"))
    return frozenset(key for group in groups if isinstance(group, dict) for key in group)
