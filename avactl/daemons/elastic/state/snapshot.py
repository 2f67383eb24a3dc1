"""A job's state as bytes: a line of JSON, then the bitmaps, and the definitions if they are wanted.

Without definitions and holders the state of a million tasks has at most 125 kB in any order of work.
"""

from __future__ import annotations

import zlib
from typing import Any

import orjson

from avactl.daemons.elastic.clock import MAX_STEPS, Gradients
from avactl.daemons.elastic.definition import MAX_DATASETS
from avactl.daemons.elastic.events import WorkerReplaced, decode_definition, encode_definition
from avactl.daemons.elastic.job import JobLedger, SavedProgress
from avactl.daemons.elastic.progress import EpochProgress
from avactl.daemons.elastic.workers import REMEMBERED, ElasticWorker

_FORMAT_VERSION = 1
_CHECKSUM_BYTES = 4
"""Bytes."""
_MAX_TIME_S = 1e11
"""Unix time."""


class StateSnapshotError(ValueError):
    """The bytes are not a state that this version of avactl can read."""


def dump(job: JobLedger, about: dict[str, Any], full: bool = True) -> bytes:
    """Return the state; `about` is stored with it. Without `full`, no definitions, workers and holders."""
    datasets: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for dataset in job.by_number:
        definition, bitmap = dataset.definition, dataset.progress.bitmap()
        encoded = encode_definition(definition) if full else b""
        blobs += (bitmap, encoded)
        datasets.append(
            {
                "name": definition.name,
                "digest": definition.digest.hex(),
                "sizes": [len(bitmap), len(encoded)],
                "progress": {**dataset.progress.header(), "finished": job.finished(dataset)},
            }
        )
    for name, saved in job.unregistered.items():
        blobs.append(saved.bitmap)
        datasets.append(
            {"name": name, "digest": saved.digest.hex(), "sizes": [len(saved.bitmap), 0], "progress": saved.header}
        )
    head: dict[str, Any] = {"version": _FORMAT_VERSION, "about": about, "datasets": datasets, "ended": job.ended}
    head["gradients"] = job.gradients.header(full)
    head["told_to_leave"] = [[each.incarnation, each.at, each.share, each.name] for each in job.told_to_leave]
    if full:
        head["next_worker"] = job.next_worker
        head["workers"] = [
            [worker.index, worker.name, worker.incarnation, sorted(worker.held)] for worker in job.workers.values()
        ]
    body = orjson.dumps(head) + b"\n" + b"".join(blobs)
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") + body


def load(data: bytes, now: float) -> tuple[JobLedger, dict[str, Any]]:
    """Return the job and the `about` of a state. Raises SnapshotError."""
    body = memoryview(data)[_CHECKSUM_BYTES:]
    if zlib.crc32(body) != int.from_bytes(data[:_CHECKSUM_BYTES], "little"):
        raise StateSnapshotError("the checksum is wrong: the state was not written whole, or was changed")
    end = data.find(b"\n", _CHECKSUM_BYTES)
    try:
        head = orjson.loads(data[_CHECKSUM_BYTES:end])
        if head["version"] != _FORMAT_VERSION:
            raise StateSnapshotError(
                f"the state has version {head['version']}; this avactl reads version {_FORMAT_VERSION}"
            )
        return _restore_job(head, data[end + 1 :], now), head["about"]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, StateSnapshotError):
            raise
        raise StateSnapshotError(f"the state cannot be read: {error}") from None


def _restore_job(head: dict[str, Any], blobs: bytes, now: float) -> JobLedger:
    job, at = JobLedger(), 0
    for each in head["datasets"][:MAX_DATASETS]:
        size, more = each["sizes"]
        bitmap, encoded = blobs[at : at + size], blobs[at + size : at + size + more]
        at += size + more
        if encoded:
            job.add(EpochProgress.restored(decode_definition(encoded), each["progress"], bitmap))
        else:
            job.unregistered[each["name"]] = SavedProgress(bytes.fromhex(each["digest"]), each["progress"], bitmap)
    for index, name, incarnation, held in head.get("workers", []):
        job.add_worker(
            ElasticWorker(index, name, incarnation, now), ((number, position) for number, position in held), now
        )
    job.next_worker = head.get("next_worker", 1)
    job.ended = head.get("ended")
    gradients = head.get("gradients", {})
    job.gradients = Gradients(
        min(int(gradients.get("step", 1)), MAX_STEPS),
        map(str, gradients.get("counted", ())),
        map(str, gradients.get("pending", ())),
        int(gradients.get("dropped", 0)),
    )
    job.told_to_leave.extend(_restore_replaced(*each) for each in head.get("told_to_leave", [])[-REMEMBERED:])
    return job


def _restore_replaced(incarnation: int, at: float, share: float, name: str) -> WorkerReplaced:
    if not (0 <= at < _MAX_TIME_S and 0 <= share <= 1):
        raise ValueError(f"a worker was replaced at {at}, and had {share} of the median speed")
    return WorkerReplaced(int(incarnation), float(at), float(share), str(name))
