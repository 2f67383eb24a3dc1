"""Hashes of ids: which server has a row, where a table has it, and the values with which it begins.

A server has an id by rendezvous hashing over fixed slots: another server takes over its share of the slots from the
others, and no other row moves. Source: Thaler and Ravishankar, Using name-based mappings to increase hit rates, 1998;
the mixing function is that of Steele et al., Fast splittable pseudorandom number generators, 2014.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np

_BITS = 12
"""Bits of a slot."""


def mixed(values: Any) -> Any:
    """Return 64 well mixed bits of each of an array of uint64."""
    found = values + np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


def seed_of(name: str, seed: int) -> Any:
    """Return 64 bits that follow from a name and a seed."""
    return np.uint64(int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little"))


def owners(servers: int) -> Any:
    """Return the server of each slot."""
    slots = mixed(np.arange(1 << _BITS, dtype=np.uint64))
    ranks = [mixed(slots ^ mixed(np.full(1, server, dtype=np.uint64))) for server in range(servers)]
    return np.argmax(np.stack(ranks), axis=0)


def slots_of(ids: Any, salt: Any) -> Any:
    """Return the slot of each id of a table."""
    return mixed(ids ^ salt) >> np.uint64(64 - _BITS)


def initial(kind: str, scale: float, salt: Any, ids: Any, dim: int) -> Any:
    """Return the first values of rows, which depend on nothing but these arguments: float32, by id and column."""
    if kind == "zeros":
        return np.zeros((len(ids), dim), dtype=np.float32)
    width = dim if kind == "uniform" else dim + dim % 2
    bits = mixed(mixed(ids ^ salt)[:, None] + np.arange(width, dtype=np.uint64))
    even = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53  # [0, 1)
    if kind == "uniform":
        return (scale * (2 * even - 1)).astype(np.float32)
    radius, angle = np.sqrt(-2 * np.log1p(-even[:, ::2])), 2 * np.pi * even[:, 1::2]
    found = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :dim]
    return (scale * found).astype(np.float32)


class Index:
    """The row of each id: open addressing, for arrays of ids at a time. No id is ever removed.

    Places follow from a random salt: else ids that share one could be written into the data, and each look-up of them
    would take as long as all others together.
    """

    def __init__(self) -> None:
        self._salt = np.uint64(int.from_bytes(os.urandom(8), "little"))
        self._ids = np.zeros(1024, dtype=np.uint64)
        self._rows = np.full(1024, -1, dtype=np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return int(self._ids.nbytes + self._rows.nbytes)

    def ids(self) -> Any:
        """Return all ids, by row."""
        found = np.empty(self._count, dtype=np.uint64)
        used = self._rows >= 0
        found[self._rows[used]] = self._ids[used]
        return found

    def find(self, ids: Any) -> Any:
        """Return the row of each id, -1 for unknown ones."""
        found = np.full(len(ids), -1, dtype=np.int64)
        mask = np.uint64(len(self._rows) - 1)
        wanted, at, slot = ids, None, mixed(ids ^ self._salt) & mask
        while len(wanted):
            rows = self._rows[slot]
            hit = (self._ids[slot] == wanted) & (rows >= 0)
            result = np.where(hit, rows, -1)
            if at is None:
                found = result
            else:
                found[at] = result
            left = np.flatnonzero(~hit & (rows >= 0))
            at = left if at is None else at[left]
            wanted, slot = wanted[left], (slot[left] + np.uint64(1)) & mask
        return found

    def add(self, ids: Any) -> Any:
        """Give unknown, different ids the next rows, and return these."""
        rows = np.arange(self._count, self._count + len(ids), dtype=np.int64)
        self._count += len(ids)
        if 2 * self._count > len(self._rows):
            known, old = self._rows >= 0, self._ids
            before = (old[known], self._rows[known])
            size = len(self._rows)
            while 2 * self._count > size:
                size *= 2
            self._ids, self._rows = np.zeros(size, dtype=np.uint64), np.full(size, -1, dtype=np.int64)
            self._insert(*before)
        self._insert(ids, rows)
        return rows

    def _insert(self, ids: Any, rows: Any) -> None:
        mask = np.uint64(len(self._rows) - 1)
        slot = mixed(ids ^ self._salt) & mask
        while len(ids):
            free = np.flatnonzero(self._rows[slot] < 0)
            self._rows[slot[free]] = rows[free]  # of several, the last one gets the place
            won = self._rows[slot] == rows
            self._ids[slot[won]] = ids[won]
            lost = ~won
            ids, rows, slot = ids[lost], rows[lost], (slot[lost] + np.uint64(1)) & mask
