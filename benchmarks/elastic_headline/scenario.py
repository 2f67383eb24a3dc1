"""The runs: a control plane, avactl's scheduler, nodes whose pods are processes, and jobs as specs declare them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from avactl.kube.access import from_kubeconfig
from avactl.kube.client import Client
from avactl.program.manifest import Manifest
from benchmarks.clusters import POLICY, running
from benchmarks.elastic_headline import specs
from benchmarks.elastic_headline.kubelet import Kubelet, Life
from benchmarks.elastic_headline.specs import NAMESPACE, Job
from benchmarks.elastic_headline.timeline import SERVICE, Task, tasks
from tools.controlplane import ControlPlane, KubeClient

PATIENCE = 900.0
"""Seconds that a job may take."""
POLL = 0.1


class Run(NamedTuple):
    """One run, in Unix time."""

    submitted: Mapping[str, float]
    """By job."""
    ended: Mapping[str, float]
    """When the API server had the Job as complete; empty for jobs that were stopped."""
    tasks: list[Task]
    lives: list[Life]

    def first_task(self, job: str) -> float:
        """Return when a job began its first task."""
        return min(task.began for task in self.tasks if task.job == job)


class Cluster:
    """A cluster of CPUs, with what was submitted to it."""

    def __init__(self, kube: KubeClient, kubelet: Kubelet, timeline: Path) -> None:
        self.kube, self._kubelet, self._timeline = kube, kubelet, timeline
        self.submitted: dict[str, float] = {}

    async def submit(self, job: Job) -> None:
        """Create the objects of a job."""
        made = specs.objects({job.name: job.spec(str(self._timeline))})
        self.submitted[job.name] = time.time()
        await asyncio.to_thread(_apply, self.kube, made)

    async def serve(self, replicas: int) -> None:
        """Create the service."""
        await asyncio.to_thread(_apply, self.kube, specs.objects({SERVICE: specs.service(replicas)}))

    async def scale(self, replicas: int) -> None:
        """Change the number of the service's pods."""
        metadata = {"name": SERVICE, "namespace": NAMESPACE}
        body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas}}
        await asyncio.to_thread(self.kube.patch, body)

    async def complete(self, *jobs: str) -> dict[str, float]:
        """Wait until jobs are complete, and return when they were. Raises RuntimeError if one has failed."""
        ended: dict[str, float] = {}
        deadline = time.monotonic() + PATIENCE
        while len(ended) < len(jobs):
            for job in jobs:
                body = await asyncio.to_thread(self.kube.get, "batch/v1", "Job", f"{job}-worker", NAMESPACE)
                for each in body.get("status", {}).get("conditions") or ():
                    if each["type"] == "Failed":
                        raise RuntimeError(f"job {job} failed: {each}")
                    if each["type"] in ("Complete", "SuccessCriteriaMet"):
                        ended.setdefault(job, time.time())
            if time.monotonic() > deadline:
                raise RuntimeError(f"not complete after {PATIENCE:g} s: {set(jobs) - set(ended)}")
            await asyncio.sleep(POLL)
        return ended

    async def until(self, condition: Callable[[list[Task]], object]) -> None:
        """Wait for tasks of which something is true. Raises RuntimeError."""
        deadline = time.monotonic() + PATIENCE
        while not condition(self.tasks()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not so after {PATIENCE:g} s")
            await asyncio.sleep(POLL)

    def tasks(self) -> list[Task]:
        """Return all tasks that were begun so far."""
        return tasks(self._timeline, self._kubelet.lives, time.time())

    def lives(self) -> list[Life]:
        """Return the pods that run now."""
        return self._kubelet.running

    def finish(self, ended: Mapping[str, float]) -> Run:
        """Return the run; what has not ended ends now."""
        lives = [*self._kubelet.lives, *self.lives()]
        return Run(self.submitted, ended, tasks(self._timeline, lives, time.time()), lives)


@asynccontextmanager
async def cluster(nodes: int, cpus: int) -> AsyncIterator[Cluster]:
    """An empty cluster with the scheduler. Its nodes have `cpus` each, and a fifth of one more for job masters."""
    async with AsyncExitStack() as stack:
        # These nodes have no heartbeat.
        arguments = {"kube-controller-manager": ["--node-monitor-grace-period=24h"]}
        plane = stack.enter_context(ControlPlane(controller_manager=True, arguments=arguments))
        kube = stack.enter_context(plane.client())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="avactl-headline-")))
        timeline = folder / "timeline"
        timeline.mkdir()
        for number in range(nodes):
            kube.create(_node(number, cpus))
        _apply(kube, specs.platform())
        for name in (NAMESPACE, POLICY["systemNamespace"]):
            kube.apply(
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
            )
        while any(item["spec"].get("taints") for item in kube.list("v1", "Node")):
            await asyncio.sleep(POLL)
        stack.enter_context(running(plane, "avactl"))
        await _scheduled(kube)
        client = await stack.enter_async_context(Client(from_kubeconfig(plane.kubeconfig), "headline"))
        kubelet = Kubelet(client, NAMESPACE, folder / "pods", plane.kubeconfig)
        task = asyncio.create_task(kubelet.run())
        try:
            yield Cluster(kube, kubelet, timeline)
            if task.done():
                task.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def two_jobs(nodes: int, cpus: int, first: Job, second: Job, later: float) -> Run:
    """Submit two jobs, the second `later` seconds after the first, and run them to their ends."""
    async with cluster(nodes, cpus) as here:
        await here.submit(first)
        await asyncio.sleep(later)
        await here.submit(second)
        return here.finish(await here.complete(first.name, second.name))


