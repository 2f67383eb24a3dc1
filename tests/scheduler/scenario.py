"""Scenarios of other schedulers, in a format of our own, run against the scheduler in memory.

A file of `scenarios/` has the tables of one project: how many scenarios each has, and a row for every one of them.

    - id: reclaim_test.go#1          file (and table), and the number or the name of the case
      name: …                        name of the case, where the id has only its number
      levels: [zone, rack]           of the topology, the widest first
      nodes: {n0: 4, n1: {gpus: 2, amounts: {cpu: 2}, labels: {zone: a, rack: r1}, taint: x}}
      teams: {red: {guaranteed: 2, borrow: 2, weight: 1}}      without `borrow`: as many as are idle
      jobs:                          the older first
        a: {team: red, gpus: 1, pods: 3, size: 2, on: [n0, n0, null], priority: 50, preemptible: false, within: rack}
      claims: {c: {count: 1, class: gpu, users: 254}}       ResourceClaims, which jobs name: `claims: [c]`
      want: {a: n0}                  what their scheduler does

Outcomes: `stays` (runs where it was, never stopped), `stopped` (at least once), `runs`, `waits` (without any pod), a
number of running pods, a node of all pods, or the number of domains by level that its pods are on (`{rack: 1}`).

`ours` is the outcome here where it differs by design, and `because` the sentence of docs/scheduler.md that says so.
`not applicable` is the concept that avactl does not have; `reasons` has both by the names that rows give. `defect` is
the reason why the outcome here is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from avactl.contracts import names
from avactl.contracts.pod_annotations import DEVICES, GANG_SIZE, GPU_SHARE, JOB_INDEX, PREEMPTIBLE, WITHIN
from avactl.scheduler.queue.scheduling_queue import is_partial
from tests.scheduler.memory import Memory

FOLDER = Path(__file__).parent / "scenarios"
MAX_ROUNDS = 6
"""Victims queue again, as their controllers recreate them: after so many rounds the outcome must be stable."""

GPU_CLASS = "gpu"
"""The device class whose devices are GPUs, and the name of its driver."""

Outcome = str | int | dict[str, int]
Verdict = Literal["agrees", "differs by design", "not applicable", "defect"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Amounts = Annotated[
    dict[str, str], BeforeValidator(lambda amounts: {name: str(amount) for name, amount in amounts.items()})
]
"""Amounts by resource; names other than those of Kubernetes are short ones of extended resources."""


class NodeRow(_Part):
    """A machine."""

    gpus: int = 0
    amounts: Amounts = {}
    devices: dict[str, int] = {}
    """Devices of its ResourceSlices, by device class."""
    labels: dict[str, str] = {}
    """By short names, those of the levels among them."""
    taint: str = ""
    cordoned: bool = False


class TeamRow(_Part):
    """A team's quota."""

    guaranteed: int = 0
    borrow: int | None = None
    weight: int = 1
    cpu: int | None = None


class ClaimRow(_Part):
    """A ResourceClaim, which all pods of its jobs share."""

    count: int = 1
    device_class: str = Field(GPU_CLASS, alias="class")
    users: int = 0
    """Other pods that it is reserved for, with devices of the first node that has some."""


class Member(_Part):
    """What a pod requests."""

    gpus: float = 0
    """Below one: a share of a GPU."""
    amounts: Amounts = {}


class JobRow(Member):
    """A job: a gang if it has several pods."""

    team: str = "red"
    pods: int = 1
    size: int = 0
    """Of the gang; all pods if it is missing."""
    priority: int = 0
    preemptible: bool = True
    within: str = ""
    on: Annotated[tuple[str | None, ...], BeforeValidator(lambda on: (on,) if isinstance(on, str) else on)] = ()
    """Nodes of its running pods."""
    devices: tuple[int, ...] = ()
    """The GPU of each pod that has a share of one."""
    selector: dict[str, str] = {}
    prefers: tuple[tuple[int, str, str], ...] = ()
    """Weights, labels and values of a preferred node affinity."""
    tolerates: str = ""
    claims: tuple[str, ...] = ()
    each: tuple[Member, ...] = ()
    """The first pods of the gang, if they request something else than the others."""


class Row(_Part):
    """A scenario."""

    id: str
    name: str = ""
    levels: tuple[str, ...] = ()
    nodes: dict[str, Annotated[NodeRow, BeforeValidator(lambda n: {"gpus": n} if isinstance(n, int) else n)]] = {}
    teams: dict[str, TeamRow] = {}
    claims: dict[str, ClaimRow] = {}
    jobs: dict[str, JobRow] = {}
    want: dict[str, Outcome] = {}
    ours: dict[str, Outcome] | None = None
    because: Annotated[tuple[str, ...], BeforeValidator(lambda text: (text,) if isinstance(text, str) else text)] = ()
    defect: str = ""
    not_applicable: str = Field("", alias="not applicable")

    @model_validator(mode="after")
    def check_verdict(self) -> Row:
        """Refuse rows that say less, or more, than their verdict needs."""
        if self.not_applicable:
            assert not any((self.jobs, self.want, self.ours, self.because, self.defect)), "it does not run"
        else:
            assert self.jobs.keys() == self.want.keys(), "each job has an outcome"
            assert (self.ours is None) == (not self.because), "`ours` and `because` belong together"
            assert self.ours is None or (self.ours.keys() <= self.want.keys() and not self.defect)
        return self

    @property
    def verdict(self) -> Verdict:
        """Return the verdict."""
        if self.not_applicable:
            return "not applicable"
        return "defect" if self.defect else "agrees" if self.ours is None else "differs by design"

    @property
    def expected(self) -> dict[str, Outcome]:
        """Return what happens here if the row is right."""
        return {**self.want, **(self.ours or {})}


