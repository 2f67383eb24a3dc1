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
_PLACES = 8
"""Ids of a bucket: as many as a cache line has."""


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
    return np.argmax(np.stack(ranks), axis=0).astype(np.uint16)


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
    """The row of each id: buckets of eight places, for arrays of ids at a time. No id is ever removed.

    One comparison of a bucket finds nearly all ids; a full bucket goes on in the next one. Buckets follow from a random
    salt: else ids that share one could be written into the data, and each look-up of them would take as long as all
    others together.
    """

    def __init__(self) -> None:
        self._salt = np.uint64(int.from_bytes(os.urandom(8), "little"))
        self._count = 0
        self._reset(128)

    def _reset(self, buckets: int) -> None:
        self._ids = np.zeros((buckets, _PLACES), dtype=np.uint64)
        self._rows = np.full((buckets, _PLACES), -1, dtype=np.int64)
        self._used = np.zeros(buckets, dtype=np.int64)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return int(self._ids.nbytes + self._rows.nbytes + self._used.nbytes)

    def ids(self) -> Any:
        """Return all ids, by row."""
        found = np.empty(self._count, dtype=np.uint64)
        used = self._rows >= 0
        found[self._rows[used]] = self._ids[used]
        return found

    def find(self, ids: Any) -> Any:
        """Return the row of each id, -1 for unknown ones."""
        found = np.full(len(ids), -1, dtype=np.int64)
        wanted, at, bucket = ids, None, self._bucket(ids)
        while True:
            place = np.flatnonzero(self._ids.take(bucket, axis=0) == wanted[:, None])
            asked = place // _PLACES
            rows = self._rows.reshape(-1).take(bucket[asked] * _PLACES + place % _PLACES)
            if len(rows) == len(wanted) and (not len(rows) or rows.min() >= 0):  # one place of each
                if at is None:
                    return rows
                found[at] = rows
                return found
            known = rows >= 0  # an empty place looks like that of id 0
            here = asked[known] if at is None else at[asked[known]]
            found[here] = rows[known]
            unknown = (found if at is None else found[at]) < 0
            left = np.flatnonzero(unknown & (self._used[bucket] == _PLACES))
            if not len(left):
                return found
            at = left if at is None else at[left]
            wanted, bucket = wanted[left], (bucket[left] + 1) & (len(self._used) - 1)

    def add(self, ids: Any) -> Any:
        """Give unknown, different ids the next rows, and return these."""
        rows = np.arange(self._count, self._count + len(ids), dtype=np.int64)
        self._count += len(ids)
        size = len(self._used)
        if 2 * self._count > _PLACES * size:
            known = self._rows >= 0
            before = (self._ids[known], self._rows[known])
            while 2 * self._count > _PLACES * size:
                size *= 2
            self._reset(size)
            self._insert(*before)
        self._insert(ids, rows)
        return rows

    def _bucket(self, ids: Any) -> Any:
        return (mixed(ids ^ self._salt) & np.uint64(len(self._used) - 1)).astype(np.int64)

    def _insert(self, ids: Any, rows: Any) -> None:
        bucket = self._bucket(ids)
        while len(ids):
            order = np.argsort(bucket, kind="stable")
            ids, rows, bucket = ids[order], rows[order], bucket[order]
            place = self._used[bucket] + np.arange(len(ids)) - np.searchsorted(bucket, bucket)
            fits = place < _PLACES
            self._ids[bucket[fits], place[fits]] = ids[fits]
            self._rows[bucket[fits], place[fits]] = rows[fits]
            np.maximum.at(self._used, bucket[fits], place[fits] + 1)
            ids, rows, bucket = ids[~fits], rows[~fits], (bucket[~fits] + 1) & (len(self._used) - 1)