async def day(nodes: int, cpus: int, job: Job, replicas: Callable[[float], int], seconds: float) -> tuple[Run, float]:
    """Run a job beside a service for a day of so many seconds, from when all slots were in use, which is returned.

    `replicas` is the number of the service's pods at a part of the day, from 0 to 1.
    """
    async with cluster(nodes, cpus) as here:
        await here.serve(replicas(0))
        await here.submit(job)
        wanted = nodes * cpus - replicas(0)
        await here.until(lambda found: len({task.worker for task in found}) >= wanted)
        began, current = time.time(), replicas(0)
        while (part := (time.time() - began) / seconds) < 1:
            if replicas(part) != current:
                current = replicas(part)
                await here.scale(current)
            await asyncio.sleep(POLL)
        return here.finish({}), began


def wave(least: int, most: int) -> Callable[[float], int]:
    """Return the number of pods over a day: fewest at its beginning and end, most at noon."""

    def replicas(part: float) -> int:
        return round(least + (most - least) * (1 - math.cos(2 * math.pi * part)) / 2)

    return replicas


async def _scheduled(kube: KubeClient) -> None:
    """Wait until the scheduler has bound a pod: its start is not measured."""
    container = {"name": "main", "image": "example.com/pause:1"}
    metadata = {"name": "probe", "namespace": "default"}
    account = {"name": "default", "namespace": "default"}
    kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    spec = {"schedulerName": "avactl", "containers": [container]}
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    deadline = time.monotonic() + PATIENCE
    while not kube.get("v1", "Pod", "probe", "default")["spec"].get("nodeName"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the scheduler has bound no pod in {PATIENCE:g} s")
        await asyncio.sleep(POLL)
    kube.request("DELETE", "/api/v1/namespaces/default/pods/probe", body={"gracePeriodSeconds": 0})


def _apply(kube: KubeClient, manifests: list[Manifest]) -> None:
    for manifest in manifests:
        kube.apply(manifest.body, field_manager="avactl")


def _node(number: int, cpus: int) -> dict[str, Any]:
    amounts = {"cpu": f"{cpus * 1000 + 200}m", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": None}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    labels = {"kubernetes.io/hostname": f"node-{number}"}
    metadata = {"name": f"node-{number}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
