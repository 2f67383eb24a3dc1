"""Latency from creation to binding for pods arriving at a steady rate, measured by one watch in its own process."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import orjson

from avactl.kube import access
from avactl.kube.client import Client
from benchmarks.clusters import NAMESPACE, PATIENCE, SCHEDULERS, bar, cluster, empty, pod, running

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def arriving(number: int, scheduler: str) -> dict[str, Any]:
    """Half of the pods take a GPU, half only CPUs: 12,000 of them fit 1,000 machines."""
    found = pod(number, scheduler, 1)
    if number % 2:
        found["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2", "memory": "8Gi"}}
    return found


def load(kubeconfig: Path, scheduler: str, rate: float, pods: int, found: Queue[float]) -> None:
    """Create pods at a rate; report the seconds it took."""

    async def run() -> None:
        async with Client(access.from_kubeconfig(kubeconfig), "load", connections=64) as client:
            began = time.monotonic()
            tasks = []
            for number in range(pods):
                ahead = began + number / rate - time.monotonic()
                if ahead > 0:
                    await asyncio.sleep(ahead)
                # On a busy machine the API server may be slow.
                item = client.request("POST", PODS, arriving(number, scheduler), timeout=PATIENCE)
                tasks.append(asyncio.ensure_future(item))
            await asyncio.gather(*tasks)
            found.put(time.monotonic() - began)

    asyncio.run(run())


def observe(kubeconfig: Path, pods: int, watching: Event, found: Queue[list[float]]) -> None:
    """Report the seconds from observing each pod's creation to observing its binding."""

    async def run() -> None:
        created: dict[str, float] = {}
        bound: dict[str, float] = {}
        async with Client(access.from_kubeconfig(kubeconfig), "observe") as client:
            version = (await client.request("GET", PODS, query={"limit": "1"}))["metadata"]["resourceVersion"]
            watching.set()
            while len(bound) < pods:
                async for lines in client.watch(PODS, {"watch": "1", "resourceVersion": version}):
                    now = time.monotonic()
                    for line in lines:
                        item = orjson.loads(line)["object"]
                        name, version = item["metadata"]["name"], item["metadata"]["resourceVersion"]
                        created.setdefault(name, now)
                        if item["spec"].get("nodeName"):
                            bound.setdefault(name, now)
                    if len(bound) >= pods:
                        break
        found.put([bound[name] - created[name] for name in bound])

    asyncio.run(run())


def measure(kubeconfig: Path, scheduler: str, rate: float, pods: int) -> tuple[list[float], float]:
    """Return the sorted seconds from creation to binding, and the actual arrival rate."""
    context = multiprocessing.get_context("spawn")
    watching = context.Event()
    waits: Queue[list[float]] = context.Queue()
    took: Queue[float] = context.Queue()
    observer = context.Process(target=observe, args=(kubeconfig, pods, watching, waits), daemon=True)
    loader = context.Process(target=load, args=(kubeconfig, scheduler, rate, pods, took), daemon=True)
    observer.start()
    try:
        if not watching.wait(PATIENCE):
            raise RuntimeError("the API server does not answer")
        loader.start()
        loader.join(PATIENCE)
        if loader.exitcode != 0:
            raise RuntimeError("the pods were not created")
        seconds = took.get(timeout=PATIENCE)
        return sorted(waits.get(timeout=PATIENCE)), pods / seconds
    finally:
        for process in (observer, loader):
            if process.pid is not None:
                process.terminate()
                process.join()


def arrivals(nodes: int = 1000, rate: float = 500.0, seconds: float = 24.0) -> None:
    """Measure pods that arrive at a rate for some time."""
    pods = round(rate * seconds)
    print(f"\npods arriving at {rate:g}/s for {seconds:g} s on {nodes} machines; seconds from create to bind; QPS 1000")
    print(f"{'':16}{'arrived/s':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'most':>10}")
    last = {}
    with cluster(nodes) as (plane, kube):
        for name, profile in SCHEDULERS.items():
            with running(plane, name):
                time.sleep(5.0)  # synced, leading
                waits, arrived = measure(plane.kubeconfig, profile, rate, pods)
            points = [waits[min(len(waits) - 1, round(part * len(waits)))] for part in (0.5, 0.9, 0.99, 1.0)]
            print(f"{name:16}{arrived:10.0f}" + "".join(f"{point:10.3f}" for point in points), flush=True)
            last[name] = points[2]
            empty(kube)
    bar("arrivals-p99", last["avactl"] / last["kube-scheduler"], 1.0, at_least=False)
