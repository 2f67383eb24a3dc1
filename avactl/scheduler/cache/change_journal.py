"""Journal of changed items, from which caches update only what has changed since they last looked."""

from __future__ import annotations

from typing import Generic, TypeVar

MAX_ENTRIES = 65_536
"""Maximum number of remembered changes."""

_T = TypeVar("_T")


class ChangeJournal(Generic[_T]):
    """Items in the order of their changes."""

    def __init__(self) -> None:
        self._entries: list[_T] = []
        self._start = 0

    def record(self, item: _T) -> None:
        """Record a change of an item."""
        if len(self._entries) >= MAX_ENTRIES:
            self.forget_all()
        self._entries.append(item)

    def forget_all(self) -> None:
        """Forget all changes: all readers start anew."""
        self._start = self.position + 1
        self._entries.clear()

    @property
    def position(self) -> int:
        """Return the end of the journal."""
        return self._start + len(self._entries)

    def since(self, position: int) -> list[_T] | None:
        """Return the items changed since a position, with repetitions; None if these are no longer known."""
        return None if position < self._start else self._entries[position - self._start :]
