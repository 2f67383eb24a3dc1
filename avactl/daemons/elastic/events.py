"""Events of a job, and their encoding in the journal. A job's state follows from its events."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import orjson

from avactl.daemons.elastic.definition import Definition


class Fate(IntEnum):
    """State of a gradient. The numbers are those of the journal."""

    COUNTED = 1
    PUSHED = 2
    DROPPED = 3


@dataclass(frozen=True, slots=True)
class Registered:
    """A dataset; its number is the count of those before."""

    definition: Definition


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker process. The same name with another incarnation replaces the process before."""

    worker: int
    incarnation: int
    name: str


@dataclass(frozen=True, slots=True)
class TaskGiven:
    """A worker holds the task at a position of the current epoch."""

    dataset: int
    position: int
    worker: int


@dataclass(frozen=True, slots=True)
class TaskDone:
    """A task was finished for the first time."""

    dataset: int
    position: int
    worker: int
    epoch: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Returned:
    """A worker does not hold a task any more."""

    dataset: int
    position: int
    worker: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker has left, was lost or replaced; its tasks are to do again."""

    worker: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Synchronous training has ended, after so many steps."""

    step: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step begins of which the first gradients count."""

    step: int


@dataclass(frozen=True, slots=True)
class Gradient:
    """A worker's gradient of a step counts, is pushed, or does not count."""

    step: int
    worker: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class WorkerReplaced:
    """A worker was told to leave, because it is slow: another process is to take its name."""

    incarnation: int
    at: float
    """Unix time."""
    share: float
    """Its speed, as a share of the median."""
    name: str


Event: TypeAlias = (
    Registered | Joined | TaskGiven | TaskDone | Returned | Gone | Ended | Stepped | Gradient | WorkerReplaced
)

_TASK_FORMAT = struct.Struct("<BHII")
_DONE_FORMAT = struct.Struct("<BHIIIB")
_JOINED_FORMAT = struct.Struct("<BIQ")
_GONE_FORMAT = struct.Struct("<BI")
_ENDED_FORMAT = struct.Struct("<BQ")
_GRADIENT_FORMAT = struct.Struct("<BQIB")
_REPLACED_FORMAT = struct.Struct("<BQdd")
_METRIC_FORMAT = struct.Struct("<Bd")
_REGISTERED, _JOIN, _GIVEN, _FINISHED, _RETURNED, _LEFT, _END, _STEP, _FATE, _SLOW = range(1, 11)
_MAX_DEFINITION = 100_000_000
"""Bytes of a definition, decompressed."""


def encode(event: Event) -> bytes:
    """Return the bytes of an event."""
    match event:
        case TaskGiven(dataset, position, worker):
            return _TASK_FORMAT.pack(_GIVEN, dataset, position, worker)
        case TaskDone(dataset, position, worker, epoch, metrics):
            head = _DONE_FORMAT.pack(_FINISHED, dataset, position, worker, epoch, len(metrics))
            if not metrics:
                return head
            parts = [head]
            for name, value in metrics.items():
                raw = name.encode()
                parts += (_METRIC_FORMAT.pack(len(raw), value), raw)
            return b"".join(parts)
        case Returned(dataset, position, worker):
            return _TASK_FORMAT.pack(_RETURNED, dataset, position, worker)
        case Joined(worker, incarnation, name):
            return _JOINED_FORMAT.pack(_JOIN, worker, incarnation) + name.encode()
        case Gone(worker):
            return _GONE_FORMAT.pack(_LEFT, worker)
        case Ended(step):
            return _ENDED_FORMAT.pack(_END, step)
        case Stepped(step):
            return _ENDED_FORMAT.pack(_STEP, step)
        case Gradient(step, worker, fate):
            return _GRADIENT_FORMAT.pack(_FATE, step, worker, fate)
        case WorkerReplaced(incarnation, at, share, name):
            return _REPLACED_FORMAT.pack(_SLOW, incarnation, at, share) + name.encode()
        case Registered(definition):
            return bytes([_REGISTERED]) + encode_definition(definition)


def decode(data: bytes) -> Event:
    """Return the event that `data` encodes. Raises ValueError if it encodes none."""
    try:
        match data[0]:
            case 3:
                _, dataset, position, worker = _TASK_FORMAT.unpack(data)
                return TaskGiven(dataset, position, worker)
            case 4:
                return _decode_done(data)
            case 5:
                _, dataset, position, worker = _TASK_FORMAT.unpack(data)
                return Returned(dataset, position, worker)
            case 2:
                _, worker, incarnation = _JOINED_FORMAT.unpack_from(data)
                return Joined(worker, incarnation, data[_JOINED_FORMAT.size :].decode())
            case 6:
                return Gone(_GONE_FORMAT.unpack(data)[1])
            case 7:
                return Ended(_ENDED_FORMAT.unpack(data)[1])
            case 8:
                return Stepped(_ENDED_FORMAT.unpack(data)[1])
            case 9:
                _, step, worker, fate = _GRADIENT_FORMAT.unpack(data)
                return Gradient(step, worker, Fate(fate))
            case 10:
                _, incarnation, at, share = _REPLACED_FORMAT.unpack_from(data)
                return WorkerReplaced(incarnation, at, share, data[_REPLACED_FORMAT.size :].decode())
            case 1:
                return Registered(decode_definition(data[1:]))
    except (struct.error, IndexError) as error:
        raise ValueError(f"not an event: {error}") from None
    raise ValueError(f"unknown event {data[0]}")


def _decode_done(data: bytes) -> TaskDone:
    _, dataset, position, worker, epoch, count = _DONE_FORMAT.unpack_from(data)
    at, metrics = _DONE_FORMAT.size, {}
    for _ in range(count):
        length, value = _METRIC_FORMAT.unpack_from(data, at)
        at += _METRIC_FORMAT.size
        metrics[data[at : at + length].decode()] = value if math.isfinite(value) else 0.0
        at += length
    return TaskDone(dataset, position, worker, epoch, metrics)


def encode_definition(definition: Definition) -> bytes:
    """Return a definition with the records of all files, compressed."""
    about: dict[str, Any] = {
        "name": definition.name,
        "digest": definition.digest.hex(),
        "records_per_task": definition.records_per_task,
        "epochs": definition.epochs,
        "seed": definition.seed,
        "after": definition.after,
        "timeout": definition.timeout,
    }
    return zlib.compress(orjson.dumps(about) + b"\n" + definition.counts.astype("<i8").tobytes())


def decode_definition(data: bytes) -> Definition:
    """Return the definition that `data` encodes. Raises ValueError if it encodes none."""
    try:
        head, _, counts = zlib.decompressobj().decompress(data, _MAX_DEFINITION).partition(b"\n")
        about = orjson.loads(head)
        return Definition(
            about["name"],
            bytes.fromhex(about["digest"]),
            np.frombuffer(counts, "<i8").astype(np.int64),
            about["records_per_task"],
            about["epochs"],
            about["seed"],
            about["after"],
            about["timeout"],
        )
    except (zlib.error, KeyError, TypeError) as error:
        raise ValueError(f"not the definition of a dataset: {error}") from None
