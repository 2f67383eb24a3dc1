"""Messages of `protocol.proto`."""

from __future__ import annotations

from avactl_worker.wire import Field, Message

PACKAGE = "avactl.elastic.v2"
SESSION = f"/{PACKAGE}.Master/Session"
STATUS = f"/{PACKAGE}.Master/Status"
LIMIT = 16 * 1024 * 1024
"""Bytes of a request: the definition of a million files."""
MAX_MESSAGE_BYTES = 16 * 1024
"""A longer request is sent in parts: gRPC bounds the messages of each stream, and not their sum."""
_MAX_PART_BYTES = MAX_MESSAGE_BYTES - 64
REPLACED = 79
"""Exit code of a worker that leaves because the master has told it to: another one takes its place."""


class TaskKey(Message):
    dataset: str
    epoch: int
    position: int
    FIELDS = {"dataset": Field(1, "string"), "epoch": Field(2, "uint64"), "position": Field(3, "uint64")}


class Metric(Message):
    name: str
    value: float
    FIELDS = {"name": Field(1, "string"), "value": Field(2, "double")}


class Report(Message):
    task: TaskKey | None
    metrics: list[Metric]
    FIELDS = {"task": Field(1, TaskKey), "metrics": Field(2, Metric, True)}


class Join(Message):
    worker: str
    incarnation: int
    library: str
    replaceable: bool
    FIELDS = {
        "worker": Field(1, "string"),
        "incarnation": Field(2, "uint64"),
        "library": Field(3, "string"),
        "replaceable": Field(4, "bool"),
    }


class Joined(Message):
    lineage: str
    heartbeat: float
    lease: float
    gradients: int
    FIELDS = {
        "lineage": Field(1, "string"),
        "heartbeat": Field(2, "double"),
        "lease": Field(3, "double"),
        "gradients": Field(4, "uint64"),
    }


class Definition(Message):
    counts: list[int]
    records_per_task: int
    epochs: int
    shuffled: bool
    seed: int
    after: str
    timeout: float
    FIELDS = {
        "counts": Field(1, "uint64", True),
        "records_per_task": Field(2, "uint64"),
        "epochs": Field(3, "uint64"),
        "shuffled": Field(4, "bool"),
        "seed": Field(5, "uint64"),
        "after": Field(6, "string"),
        "timeout": Field(7, "double"),
    }


class Registration(Message):
    name: str
    digest: bytes
    definition: Definition | None
    FIELDS = {"name": Field(1, "string"), "digest": Field(2, "bytes"), "definition": Field(3, Definition)}


class Registered(Message):
    definition_wanted: bool
    FIELDS = {"definition_wanted": Field(1, "bool")}


class Resume(Message):
    held: list[TaskKey]
    finished: list[Report]
    step: int
    begun: int
    counted: int
    FIELDS = {
        "held": Field(1, TaskKey, True),
        "finished": Field(2, Report, True),
        "step": Field(3, "uint64"),
        "begun": Field(4, "uint64"),
        "counted": Field(5, "uint64"),
    }


class Work(Message):
    datasets: list[str]
    finished: list[Report]
    returned: list[TaskKey]
    wait: bool
    FIELDS = {
        "datasets": Field(1, "string", True),
        "finished": Field(2, Report, True),
        "returned": Field(3, TaskKey, True),
        "wait": Field(4, "bool"),
    }


class Assignment(Message):
    task: TaskKey | None
    file: int
    start: int
    end: int
    evaluation: bool
    FIELDS = {
        "task": Field(1, TaskKey),
        "file": Field(2, "uint64"),
        "start": Field(3, "uint64"),
        "end": Field(4, "uint64"),
        "evaluation": Field(5, "bool"),
    }


class Heartbeat(Message):
    pace: float
    FIELDS = {"pace": Field(1, "double")}


class Clock(Message):
    step: int
    staleness: int
    asked: bool
    FIELDS = {"step": Field(1, "uint64"), "staleness": Field(2, "uint64"), "asked": Field(3, "bool")}


class Gradient(Message):
    step: int
    FIELDS = {"step": Field(1, "uint64")}


class Leave(Message):
    pass


