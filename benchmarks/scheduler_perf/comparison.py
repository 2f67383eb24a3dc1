"""Runs a case with kube-scheduler and with avactl on one API server, and says whether their outcomes agree."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import yaml

from avactl.kube.access import from_kubeconfig
from avactl.kube.client import Client
from benchmarks.clusters import SCHEDULERS, SYSTEM_NAMESPACE, running
from benchmarks.measure import cpu_seconds
from benchmarks.scheduler_perf.configurations import Case, ConfigurationError, Size, Workload, size_of
from benchmarks.scheduler_perf.executor import Executor, Measurement, StallError
from tools.controlplane import ControlPlane

STALL_S = 60.0
"""Seconds without a pod bound or attempted after which pods count as pending; kube-scheduler backs off for 10 s."""
MIN_RATE_RATIO = 0.1
"""avactl's pods per second, divided by kube-scheduler's, below which outcomes do not agree, although pods are bound."""
CONNECTIONS = 64
LEASE = "avactl-scheduler"
_ADMISSION = "ServiceAccount,TaintNodesByCondition,Priority,StorageObjectInUseProtection"
"""Off as in upstream's test, whose pods have numeric priorities and whose nodes no kubelet; the last one too, because
claims are removed between runs."""
_CONTROLLERS = "garbage-collector-controller,namespace-controller,resourceclaim-controller,serviceaccount-controller"
"""Those of upstream's test, and the one that tools/controlplane waits for."""
_GATE = re.compile(r'^kubernetes_feature_enabled\{name="(\w+)",stage="\w*"\} ([01])$', re.MULTILINE)

NOT_APPLICABLE: Mapping[str, str] = {
    "PublishResourceSlices": "no pod is scheduled: it measures when the scheduler inside the test program has read "
    "the ResourceSlices, which no API shows",
    "NodeDeclaredFeaturesEnabled": "replaces the list of node features inside kube-scheduler's test program; "
    "a kube-scheduler binary has no such list to replace",
}
BY_DESIGN: Mapping[str, str] = {}
"""Cases whose pods avactl leaves pending, with the sentence of docs/scheduler.md that says why."""


class Outcome(NamedTuple):
    """One scheduler's run of a workload."""

    measurement: Measurement
    pending: str
    """Why pods stay pending; empty if all that had to be bound were."""
    cpu_per_pod: float = 0.0
    """CPU seconds of the scheduler for each pod that it bound, measured or not; 0 if both schedulers ran."""

    @property
    def rate(self) -> float:
        """Measured pods per second; 0 without measured pods."""
        pods, seconds, _ = self.measurement
        return pods / seconds if seconds > 0 else 0.0

    def latency(self, share: float) -> float:
        """Return a percentile of the seconds from creation to binding; 0 without pods."""
        waits = self.measurement.latencies
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0


class Comparison(NamedTuple):
    """A case with both schedulers."""

    case: str
    workload: str
    size: Size
    outcomes: Mapping[str, Outcome]
    """By name of the scheduler; none of a case that does not apply."""
    reason: str = ""
    """Why a case does not apply."""
    measured: bool = True
    """False if only the outcome counts: both schedulers ran at the same time, or a workload of a few nodes."""

    @property
    def agrees(self) -> bool:
        """True if both schedulers bound all pods, or both did not."""
        return len({bool(outcome.pending) for outcome in self.outcomes.values()}) < 2

    @property
    def verdict(self) -> str:
        """What the table says: agrees, differs by design, not applicable, or a defect."""
        if self.reason:
            return f"not applicable: {self.reason}"
        sentence = BY_DESIGN.get(self.case)
        if self.agrees:
            pending = next(iter(self.outcomes.values())).pending
            if sentence is not None:
                return "defect: is listed as different by design, and agrees"
            if pending:
                return f"defect: {pending}"
            rates = {name: outcome.rate for name, outcome in self.outcomes.items()}
            if self.measured and rates["avactl"] < MIN_RATE_RATIO * rates["kube-scheduler"]:
                return (
                    f"defect: avactl binds {rates['avactl']:.2f} pods/s, kube-scheduler {rates['kube-scheduler']:.2f}"
                )
            return "agrees"
        if sentence is not None and self.outcomes["avactl"].pending:
            return f"differs by design: “{sentence}”"
        differing = next(name for name, outcome in self.outcomes.items() if outcome.pending)
        return f"defect: with {differing}, {self.outcomes[differing].pending}"


