"""Honest pods beside hostile objects: 10,000 odd pods, claims, ConfigMaps, budgets and nodes, on the real API server.

    python -m benchmarks.hostile [--objects 10000] [--honest 500] [--nodes 100] [--seed 1]

Honest pods are created one after the other, first while nothing else happens, then while several writers create hostile
objects; each is deleted once it is bound. Seconds are from the API server's answer to the creation to a read that shows
the pod bound. Memory is the peak of the scheduler's process (VmHWM). Source of the objects: `hostile_objects`.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from pathlib import Path

from benchmarks.clusters import NAMESPACE, SCHEDULERS, cluster, pod, running
from benchmarks.hostile_objects import Hostile
from benchmarks.measure import Bar, bar, console, peak_memory
from tools.controlplane import ControlPlane, KubeClient

WRITERS = 3
PATIENCE = 60.0
MEMORY = 400
"""Most MB of the scheduler, with 100 nodes and 10,000 hostile objects."""


def schedule(kube: KubeClient, name: str, number: int) -> float:
    """Create a pod, wait until it is bound, and delete it. Returns the seconds from creation to binding."""
    item = pod(number, SCHEDULERS["avactl"], 1)
    item["metadata"]["name"] = name
    kube.create(item, validation="Ignore")
    began = time.monotonic()
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
    while not kube.request("GET", path).body["spec"].get("nodeName"):
        if time.monotonic() - began > PATIENCE:
            raise TimeoutError(f"{name} was not bound within {PATIENCE:g} s")
        time.sleep(0.005)
    seconds = time.monotonic() - began
    kube.request("DELETE", path, body={"gracePeriodSeconds": 0})
    return seconds


def attack(plane: ControlPlane, objects: int, seed: int) -> list[threading.Thread]:
    """Start writers of hostile objects, each with a namespace of its own."""

    def write(number: int) -> None:
        with plane.client() as kube:
            Hostile(kube, f"hostile-{number}", random.Random(seed * 100 + number)).make(objects // WRITERS)

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    return threads


def percentile(waits: list[float], part: float) -> float:
    """A percentile of some seconds."""
    return sorted(waits)[min(len(waits) - 1, round(part * len(waits)))]


def scheduler_memory() -> int:
    """Peak memory of the scheduler's process in MB; 0 if none runs."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"avactl.cli.main" in words and b"scheduler" in words:
                    return peak_memory(int(folder.name)) // 2**20
            except OSError:
                continue
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--honest", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with cluster(options.nodes) as (plane, kube), running(plane, "avactl"):
        schedule(kube, "first", 0)  # the scheduler is synced, and leads
        alone = [schedule(kube, f"alone-{number}", number) for number in range(min(100, options.honest))]
        threads = attack(plane, options.objects, options.seed)
        beside: list[float] = []
        while len(beside) < options.honest or any(thread.is_alive() for thread in threads):
            beside.append(schedule(kube, f"beside-{len(beside)}", len(beside)))
            if len(beside) % 100 == 0:
                p99 = percentile(beside, 0.99)
                console.print(f"{len(beside)} honest pods bound, p99 {p99:.2f} s, slowest {max(beside):.2f} s")
            time.sleep(0.1)
        memory = scheduler_memory()
    print(f"{len(alone)} pods alone: p50 {percentile(alone, 0.5):.3f} s, p99 {percentile(alone, 0.99):.3f} s")
    p50, p99 = percentile(beside, 0.5), percentile(beside, 0.99)
    print(f"{len(beside)} pods beside {options.objects} hostile objects: p50 {p50:.3f} s, p99 {p99:.3f} s")
    bar(Bar("hostile-p99", p99, 2.0, " s"))
    bar(Bar("hostile-memory", memory or None, MEMORY, " MB", 0))


if __name__ == "__main__":
    main()
