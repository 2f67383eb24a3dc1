"""A watch store whose methods are functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class CallbackStore:
    """A watch store made of three functions."""

    def __init__(
        self,
        put: Callable[[dict[str, Any]], None],
        remove: Callable[[str], None],
        keys: Callable[[], Iterable[str]],
    ) -> None:
        self._put, self._remove, self._keys = put, remove, keys

    def put(self, item: dict[str, Any]) -> None:
        """Add or update an object."""
        self._put(item)

    def remove(self, key: str) -> None:
        """Remove an object."""
        self._remove(key)

    def keys(self) -> list[str]:
        """Return the keys of the known objects."""
        return list(self._keys())
