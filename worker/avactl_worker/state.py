"""State of synchronous training as bytes: what a worker that joins takes from another one."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

_HEAD = struct.Struct("<Q")


class StateError(ValueError):
    """The state of another worker does not fit this one's."""


def of(things: Any) -> State:
    """Return the state of a list or dict of NumPy arrays, of TensorFlow variables, or of what has a `state_dict`."""
    each = list(things.values()) if isinstance(things, dict) else list(things)
    if each and all(hasattr(thing, "state_dict") for thing in each):
        return _Torch(each)
    if each and all(hasattr(thing, "assign") for thing in each):
        return _Variables(each)
    return _Arrays(things if isinstance(things, dict) else dict(enumerate(things)))


class State:
    """Something that is the same on all workers at the end of each step."""

    def dump(self) -> bytes:
        """Return the state."""
        raise NotImplementedError

    def load(self, data: bytes) -> None:
        """Take a state, in place. Raises StateError if it does not fit."""
        raise NotImplementedError


class _Arrays(State):
    def __init__(self, arrays: dict[Any, Any]) -> None:
        self._arrays = arrays
        self._check()

    def _check(self) -> None:
        import numpy as np

        for name, each in self._arrays.items():
            if not isinstance(each, np.ndarray) or each.dtype.hasobject:
                raise TypeError(
                    f"state {name!r} is of type {type(each).__name__}: a state is NumPy arrays, which are changed in "
                    "place, TensorFlow variables, or PyTorch modules and optimizers"
                )

    def dump(self) -> bytes:
        return _pack([array for _, array in self._items()])

    def load(self, data: bytes) -> None:
        _unpack(data, [(name, array.shape, array.dtype) for name, array in self._items()], self._assign)

    def _items(self) -> Any:
        return sorted(self._arrays.items(), key=lambda item: str(item[0]))

    def _assign(self, index: int, value: Any) -> None:
        self._items()[index][1][...] = value


class _Variables(State):
    def __init__(self, variables: list[Any]) -> None:
        self._variables = variables

    def dump(self) -> bytes:
        return _pack([each.numpy() for each in self._variables])

    def load(self, data: bytes) -> None:
        import numpy as np

        expected = [
            (each.name, tuple(each.shape), np.asarray(each.numpy()).dtype) for each in self._variables
        ]  # the type's name differs between TensorFlow and Keras
        _unpack(data, expected, lambda index, value: self._variables[index].assign(value))


class _Torch(State):
    def __init__(self, things: list[Any]) -> None:
        self._things = things

    def dump(self) -> bytes:
        import torch  # type: ignore[import-not-found,unused-ignore]

        buffer = io.BytesIO()
        torch.save([each.state_dict() for each in self._things], buffer)
        return buffer.getvalue()

    def load(self, data: bytes) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]

        try:
            found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            if len(found) != len(self._things):
                raise StateError(f"another worker's state has {len(found)} parts, and this one's {len(self._things)}")
            for each, state in zip(self._things, found):
                each.load_state_dict(state)
        except (RuntimeError, KeyError) as error:
            raise StateError(f"another worker's state does not fit: {error}") from None


def _pack(arrays: list[Any]) -> bytes:
    import numpy as np

    arrays = [np.ascontiguousarray(each).reshape(np.shape(each)) for each in arrays]
    head = json.dumps([[list(each.shape), each.dtype.str] for each in arrays]).encode()
    return b"".join([_HEAD.pack(len(head)), head, *(each.tobytes() for each in arrays)])


def _unpack(data: bytes, expected: list[Any], assign: Any) -> None:
    import numpy as np

    start = _HEAD.size + _HEAD.unpack_from(data)[0]
    head = json.loads(data[_HEAD.size : start])
    found = [(tuple(shape), np.dtype(kind)) for shape, kind in head]
    if len(found) != len(expected):
        raise StateError(f"another worker's state has {len(found)} arrays, and this one's {len(expected)}")
    for (name, shape, kind), theirs in zip(expected, found):
        if theirs != (tuple(shape), kind):
            raise StateError(
                f"{name!r} of another worker's state is {theirs[1]} of shape {theirs[0]}, and here {kind} of {shape}"
            )
    for index, (shape, kind) in enumerate(found):
        count = int(np.prod(shape))
        assign(index, np.frombuffer(data, kind, count, start).reshape(shape))
        start += count * kind.itemsize
