"""The scheduler beside kube-scheduler: same control plane, kwok nodes, pods and client QPS, in one run.

    python -m benchmarks.scheduler [throughput-1000] [throughput-5000] [dra-1000] [dra-5000] [arrivals] [gang-512]

Without a name: all. Each measurement starts with empty machines. Pods to drain exist before the start; the clock runs
from the first pod bound to the last one, as a watch shows them. The time of the last event is reported too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from benchmarks import arrivals, devices
from benchmarks.clusters import PATIENCE, SCHEDULERS, Bound, bar, cluster, create, drain, empty, pod, running


def throughput(nodes: int, pods: int) -> None:
    """Measure one-GPU pods, created first and then drained."""
    print(f"\n{pods} pods of 1 GPU on {nodes} machines with 8, created first, then drained; client QPS 1000")
    print(f"{'':16}{'pods/s':>10}{'bound in s':>12}{'events':>8}{'in s':>8}")
    rates = {}
    with cluster(nodes) as (plane, kube):
        for name, profile in SCHEDULERS.items():
            found = drain(plane, kube, name, [pod(number, profile, 1) for number in range(pods)])
            rates[name] = found.rate
            print(
                f"{name:16}{found.rate:10.0f}{found.seconds:12.2f}{found.events:8}{found.events_seconds:8.2f}",
                flush=True,
            )
    bar(f"throughput-{nodes}", rates["avactl"] / rates["kube-scheduler"], 2.0, at_least=True)


def gang(nodes: int = 1000, members: int = 512) -> None:
    """Measure a gang of whole machines, from first create to last bound; kube-scheduler gets independent pods."""
    print(f"\na gang of {members} pods of 8 GPUs on {nodes} machines; kube-scheduler: as many independent pods")
    print(f"{'':16}{'create to last bound, s':>24}")
    times = {}
    with cluster(nodes) as (plane, kube):
        for name, profile in SCHEDULERS.items():
            group = ("gang", members) if name == "avactl" else None
            with running(plane, name):
                time.sleep(5.0)  # synced, leading
                bound = Bound(plane, kube, members)
                began = time.monotonic()
                create(kube, [pod(number, profile, 8, group) for number in range(members)])
                if not bound.done.wait(PATIENCE):
                    raise RuntimeError(f"{name} did not bind {members} pods in {PATIENCE:g} s")
                times[name] = bound.last - began
                print(f"{name:16}{times[name]:24.2f}", flush=True)
            empty(kube)
    bar(f"gang-{members}", times["avactl"] / times["kube-scheduler"], 1.5, at_least=False)


MEASUREMENTS: dict[str, Callable[[int], None]] = {
    "throughput-1000": lambda pods: throughput(1000, pods),
    "throughput-5000": lambda pods: throughput(5000, pods),
    "dra-1000": lambda pods: devices.throughput(1000, pods),
    "dra-5000": lambda pods: devices.throughput(5000, pods),
    "arrivals": lambda _: arrivals.arrivals(),
    "gang-512": lambda _: gang(),
}


def main() -> None:
    """Run the named measurements, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(MEASUREMENTS)} (default: all)")
    parser.add_argument("--pods", type=int, default=5000, help="pods of the throughput measurements")
    options = parser.parse_args()
    for name in options.what or MEASUREMENTS:
        if name not in MEASUREMENTS:
            parser.error(f"no such measurement: {name}; known: {', '.join(MEASUREMENTS)}")
        MEASUREMENTS[name](options.pods)


if __name__ == "__main__":
    main()
