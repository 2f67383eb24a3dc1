"""The part of a table that one server has."""

from __future__ import annotations

import math
import re
import threading
from typing import Any

import numpy as np

from avactl_worker.ps.errors import ServerError
from avactl_worker.ps.hashing import Index, initial, seed_of
from avactl_worker.ps.optimizers import OPTIMIZERS

MAX_DIM = 65_536
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,100}").fullmatch
_KEYS = {"name", "dim", "optimizer", "options", "init", "scale", "seed", "dense"}


class Table:
    """Rows of float32, which begin with values that follow from the seed and their id, and have an optimizer."""

    def __init__(self, definition: dict[str, Any]) -> None:
        """Raises ServerError if the definition is invalid; it may come from anyone who reaches the server."""
        if definition.keys() != _KEYS:
            raise ServerError("a table has other settings than this server knows: install the same avactl-worker")
        name, dim, kind = definition["name"], definition["dim"], definition["init"]
        options, scale = definition["options"], definition["scale"]
        if not isinstance(name, str) or not _NAME(name):
            raise ServerError("a table's name has 1 to 100 letters, digits and ._/-")
        if type(dim) is not int or not 1 <= dim <= MAX_DIM:
            raise ServerError(f"table {name}: the dimension is 1 to {MAX_DIM}")
        if kind not in ("zeros", "uniform", "normal") or not _is_number(scale) or type(definition["seed"]) is not int:
            raise ServerError(f"table {name}: invalid initial values")
        if definition["optimizer"] not in OPTIMIZERS or not isinstance(options, list):
            raise ServerError(f"table {name}: unknown optimizer")
        if not all(map(_is_number, options)):
            raise ServerError(f"table {name}: options of an optimizer are numbers")
        try:
            self._optimizer = OPTIMIZERS[definition["optimizer"]](*options)
        except TypeError:
            raise ServerError(f"table {name}: too many options of the optimizer") from None
        self.definition, self.name, self.dim = definition, name, dim
        self.ready = not definition["dense"]
        """True if it has its first values."""
        self.lock = threading.Lock()
        self._index, self._salt = Index(), seed_of(name, definition["seed"])
        self._slots = self._optimizer.slots(dim)
        self._values = np.empty((0, dim), dtype=np.float32)
        self._kept = [np.empty((0, width), dtype=np.float32) for width, _ in self._slots]

    def __len__(self) -> int:
        return len(self._index)

    def nbytes(self, more: int = 0) -> int:
        """Bytes of memory with `more` rows, also while the arrays grow."""
        count = len(self._index) + more
        capacity = len(self._values)
        row = 4 * (self.dim + sum(width for width, _ in self._slots))
        if count > capacity:
            capacity = _capacity(count) + capacity
        return int(capacity * row) + self._index.nbytes + 64 * more

    def pull(self, ids: Any) -> Any:
        """Return the values of rows. One that has never got a gradient takes no memory."""
        rows = self._index.find(ids)
        missing = np.flatnonzero(rows < 0)
        if not len(missing):
            return self._values.take(rows, axis=0)
        found = np.empty((len(ids), self.dim), dtype=np.float32)
        known = np.flatnonzero(rows >= 0)
        found[known] = self._values[rows[known]]
        found[missing] = self._initial(ids[missing])
        return found

    def find(self, ids: Any) -> Any:
        """Return the row of each id, -1 for those without one."""
        return self._index.find(ids)

    def push(self, ids: Any, gradients: Any, scale: float, rows: Any = None) -> None:
        """Update the rows of different ids. `rows`: what `find` has just returned for them."""
        rows = self._rows(ids, rows)
        values, kept = self._values.take(rows, axis=0), [each.take(rows, axis=0) for each in self._kept]
        self._optimizer.update(values, kept, gradients, scale)
        self._values[rows] = values
        for each, changed in zip(self._kept, kept):
            each[rows] = changed

    def set(self, ids: Any, values: Any) -> None:
        """Set the values of rows."""
        rows = self._rows(ids)  # may make `_values` anew
        self._values[rows] = values

    def part(self, start: int, count: int) -> tuple[Any, Any]:
        """Return ids and values of rows, in the order in which they were made."""
        return self._index.ids()[start : start + count], self._values[start : min(start + count, len(self))]

    def _initial(self, ids: Any) -> Any:
        return initial(self.definition["init"], self.definition["scale"], self._salt, ids, self.dim)

    def _rows(self, ids: Any, rows: Any = None) -> Any:
        rows = self._index.find(ids) if rows is None else rows
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            added = ids[missing]
            self._grow(len(self._index) + len(added))
            new = self._index.add(added)
            self._values[new] = self._initial(added)
            for each, (_, first) in zip(self._kept, self._slots):
                each[new] = first
            rows[missing] = new
        return rows

    def _grow(self, count: int) -> None:
        if count <= len(self._values):
            return
        size, used = _capacity(count), len(self._index)

        def larger(array: Any) -> Any:
            found = np.empty((size, array.shape[1]), dtype=np.float32)
            found[:used] = array[:used]
            return found

        self._values = larger(self._values)
        self._kept = [larger(each) for each in self._kept]


def _capacity(count: int) -> int:
    return int(max(64, 1 << (count - 1).bit_length()))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