class Tables(_Part):
    """The tables of one project."""

    project: str
    commit: str
    tables: dict[str, int]
    """Number of scenarios by table."""
    reasons: dict[str, str] = {}
    """Sentences of docs/scheduler.md, and concepts that avactl does not have, by name."""
    rows: tuple[Row, ...]

    def full(self, reason: str) -> str:
        """Return the reason that a row names."""
        return self.reasons.get(reason, reason)


def load_tables(file: Path) -> Tables:
    """Read a file of scenarios."""
    return Tables.model_validate(yaml.load(file.read_text(), Loader=yaml.CSafeLoader))


def all_tables() -> list[Tables]:
    """Read all files of scenarios."""
    return [load_tables(file) for file in sorted(FOLDER.glob("*.yaml"))]


class _Cluster:
    """The cluster of a scenario, with what it takes to create its pods again."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.memory = Memory(machines=0, levels=tuple(map(_label, row.levels)), gpu_driver=_label(GPU_CLASS))
        self.stopped: set[str] = set()
        """Jobs of which a pod was preempted."""
        self._free = {name: list(range(node.gpus)) for name, node in row.nodes.items()}
        for name, node in row.nodes.items():
            labels = {_label(key): value for key, value in node.labels.items()}
            taints = [{"key": node.taint, "effect": "NoSchedule"}] if node.taint else []
            self.memory.machine(
                name, node.gpus, labels, _resources(node.amounts), taints=taints, unschedulable=node.cordoned
            )
            self._publish_devices(name, node.devices)
        for device_class in {device_class for node in row.nodes.values() for device_class in node.devices}:
            selectors = [{"cel": {"expression": f'device.driver == "{_label(device_class)}"'}}]
            self.memory.cache.dra.put_class({"metadata": {"name": device_class}, "spec": {"selectors": selectors}})
        for name, team in row.teams.items():
            self.memory.quota(name, team.guaranteed, team.borrow, team.weight, team.cpu)
        for namespace, claim in {(job.team, name) for job in row.jobs.values() for name in job.claims}:
            self._create_claim(namespace, claim)
        for running in (True, False):
            for job, number in self._pods():
                if running is (number < len(job[1].on) and job[1].on[number] is not None):
                    self.create(*job, number)

    def _publish_devices(self, node: str, devices: Mapping[str, int]) -> None:
        for device_class, count in devices.items():
            driver = _label(device_class)
            spec = {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"d{number}"} for number in range(count)],
            }
            self.memory.cache.dra.put_slice({"metadata": {"name": f"{driver}-{node}"}, "spec": spec})

    def _create_claim(self, team: str, name: str) -> None:
        claim = self.row.claims[name]
        request = {"name": "devices", "exactly": {"deviceClassName": claim.device_class, "count": claim.count}}
        users = [{"resource": "pods", "name": f"user-{n}", "uid": f"user-{n}"} for n in range(claim.users)]
        metadata = {"name": name, "namespace": team, "uid": name, "resourceVersion": "1"}
        status: dict[str, object] = {}
        if users:
            node = next(name for name, row in self.row.nodes.items() if claim.device_class in row.devices)
            place = {"driver": _label(claim.device_class), "pool": node}
            results = [{"request": "devices", **place, "device": f"d{number}"} for number in range(claim.count)]
            status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
        spec = {"devices": {"requests": [request]}}
        self.memory.cache.claims.put({"metadata": metadata, "spec": spec, "status": status})

    def _pods(self) -> Iterator[tuple[tuple[str, JobRow], int]]:
        for job in self.row.jobs.items():
            for number in range(job[1].pods):
                yield job, number

    def create(self, name: str, job: JobRow, number: int, *, again: bool = False) -> None:
        """Create a pod; `again`: after it was preempted."""
        what = job.each[number] if number < len(job.each) else job
        notes: dict[str, str] = {} if job.preemptible else {PREEMPTIBLE.name: "false"}
        labels: dict[str, str] = {}
        if job.pods > 1:
            labels = {names.GANG_LABEL: name}
            notes |= {GANG_SIZE.name: str(job.size or job.pods), JOB_INDEX.name: str(number)}
        if job.within:
            notes[WITHIN.name] = _label(job.within)
        share = what.gpus if what.gpus % 1 else 0
        if share:
            notes[GPU_SHARE.name] = str(share)
        node = None if again or number >= len(job.on) else job.on[number]
        spec: dict[str, object] = {"priority": job.priority}
        if node is not None:
            spec["nodeName"] = node
            notes[DEVICES.name] = ",".join(map(str, self._take(node, job, number)))
        if job.selector:
            spec["nodeSelector"] = {_label(key): value for key, value in job.selector.items()}
        if job.prefers:
            preferred = [
                {
                    "weight": weight,
                    "preference": {"matchExpressions": [{"key": _label(key), "operator": "In", "values": [value]}]},
                }
                for weight, key, value in job.prefers
            ]
            spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
        if job.tolerates:
            spec["tolerations"] = [{"key": job.tolerates, "operator": "Exists"}]
        if job.claims:
            spec["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in job.claims]
        pod, gpus, amounts = (
            self._pod(name, job, number),
            0 if share else int(what.gpus),
            _resources({"cpu": "0", "memory": "0", **what.amounts}),
        )
        self.memory.pod(job.team, pod, gpus, notes, labels, amounts, **spec)
        if node is not None:
            self.memory.mark_started(job.team, pod)

    def _take(self, node: str, job: JobRow, number: int) -> list[int]:
        if job.gpus % 1 and job.devices:
            index = job.devices[min(number, len(job.devices) - 1)]
            if index in self._free[node]:
                self._free[node].remove(index)
            return [index]
        count = max(1, int(job.gpus)) if job.gpus else 0
        return [self._free[node].pop() for _ in range(count)]

    @staticmethod
    def _pod(name: str, job: JobRow, number: int) -> str:
        return f"{name}-{number}" if job.pods > 1 else name

    def run(self) -> None:
        """Decide until nothing changes. Raises AssertionError if preemptions go on and on."""
        pods = {self._pod(*job, number): (*job, number) for job, number in self._pods()}
        for _ in range(MAX_ROUNDS):
            self.memory.settle()
            gone = self.memory.go() or self._restart_partial()
            self.memory.evictions.clear()
            if not gone:
                return
            for pod in gone:
                self.stopped.add(pods[pod][0])
                self.create(*pods[pod], again=True)
        raise AssertionError(f"still preempting after {MAX_ROUNDS} rounds: {gone}")

    def _restart_partial(self) -> list[str]:
        """Stop the gangs that are still partial, as the daemon does after its grace period."""
        partial = [unit for unit in self.memory.queue if unit.gang and is_partial(unit)]
        running = [pod for unit in partial for pod in unit.pods.values() if pod.node]
        for pod in running:
            self.memory.drop(pod.namespace, pod.name)
        return [pod.name for pod in running]

    def meets(self, name: str, outcome: Outcome) -> bool:
        """Return True if a job has this outcome."""
        job, where = self.row.jobs[name], self.memory.where()
        nodes = [where[pod] for number in range(job.pods) if (pod := self._pod(name, job, number)) in where]
        whole = len(nodes) == job.pods
        if isinstance(outcome, int):
            return len(nodes) == outcome
        if isinstance(outcome, dict):
            domains = {level: {self._domain(node, level) for node in nodes} for level in outcome}
            return whole and outcome == {level: len(found) for level, found in domains.items()}
        if outcome == "stopped":
            return name in self.stopped
        if outcome == "waits":
            return not nodes
        if outcome == "stays":
            return whole and name not in self.stopped
        return whole and (outcome == "runs" or set(nodes) == {outcome})

    def _domain(self, node: str, level: str) -> tuple[str, ...]:
        labels = self.row.nodes[node].labels
        return tuple(labels[each] for each in self.row.levels[: self.row.levels.index(level) + 1])

    def describe(self, name: str) -> str:
        """Render where a job's pods are."""
        job, where = self.row.jobs[name], self.memory.where()
        pods = [self._pod(name, job, number) for number in range(job.pods)]
        said = next((self.memory.said[pod] for pod in pods if pod not in where and pod in self.memory.said), "")
        nodes = ", ".join(where.get(pod, "-") for pod in pods)
        return f"{nodes}{' (was stopped)' if name in self.stopped else ''}{f': {said}' if said else ''}"


def _resources(amounts: Mapping[str, str]) -> dict[str, str]:
    return {name if name in ("cpu", "memory", "pods") else _label(name): amount for name, amount in amounts.items()}


def _label(key: str) -> str:
    return f"example.com/{key}"


def differences(row: Row, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Run a scenario, and return the jobs with another outcome."""
    cluster = _Cluster(row)
    cluster.run()
    return [
        f"{name}: {outcome!r}, is {cluster.describe(name)}"
        for name, outcome in outcomes.items()
        if not cluster.meets(name, outcome)
    ]


def words(text: str) -> str:
    """Return a text with single spaces and without markup, to look for a sentence in it."""
    return re.sub(r"\s+", " ", re.sub(r"[*`]|\]\([^)]*\)|\[", "", text))
