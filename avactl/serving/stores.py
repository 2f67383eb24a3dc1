"""Objects that the watches bring, and those in the answers to the daemon's own writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from avactl.kube.objects import object_key

Body = dict[str, Any]


class Objects:
    """Objects of one kind by `namespace/name`, and by a group of their own. Older versions replace no newer ones."""

    def __init__(self, group: Callable[[Mapping[str, Any]], Iterable[str]]) -> None:
        self._group = group
        self._items: dict[str, Body] = {}
        self._groups: dict[str, set[str]] = defaultdict(set)

    def put(self, item: Body) -> None:
        """Add or update an object."""
        key = object_key(item)
        known = self._items.get(key)
        if known is not None and _version(item) < _version(known):
            return
        self.remove(key)
        self._items[key] = item
        for each in self._group(item):
            self._groups[each].add(key)

    def remove(self, key: str) -> None:
        """Remove an object."""
        known = self._items.pop(key, None)
        if known is not None:
            for each in self._group(known):
                self._groups[each].discard(key)
                if not self._groups[each]:
                    del self._groups[each]

    def keys(self) -> list[str]:
        """Return the keys of all objects."""
        return list(self._items)

    def get(self, key: str) -> Body | None:
        """Return an object; None if there is none."""
        return self._items.get(key)

    def of(self, group: str) -> Iterator[Body]:
        """Yield the objects of a group."""
        for key in sorted(self._groups.get(group, ())):
            yield self._items[key]


def owners(item: Mapping[str, Any]) -> list[str]:
    """Return the UIDs of an object's owners."""
    return [str(each.get("uid")) for each in (item["metadata"].get("ownerReferences") or ())[:8]]


def namespace(item: Mapping[str, Any]) -> list[str]:
    """Return the namespace of an object."""
    return [item["metadata"].get("namespace", "")]


def _version(item: Mapping[str, Any]) -> int:
    # Comparable by KEP-5504, and in every API server with etcd before.
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() and len(text) < 20 else 0
