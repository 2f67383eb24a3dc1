"""A small key-value store of one round, for the bootstrap of a framework such as torch.distributed."""

from __future__ import annotations

from avactl.daemons.elastic.job import JobError

MAX_KEY = 1024
"""Characters."""
MAX_VALUE = 1024 * 1024
"""Bytes."""
MAX_KEYS = 100_000
MAX_TOTAL = 64 * 1024 * 1024
"""Bytes of all keys and values."""
_MAX_DIGITS = 20


class Values:
    """Values by key, with the operations of a `torch.distributed.Store`. All raise JobError beyond the bounds."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._total = 0
        self.changed = 0
        """Counts up with each new value."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> bytes | None:
        """Return a value, or None if there is none."""
        return self._values.get(key)

    def has(self, keys: list[str]) -> bool:
        """Return True if all keys have values."""
        return all(key in self._values for key in keys)

    def set(self, key: str, value: bytes) -> None:
        """Set a value."""
        if not 1 <= len(key) <= MAX_KEY:
            raise JobError(f"a key has 1 to {MAX_KEY:,} characters, not {len(key):,}")
        if len(value) > MAX_VALUE:
            raise JobError(f"key {key[:80]!r}: a value has at most {MAX_VALUE:,} bytes, not {len(value):,}")
        before = self._values.get(key)
        total = self._total + len(value) - (-len(key) if before is None else len(before))
        if total > MAX_TOTAL or (before is None and len(self._values) >= MAX_KEYS):
            raise JobError(f"key {key[:80]!r}: a round has at most {MAX_KEYS:,} keys, and {MAX_TOTAL:,} bytes of them")
        self._values[key], self._total = value, total
        self.changed += 1

    def add(self, key: str, amount: bytes) -> bytes:
        """Add a decimal number to a value, 0 if there is none, and return the sum."""
        old = self._values.get(key, b"0")
        try:
            if max(len(old), len(amount)) > _MAX_DIGITS:
                raise ValueError
            found = str(int(old) + int(amount)).encode()
        except ValueError:
            raise JobError(f"key {key[:80]!r}: only whole numbers of 64 bits can be added") from None
        self.set(key, found)
        return found

    def compare(self, key: str, expected: bytes, value: bytes) -> bytes:
        """Set a value if it is `expected`, or there is none and `expected` is empty. Return the value then."""
        old = self._values.get(key)
        if old == expected or (old is None and not expected):
            self.set(key, value)
            return value
        return expected if old is None else old

    def delete(self, key: str) -> bool:
        """Remove a value; return False if there is none."""
        value = self._values.pop(key, None)
        if value is not None:
            self._total -= len(key) + len(value)
        return value is not None
