"""Many small jobs, and a large one that does not fit: time until they run, or until the reason is reported.

    python -m benchmarks.jobs [jobs-4000] [refusal]

`jobs-4000`: 4,000 jobs of one GPU, each a gang of one pod, on 500 machines with 8; from the first create to the last
binding, as a watch shows it. `refusal`: on 500 busy machines, 2,000 such jobs wait while running ones end at a steady
rate. Then a job of 10 pods with 8 GPUs is created: from its first create to the PodScheduled conditions of all 10 with
the reason, as a watch shows them; repeated for other such jobs.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from avactl.kube.client import UnreachableError
from benchmarks.clusters import NAMESPACE, PATIENCE, SCHEDULERS, Bound, bar, cluster, create, create_pods, pod, running
from tools.controlplane import ControlPlane, KubeClient

NODES = 500
TRIES = 20
MEMBERS = 10
CHURN = 5.0
"""Jobs that end per second."""


def job(number: int, gpus: int = 1) -> dict[str, Any]:
    """A gang of one pod."""
    return pod(number, SCHEDULERS["avactl"], gpus, (f"job-{number}", 1))


def small_jobs(count: int = 4000) -> None:
    """Measure as many one-GPU jobs as there are GPUs."""
    print(f"\n{count} jobs of one pod with one GPU on {NODES} machines with 8")
    with cluster(NODES) as (plane, kube), running(plane, "avactl"):
        time.sleep(5.0)  # synced
        bound = Bound(plane, kube, count)
        began = time.monotonic()
        create_pods(plane, [job(number) for number in range(count)])
        created = time.monotonic() - began
        if not bound.done.wait(PATIENCE):
            raise RuntimeError(f"not all of {count} jobs were bound in {PATIENCE:g} s")
        taken = bound.last - began
    print(f"{'created in, s':28}{created:8.2f}")
    print(f"{'create to last bound, s':28}{taken:8.2f}")
    bar("jobs-4000", taken, 25.0, at_least=False, unit=" s")


class Told:
    """Observes the PodScheduled conditions of pods in its own thread."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.lock = threading.Condition()
        self.told: dict[str, tuple[float, str]] = {}
        """Time and message of the first condition that a pod waits."""
        self.closed = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        with self._plane.client() as kube:
            # The API server closes watches that do not keep up; a new watch starts with the current state.
            while not self.closed:
                with suppress(UnreachableError):
                    for event in kube.watch(f"/api/v1/namespaces/{NAMESPACE}/pods"):
                        self._look(event["object"])
                        if self.closed:
                            return

    def _look(self, item: dict[str, Any]) -> None:
        name = item["metadata"].get("name", "")
        for each in (item.get("status") or {}).get("conditions") or ():
            if each["type"] == "PodScheduled" and each["status"] == "False" and name not in self.told:
                with self.lock:
                    self.told[name] = (time.monotonic(), each.get("message", ""))
                    self.lock.notify_all()

    def wait(self, names: list[str]) -> float:
        """Wait until all of these have a condition; return the time of the last. Raises TimeoutError."""
        with self.lock:
            if not self.lock.wait_for(lambda: all(name in self.told for name in names), PATIENCE):
                missing = [name for name in names if name not in self.told]
                raise TimeoutError(f"{len(missing)} pods have no condition, for instance {missing[0]}")
            return max(self.told[name][0] for name in names)


class Churn:
    """Ends running jobs, one after the other, in its own thread."""

    def __init__(self, plane: ControlPlane, names: list[str]) -> None:
        self._plane, self._names = plane, names
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._plane.client() as kube:
            for name in self._names:
                if self._stop.wait(1 / CHURN):
                    return
                path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
                kube.request("DELETE", path, body={"gracePeriodSeconds": 0})


def refusal(others: int = 2000) -> None:
    """Measure a large job that does not fit, while others wait."""
    print(f"\na job of {MEMBERS} pods with 8 GPUs on {NODES} busy machines; {others} jobs of one GPU wait")
    with ExitStack() as stack:
        plane, kube = stack.enter_context(cluster(NODES))
        stack.enter_context(running(plane, "avactl"))
        bound = Bound(plane, kube, NODES * 8)
        create_pods(plane, [job(number) for number in range(NODES * 8)])
        if not bound.done.wait(PATIENCE):
            raise RuntimeError("the machines are not busy")
        told = Told(plane)
        waiting = range(NODES * 8, NODES * 8 + others)
        began = time.monotonic()
        create_pods(plane, [job(number) for number in waiting])
        all_told = told.wait([f"pod-{number}" for number in waiting]) - began
        with Churn(plane, [f"pod-{number}" for number in range(NODES * 8)]):
            times = [one_refusal(kube, told, number) for number in range(TRIES)]
        told.closed = True
        words = told.told["large-0-0"][1]
    print(f"{f'all {others} reported in, s':28}{all_told:8.2f}")
    print(f"{'median, s':28}{statistics.median(times):8.3f}")
    print(f"{f'worst of {TRIES}, s':28}{max(times):8.3f}")
    print(f"reported: {words}")
    bar("refusal", statistics.median(times), 0.2, at_least=False, unit=" s")


def one_refusal(kube: KubeClient, told: Told, number: int) -> float:
    """Create a large job; return the seconds until all of its pods have a condition. The job is removed."""
    pods = []
    for index in range(MEMBERS):
        each = pod(index, SCHEDULERS["avactl"], 8, (f"large-{number}", MEMBERS))
        each["metadata"]["name"] = f"large-{number}-{index}"
        pods.append(each)
    time.sleep(0.3)
    began = time.monotonic()
    create(kube, pods)
    names = [each["metadata"]["name"] for each in pods]
    taken = told.wait(names) - began
    for name in names:
        kube.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", body={"gracePeriodSeconds": 0})
    return taken


MEASUREMENTS: dict[str, Callable[[], None]] = {"jobs-4000": small_jobs, "refusal": refusal}


def main() -> None:
    """Run the measurements that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(MEASUREMENTS)} (default: all)")
    options = parser.parse_args()
    for name in options.what or MEASUREMENTS:
        if name not in MEASUREMENTS:
            parser.error(f"no such measurement: {name}; known: {', '.join(MEASUREMENTS)}")
        MEASUREMENTS[name]()


if __name__ == "__main__":
    main()
