"""Links and waits of jobs with 1 to 8 GPUs on two-socket machines in a real control plane, beside kube-scheduler.

    python -m benchmarks.links_live [--jobs 10000] [--nodes 40] [--load 0.9] [--seconds 300] [--seed 1]

The stream of `benchmarks.links` in accelerated time: all jobs arrive within `--seconds`. Each is a pod that is deleted
at the end of its run time. Both schedulers get the same arrivals. avactl's annotation records a pod's GPUs; with
kube-scheduler they are random, as with a device plugin without topology. A pair on different sockets was avoidable if
another subset of the GPUs free on that machine had fewer of them; GPUs freed less than 0.25 s before do not count,
because the decision may be older. On a busy machine it may be older still, so twice the longest recent delay between a
deletion and its event is added.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import orjson

from avactl.compiler.validate import validate_document
from avactl.contracts import names
from avactl.contracts.document import dump
from avactl.contracts.pod_annotations import DEVICES, LINK
from avactl.contracts.scheduling import POOL_KEY, MachineFacts, PoolAllocation, PoolFacts
from avactl.hardware import library
from avactl.hardware.machine import Machine
from avactl.hardware.topology import gpus_in_mask, topology_of
from avactl.kinds.machine_type import MachineType
from avactl.kube.access import from_kubeconfig
from avactl.kube.client import MERGE, ApiError, Client
from avactl.program.capacity.machine_hardware import machine_facts
from avactl.spec.documents.yaml import load_yaml
from benchmarks.clusters import NAMESPACE, POLICY, SCHEDULERS, running
from benchmarks.links import CPU, HOUR, MACHINE, MEMORY, Crossed, Job, Result, slowest, stream
from benchmarks.measure import Bar, bar
from tools.controlplane import ControlPlane

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
POOL = "v100"
SETTLED = 0.25
"""Seconds for which a GPU must have been free for the scheduler to know it."""
LATELY = 5.0
"""Seconds over which the slowest deletion determines the delay of events."""
PATIENCE = 300.0
"""Seconds after the last arrival by which all jobs must have run."""


class Held(NamedTuple):
    """The GPUs of a pod."""

    node: str
    gpus: int


class Side:
    """One scheduler's run of the stream."""

    def __init__(self, plane: ControlPlane, scheduler: str, machine: Machine, jobs: list[Job], pace: float) -> None:
        """`pace`: seconds of the stream per real second."""
        self._plane, self._scheduler, self._jobs, self._pace = plane, scheduler, jobs, pace
        self._facts = topology_of(machine)
        self._crossed = Crossed(self._facts)
        self._rng = Random(1)
        self._free: dict[str, int] = {}
        self._freed: dict[tuple[str, int], float] = {}
        self._deleted: dict[str, float] = {}
        self._lags: deque[tuple[float, float]] = deque()
        """Times at which deletions were observed, and their delays."""
        self._held: dict[str, Held] = {}
        self._created: dict[str, float] = {}
        self._waits: dict[str, float] = {}
        self._speeds: list[float] = []
        self._small: list[bool] = []
        self._avoidable = 0
        self._gone = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, nodes: int) -> Result:
        """Run the stream. Raises TimeoutError."""
        self._free = {f"node-{number}": 0xFF for number in range(nodes)}
        async with Client(from_kubeconfig(self._plane.kubeconfig), "benchmark") as self._client:
            page = await self._client.request("GET", PODS, query={"limit": "1"})
            watch = asyncio.ensure_future(self._watch(page["metadata"]["resourceVersion"]))
            began = time.monotonic()
            for index, job in enumerate(self._jobs):
                await asyncio.sleep(max(0.0, began + job.arrives / self._pace - time.monotonic()))
                self._spawn(self._create(index, job))
            async with asyncio.timeout(PATIENCE):
                while self._gone < len(self._jobs) and not watch.done():
                    await asyncio.sleep(0.1)
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        waits = list(self._waits.values())
        of_8 = [wait for name, wait in self._waits.items() if self._job(name).gpus == 8]
        return Result(_mean(self._speeds), _mean(self._small), self._avoidable, _mean(waits), _mean(of_8))

    def _job(self, name: str) -> Job:
        return self._jobs[int(name.rpartition("-")[2])]

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    async def _create(self, index: int, job: Job) -> None:
        name = f"{self._scheduler}-{index}"
        amounts = {"nvidia.com/gpu": str(job.gpus)}
        requests = {"cpu": f"{CPU * job.gpus}m", "memory": str(MEMORY * job.gpus), **amounts}
        container = {"name": "main", "image": "x", "resources": {"requests": requests, "limits": amounts}}
        notes = {LINK.name: "pcieSwitch"} if job.gpus > 1 else {}
        spec = {"schedulerName": SCHEDULERS[self._scheduler], "containers": [container]}
        self._created[name] = time.monotonic()
        await self._client.send("POST", PODS, {"metadata": {"name": name, "annotations": notes}, "spec": spec})

    async def _watch(self, version: str) -> None:
        # The API server closes watches that do not keep up: resume from the last event.
        while True:
            async for lines in self._client.watch(PODS, {"watch": "1", "resourceVersion": version}):
                for line in filter(None, lines):
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"the watch of pods: {event['object'].get('message')}")
                    self._look(event["type"], event["object"])
                    version = event["object"]["metadata"]["resourceVersion"]

    def _look(self, kind: str, item: dict[str, Any]) -> None:
        name, node = item["metadata"]["name"], item["spec"].get("nodeName")
        if kind == "DELETED":
            held = self._held.pop(name)
            self._free[held.node] |= held.gpus
            now = time.monotonic()
            self._lags.append((now, now - self._deleted.pop(name)))
            self._freed.update({(held.node, gpu): now for gpu in gpus_in_mask(held.gpus)})
            self._gone += 1
        elif node and name not in self._held:
            self._started(name, node, item)

    def _started(self, name: str, node: str, item: dict[str, Any]) -> None:
        job, now, free = self._job(name), time.monotonic(), self._free[node]
        self._waits[name] = (now - self._created[name]) * self._pace
        if self._scheduler == "avactl":
            text = item["metadata"]["annotations"][DEVICES.name]
            gpus = sum(1 << int(index) for index in text.split(","))
            settled = now - SETTLED - 2 * self._lag(now)
            known = sum(1 << gpu for gpu in gpus_in_mask(free) if self._freed.get((node, gpu), 0.0) < settled)
        else:
            gpus = sum(1 << gpu for gpu in self._rng.sample(gpus_in_mask(free), job.gpus))
            known = free
        if gpus & ~free:
            raise RuntimeError(f"{name} got GPUs of {node} that others have")
        self._free[node] = free & ~gpus
        self._held[name] = Held(node, gpus)
        if job.gpus > 1:
            self._speeds.append(slowest(self._facts, gpus))
            self._avoidable += self._crossed.pairs(gpus) - self._crossed.fewest(known | gpus, job.gpus)
        if 2 <= job.gpus <= 4:
            self._small.append(self._crossed.pairs(gpus) > 0)
        self._spawn(self._end(name, job.runs / self._pace))

    def _lag(self, now: float) -> float:
        """Return the longest delay of recent deletions, in seconds."""
        while self._lags and self._lags[0][0] < now - LATELY:
            self._lags.popleft()
        return max((lag for _, lag in self._lags), default=0.0)

    async def _end(self, name: str, after: float) -> None:
        await asyncio.sleep(after)
        self._deleted[name] = time.monotonic()
        await self._client.send("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})


def _mean(values: list[float] | list[bool]) -> float:
    return sum(values) / max(1, len(values))


async def prepare(plane: ControlPlane, nodes: int, facts: MachineFacts, machine: Machine) -> None:
    """Create machines of the type, and the compiled configuration of their pool."""
    async with Client(from_kubeconfig(plane.kubeconfig), "benchmark") as client:
        system = POLICY["systemNamespace"]
        for name in (NAMESPACE, system):
            await client.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        await client.send("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
        allocation = PoolAllocation(method="devicePlugin", resource="nvidia.com/gpu")
        pool = PoolFacts(pool=POOL, allocation=allocation, machine=facts)
        metadata = {"name": "pool", "labels": {names.CONFIG_LABEL: "topology"}}
        data = {POOL_KEY: dump(pool)}
        await client.send("POST", f"/api/v1/namespaces/{system}/configmaps", {"metadata": metadata, "data": data})
        amounts = {
            "cpu": str(int(machine.cpu)),
            "memory": str(machine.memory),
            "pods": "110",
            "nvidia.com/gpu": "8",
        }
        labels = {names.POOL_LABEL: POOL, names.GPU_LABEL: machine.gpu}
        for number in range(nodes):
            metadata = {"name": f"node-{number}", "labels": labels}
            status = {"capacity": amounts, "allocatable": amounts}
            try:
                await client.send("POST", "/api/v1/nodes", {"metadata": metadata, "status": status})
            except ApiError as error:
                raise RuntimeError(str(error)) from None
            # New nodes have a taint until a controller removes it: there is none here.
            path = f"/api/v1/nodes/node-{number}"
            await client.send("PATCH", path, {"spec": {"taints": None}}, content_type=MERGE)


def main() -> None:
    """Run the stream on both sides, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs that run")
    parser.add_argument("--nodes", type=int, default=40, help="machines")
    parser.add_argument("--load", type=float, default=0.9, help="part of the GPUs that jobs ask for in the mean")
    parser.add_argument("--seconds", type=float, default=300.0, help="in which all jobs arrive")
    parser.add_argument("--seed", type=int, default=1, help="of the stream")
    options = parser.parse_args()
    documents, _ = load_yaml(library.display_path(MACHINE), library.read(MACHINE))
    resource = validate_document(documents[0])
    assert isinstance(resource, MachineType)
    facts = machine_facts(resource.spec)
    machine = Machine.from_facts(facts)
    jobs = stream(options.jobs, options.nodes, options.load, Random(options.seed))
    pace = jobs[-1].arrives / options.seconds
    print(
        f"{options.jobs} jobs on {options.nodes} {MACHINE}, {options.load:.0%} load; an hour takes {HOUR / pace:.1f} s"
    )
    results = {}
    with ControlPlane() as plane:
        asyncio.run(prepare(plane, options.nodes, facts, machine))
        for name in ("avactl", "kube-scheduler"):
            with running(plane, name):
                time.sleep(3.0)  # synced
                results[name] = asyncio.run(Side(plane, name, machine, jobs, pace).run(options.nodes))
    ours, theirs = results["avactl"], results["kube-scheduler"]
    print(f"{'':24}{'avactl':>10}{'kube-scheduler':>16}")
    for name, mine, other in (
        ("slowest pair, GB/s", f"{ours.bandwidth:.2f}", f"{theirs.bandwidth:.2f}"),
        ("2 to 4 GPUs, 2 sockets", f"{ours.crossing:.1%}", f"{theirs.crossing:.1%}"),
        ("avoidable pairs", f"{ours.avoidable}", f"{theirs.avoidable}"),
        ("wait, s of the stream", f"{ours.wait:.0f}", f"{theirs.wait:.0f}"),
        ("wait of 8 GPUs, s", f"{ours.wait_8:.0f}", f"{theirs.wait_8:.0f}"),
    ):
        print(f"{name:24}{mine:>10}{other:>16}")
    ratio = ours.bandwidth / theirs.bandwidth
    bar(Bar("live-avoidable-pairs", ours.avoidable, 0, digits=0))
    print(f"bar live-bandwidth-ratio: {ratio:.2f} (at least 1.50) {'ok' if ratio >= 1.5 else 'short'}")
    short = "ok" if ours.wait_8 < theirs.wait_8 else "short"
    print(f"bar live-wait-8-seconds: {ours.wait_8:.0f} (below {theirs.wait_8:.0f}) {short}")


if __name__ == "__main__":
    main()