@contextmanager
def ready_scheduler(plane: ControlPlane, name: str, *arguments: str) -> Iterator[int]:
    """Run one of the schedulers for the length of the block, which begins when it schedules; yield its process.

    `arguments` are further ones of kube-scheduler, whose start waits until it is ready.
    """
    if name == "kube-scheduler":
        with running(plane, name, *arguments) as process:
            yield process
    else:
        with running(plane, name, "--lease", LEASE) as process:
            with plane.client() as kube:
                kube.wait_for(
                    "coordination.k8s.io/v1",
                    "Lease",
                    LEASE,
                    SYSTEM_NAMESPACE,
                    until=lambda lease: lease["spec"].get("holderIdentity"),
                )
            yield process


class Benchmark:
    """A control plane as upstream's test has it, and the comparisons on it."""

    def __init__(self, plane: ControlPlane, *, scheduler_per_run: bool = True) -> None:
        """Without `scheduler_per_run`, both schedulers run already, as nothing is measured."""
        self._plane, self._scheduler_per_run = plane, scheduler_per_run

    def feature_gates(self) -> dict[str, bool]:
        """Return the feature gates of the API server, which are kube-scheduler's too."""

        async def read() -> str:
            async with Client(from_kubeconfig(self._plane.kubeconfig), "scheduler-perf") as client:
                return (await client.exchange("GET", "/metrics", accept="text/plain")).content.decode()

        gates = {name: value == "1" for name, value in _GATE.findall(asyncio.run(read()))}
        if not gates:
            raise ConfigurationError("the API server shows no feature gates")
        return gates

    def compare(self, case: Case, workload: Workload) -> Comparison:
        """Run a workload with both schedulers, one after the other."""
        outcomes = {name: self._run(name, case, workload) for name in SCHEDULERS}
        size = size_of(case, workload)
        return Comparison(case.name, workload.name, size, outcomes, measured=self._scheduler_per_run)

    def _run(self, name: str, case: Case, workload: Workload) -> Outcome:
        scheduler: AbstractContextManager[int | None] = nullcontext()
        if self._scheduler_per_run:
            scheduler = ready_scheduler(self._plane, name, *_scheduler_arguments(self._plane, case))
        with scheduler as process:
            return asyncio.run(self._execute(name, process, case, workload))

    async def _execute(self, name: str, process: int | None, case: Case, workload: Workload) -> Outcome:
        pending = ""
        before = cpu_seconds(process) if process is not None else 0.0
        access = from_kubeconfig(self._plane.kubeconfig)
        async with Client(access, "scheduler-perf", connections=CONNECTIONS) as client:
            async with Executor(client, SCHEDULERS[name], STALL_S) as executor:
                try:
                    await executor.run(case, workload)
                except StallError as stall:
                    pending = str(stall)
                used = cpu_seconds(process) - before if process is not None else 0.0
            measurements = executor.measurements
            total = Measurement(
                sum(measurement.pods for measurement in measurements),
                sum(measurement.seconds for measurement in measurements),
                tuple(sorted(wait for measurement in measurements for wait in measurement.latencies)),
            )
            return Outcome(total, pending, used / max(executor.bound, 1))


@contextmanager
def scheduler_perf_plane() -> Iterator[ControlPlane]:
    """A control plane as upstream's test has it: nodes have no kubelet, so that the schedulers do most of the work."""
    arguments = {
        "kube-apiserver": [f"--disable-admission-plugins={_ADMISSION}"],
        "kube-controller-manager": [f"--controllers={_CONTROLLERS}"],
    }
    with ControlPlane(controller_manager=True, arguments=arguments) as plane, plane.client() as kube:
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}})
        yield plane


def _scheduler_arguments(plane: ControlPlane, case: Case) -> list[str]:
    """Return the arguments for the KubeSchedulerConfiguration of a case, which replaces other arguments."""
    if not case.scheduler_config_path:
        return []
    configuration = yaml.safe_load((case.folder / case.scheduler_config_path).read_text(encoding="utf-8"))
    configuration["clientConnection"] = {"kubeconfig": str(plane.kubeconfig), "qps": 1000, "burst": 2000}
    configuration["leaderElection"] = {"leaderElect": False}
    path = plane.layout.folder / "scheduler-config.yaml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return [f"--config={path}"]