class Round(Message):
    revision: int
    rank: int
    size: int
    token: bytes
    next: str
    after: str
    before: str
    FIELDS = {
        "revision": Field(1, "uint64"),
        "rank": Field(2, "uint64"),
        "size": Field(3, "uint64"),
        "token": Field(4, "bytes"),
        "next": Field(5, "string"),
        "after": Field(6, "string"),
        "before": Field(7, "string"),
    }


class Rendezvous(Message):
    round: Round | None
    broken: bool
    address: str
    step: int
    least: int
    most: int
    FIELDS = {
        "round": Field(1, Round),
        "broken": Field(2, "bool"),
        "address": Field(3, "string"),
        "step": Field(4, "uint64"),
        "least": Field(5, "uint64"),
        "most": Field(6, "uint64"),
    }


class Watch(Message):
    round: Round | None
    heard: bool
    FIELDS = {"round": Field(1, Round), "heard": Field(2, "bool")}


class Change(Message):
    wanted: bool
    broken: bool
    finished: bool
    reason: str
    FIELDS = {
        "wanted": Field(1, "bool"),
        "broken": Field(2, "bool"),
        "finished": Field(3, "bool"),
        "reason": Field(4, "string"),
    }


class Store(Message):
    revision: int
    operation: str
    keys: list[str]
    value: bytes
    expected: bytes
    FIELDS = {
        "revision": Field(1, "uint64"),
        "operation": Field(2, "string"),
        "keys": Field(3, "string", True),
        "value": Field(4, "bytes"),
        "expected": Field(5, "bytes"),
    }


class Value(Message):
    value: bytes
    found: bool
    FIELDS = {"value": Field(1, "bytes"), "found": Field(2, "bool")}


class Finish(Message):
    step: int
    FIELDS = {"step": Field(1, "uint64")}


class Request(Message):
    id: int
    join: Join | None
    register: Registration | None
    resume: Resume | None
    work: Work | None
    heartbeat: Heartbeat | None
    clock: Clock | None
    leave: Leave | None
    rendezvous: Rendezvous | None
    watch: Watch | None
    store: Store | None
    finish: Finish | None
    gradient: Gradient | None
    part: bytes
    more: bool
    FIELDS = {
        "id": Field(1, "uint64"),
        "join": Field(2, Join),
        "register": Field(3, Registration),
        "resume": Field(4, Resume),
        "work": Field(5, Work),
        "heartbeat": Field(6, Heartbeat),
        "clock": Field(7, Clock),
        "leave": Field(8, Leave),
        "rendezvous": Field(9, Rendezvous),
        "watch": Field(10, Watch),
        "store": Field(11, Store),
        "finish": Field(12, Finish),
        "gradient": Field(13, Gradient),
        "part": Field(14, "bytes"),
        "more": Field(15, "bool"),
    }

    def messages(self) -> list[bytes]:
        """Return the messages that this request is sent in."""
        raw = self.encode()
        if len(raw) <= MAX_MESSAGE_BYTES:
            return [raw]
        starts = range(0, len(raw), _MAX_PART_BYTES)
        return [
            Request(part=raw[start : start + _MAX_PART_BYTES], more=start != starts[-1]).encode() for start in starts
        ]


class Error(Message):
    code: str
    message: str
    FIELDS = {"code": Field(1, "string"), "message": Field(2, "string")}


class Answer(Message):
    id: int
    error: Error | None
    sequence: int
    durable: int
    joined: Joined | None
    registered: Registered | None
    assignment: Assignment | None
    finished: bool
    step: int
    round: Round | None
    change: Change | None
    value: Value | None
    gradient: int
    leave: str
    FIELDS = {
        "id": Field(1, "uint64"),
        "error": Field(2, Error),
        "sequence": Field(3, "uint64"),
        "durable": Field(4, "uint64"),
        "joined": Field(5, Joined),
        "registered": Field(6, Registered),
        "assignment": Field(7, Assignment),
        "finished": Field(8, "bool"),
        "step": Field(9, "uint64"),
        "round": Field(10, Round),
        "change": Field(11, Change),
        "value": Field(12, Value),
        "gradient": Field(13, "uint64"),
        "leave": Field(14, "string"),
    }


class StatusRequest(Message):
    pass


class StatusAnswer(Message):
    json: str
    FIELDS = {"json": Field(1, "string")}
