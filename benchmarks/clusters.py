"""Clusters for scheduler benchmarks: a control plane, kwok nodes, pods, and a running scheduler."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from avactl.kube.access import from_kubeconfig
from avactl.kube.client import Client, UnreachableError
from tools.controlplane import ControlPlane, KubeClient

NAMESPACE = "bench"
PATIENCE = 600.0
"""Timeout of one measurement in seconds."""
SILENCE = 5.0
"""Seconds without new events after which all are assumed to be written."""
SYSTEM_NAMESPACE = "avactl-system"
POLICY: dict[str, Any] = {
    "cluster": "bench",
    "gpuDriver": "gpu.nvidia.com",
    "levels": ["topology.kubernetes.io/rack"],
    "objective": "pack",
    "podGroups": True,
    "reconcile": "files",
    "schedulerName": "avactl",
    "systemNamespace": SYSTEM_NAMESPACE,
}
SCHEDULERS = {"kube-scheduler": "default-scheduler", "avactl": "avactl"}
WRITERS = 8
CONNECTIONS = 32


class Drained(NamedTuple):
    """One measurement."""

    pods: int
    seconds: float
    """Seconds from the first pod bound to the last."""
    events: int
    """Number of Scheduled events finally written; kube-scheduler drops those it cannot write fast enough."""
    events_seconds: float
    """Seconds from the first pod bound to the last event."""

    @property
    def rate(self) -> float:
        """Pods per second."""
        return self.pods / self.seconds


class Bound:
    """Observes bindings in its own thread."""

    def __init__(self, plane: ControlPlane, kube: KubeClient, pods: int) -> None:
        self._plane, self._pods = plane, pods
        self.first = self.last = 0.0
        self.done = threading.Event()
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        version = kube.request("GET", path, query={"limit": "1"}).body["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._watch, args=(path, version), daemon=True)
        self._thread.start()

    def _watch(self, path: str, version: str) -> None:
        seen: set[str] = set()
        with self._plane.client() as kube:
            # The API server closes watches that do not keep up.
            while not self.done.is_set():
                with suppress(UnreachableError):
                    for event in kube.watch(path, {"resourceVersion": version}):
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._look(event["object"], seen)
                        if self.done.is_set():
                            return

    def _look(self, item: dict[str, Any], seen: set[str]) -> None:
        name = item["metadata"]["name"]
        if item["spec"].get("nodeName") and name not in seen:
            seen.add(name)
            self.last = time.monotonic()
            self.first = self.first or self.last
            if len(seen) == self._pods:
                self.done.set()


def node(number: int) -> dict[str, Any]:
    """Return a machine with 8 GPUs, 32 machines per rack."""
    labels = {"kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/rack": f"rack-{number // 32}"}
    amounts = {"cpu": "96", "memory": "768Gi", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{number}", "labels": labels},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(number: int, scheduler: str, gpus: int, gang: tuple[str, int] | None = None) -> dict[str, Any]:
    """Return a pod with `gpus` GPUs."""
    requests = {"cpu": str(4 * gpus), "memory": f"{32 * gpus}Gi", "nvidia.com/gpu": str(gpus)}
    container = {
        "name": "main",
        "image": "registry.example.com/train:1",
        "resources": {"requests": requests, "limits": {"nvidia.com/gpu": str(gpus)}},
    }
    metadata: dict[str, Any] = {"name": f"pod-{number}", "namespace": NAMESPACE}
    if gang is not None:
        metadata["labels"] = {"avactl.dev/gang": gang[0]}
        metadata["annotations"] = {"avactl.dev/gang-size": str(gang[1])}
    spec = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def create(kube: KubeClient, objects: list[dict[str, Any]]) -> None:
    """Create many objects."""
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda item: kube.create(item, validation="Ignore"), objects))


def create_pods(plane: ControlPlane, pods: list[dict[str, Any]]) -> None:
    """Create pods as fast as the API server accepts them, so that creation hardly affects the measurement."""

    async def run() -> None:
        todo = iter(pods)
        async with Client(from_kubeconfig(plane.kubeconfig), "benchmark", connections=CONNECTIONS) as client:

            async def work() -> None:
                for item in todo:
                    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
                    await client.request("POST", path, item, timeout=PATIENCE)

            await asyncio.gather(*(work() for _ in range(CONNECTIONS)))

    asyncio.run(run())


def empty(kube: KubeClient) -> None:
    """Remove all pods and events."""
    for path in (f"/api/v1/namespaces/{NAMESPACE}/pods", f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"):
        while kube.request("GET", path, query={"limit": "1"}).body["items"]:
            with suppress(UnreachableError):  # too slow for one request; the server continues
                kube.request("DELETE", path, body={"gracePeriodSeconds": 0})
            time.sleep(0.5)


@contextmanager
def cluster(nodes: int, machine: Callable[[int], dict[str, Any]] = node) -> Iterator[tuple[ControlPlane, KubeClient]]:
    """A control plane with ready machines."""
    with ControlPlane(controller_manager=True, kwok=True) as plane, plane.client() as kube:
        for name in (NAMESPACE, SYSTEM_NAMESPACE):
            kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        account = {"name": "default", "namespace": NAMESPACE}
        kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        create(kube, [machine(number) for number in range(nodes)])
        while any(item["spec"].get("taints") for item in kube.list("v1", "Node")):
            time.sleep(1.0)
        yield plane, kube


@contextmanager
def running(plane: ControlPlane, name: str, *arguments: str) -> Iterator[int]:
    """Run one of the schedulers for the length of the block, and yield its process; `arguments` are further ones."""
    if name == "kube-scheduler":
        plane.start("kube-scheduler", *arguments)
        try:
            yield plane.pid("kube-scheduler")
        finally:
            plane.stop("kube-scheduler")
        return
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.json"
        policy.write_bytes(orjson.dumps(POLICY))
        command = [sys.executable, "-m", "avactl.cli.main", "scheduler", "--config", str(policy)]
        command += ["--kubeconfig", str(plane.kubeconfig), "--qps", "1000", "--burst", "2000", *arguments]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log)
        try:
            yield process.pid
            if process.poll() is not None:
                raise RuntimeError((Path(folder) / "log").read_text()[-2000:])
        finally:
            process.terminate()
            process.wait()


def drain(
    plane: ControlPlane,
    kube: KubeClient,
    name: str,
    pods: list[dict[str, Any]],
    created: Callable[[], None] = lambda: None,
) -> Drained:
    """Create pods, start a scheduler, and wait until all pods are bound and their events written.

    `created` waits for what controllers create for the pods.
    """
    create(kube, pods)
    created()
    bound = Bound(plane, kube, len(pods))
    with running(plane, name):
        if not bound.done.wait(PATIENCE):
            raise RuntimeError(f"{name} did not bind {len(pods)} pods in {PATIENCE:g} s")
        events, last = 0, time.monotonic()
        while events < len(pods) and time.monotonic() - last < SILENCE:
            time.sleep(0.2)
            now = scheduled_events(kube)
            if now != events:
                events, last = now, time.monotonic()
    empty(kube)
    return Drained(len(pods), bound.last - bound.first, events, last - bound.first)


def scheduled_events(kube: KubeClient) -> int:
    """Count the Scheduled events."""
    path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
    body = kube.request("GET", path, query={"limit": "1"}).body
    return len(body["items"]) + int(body["metadata"].get("remainingItemCount") or 0)


def bar(name: str, value: float, bound: float, at_least: bool, unit: str = "") -> None:
    """Print the bar line of a measurement."""
    good = value >= bound if at_least else value <= bound
    word = "least" if at_least else "most"
    print(f"bar {name}: {value:.2f}{unit} (at {word} {bound:.2f}{unit}) {'ok' if good else 'short'}", flush=True)


async def run_concurrently(tasks: Iterable[Awaitable[object]], limit: int = 16) -> None:
    """Await all tasks, at most `limit` at a time. Each is taken from the iterable when its turn comes."""
    todo = iter(tasks)

    async def work() -> None:
        for task in todo:
            await task

    async with asyncio.TaskGroup() as group:
        for _ in range(limit):
            group.create_task(work())
