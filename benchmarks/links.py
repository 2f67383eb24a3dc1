"""Links and waits of jobs with 1 to 8 GPUs that come and go on two-socket machines, beside kube-scheduler's scoring.

    python -m benchmarks.links [--jobs 10000] [--nodes 40] [--load 0.9] [--seed 1]

Both sides get the same jobs at the same times, and both retry waiting jobs, oldest first, whenever one ends. The peer
is kube-scheduler's default scoring: NodeResourcesFit by LeastAllocated over CPU and memory, and
NodeResourcesBalancedAllocation, of equal weight, with a random choice among the best nodes
(https://kubernetes.io/docs/reference/scheduling/config/); its GPUs are random, as with a device plugin without
topology. Time is simulated.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import NamedTuple

import numpy as np

from avactl.compiler.validate import validate_document
from avactl.hardware import library
from avactl.hardware.machine import Machine
from avactl.hardware.placement.allocation import AllocationState, Booking, Node
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer
from avactl.hardware.topology import Topology, gpus_in_mask, topology_of
from avactl.kinds.machine_type import MachineType
from avactl.program.capacity.machine_hardware import machine_facts
from avactl.spec.documents.yaml import load_yaml

MACHINE = "v100-pcie-8"
SIZES = {1: 30, 2: 20, 3: 5, 4: 20, 5: 2, 6: 4, 7: 1, 8: 18}
"""Frequency of jobs by number of GPUs: mostly powers of two, as in Jeon et al., "Analysis of Large-Scale Multi-Tenant
GPU Clusters for DNN Training Workloads", USENIX ATC'19, and sometimes any size."""
CPU, MEMORY = 8000, 80 * 2**30
"""CPU milli and memory bytes per GPU."""
HOUR = 3600.0


class Job(NamedTuple):
    """One job of the stream."""

    arrives: float
    runs: float
    gpus: int

    @property
    def request(self) -> Request:
        link = "pcieSwitch" if self.gpus > 1 else "any"
        return Request((CPU * self.gpus, MEMORY * self.gpus), self.gpus, link=link)


class Result(NamedTuple):
    """Results of one side."""

    bandwidth: float
    """Mean speed of the slowest pair of jobs with several GPUs, GB/s."""
    crossing: float
    """Fraction of the jobs of 2 to 4 GPUs with a pair on different sockets."""
    avoidable: int
    """Pairs on different sockets that another free subset of the chosen node would have avoided."""
    wait: float
    """Mean wait of all jobs, seconds."""
    wait_8: float
    """Mean wait of jobs of 8 GPUs."""


Choose = Callable[[AllocationState, Request], Booking | None]


def machine() -> Machine:
    """The shipped machine type."""
    documents, _ = load_yaml(library.display_path(MACHINE), library.read(MACHINE))
    resource = validate_document(documents[0])
    assert isinstance(resource, MachineType)
    return Machine.from_facts(machine_facts(resource.spec))


def stream(count: int, nodes: int, load: float, rng: Random) -> list[Job]:
    """Return jobs that request `load` of all GPUs on average: random arrivals, log-normal run times around an hour."""
    sizes = rng.choices(list(SIZES), list(SIZES.values()), k=count)
    mean = sum(size * weight for size, weight in SIZES.items()) / sum(SIZES.values())
    rate = load * nodes * 8 / (mean * HOUR)
    jobs, now = [], 0.0
    for size in sizes:
        now += rng.expovariate(rate)
        jobs.append(Job(now, HOUR * rng.lognormvariate(-0.5, 1.0), size))
    return jobs


def engine() -> Choose:
    """Return avactl's engine, which learns the expected workload from arrivals."""
    scorers: list[Scorer] = []

    def choose(state: AllocationState, request: Request) -> Booking | None:
        if not scorers:
            scorers.append(Scorer(state))
        choice = scorers[0].choose(request)
        return None if choice is None else choice.booking(request)

    def learning(state: AllocationState, request: Request) -> Booking | None:
        booking = choose(state, request)
        if booking is not None:
            scorers[0].learn(request)
        return booking

    return learning


def kube_scheduler(rng: Random) -> Choose:
    """Return default scoring with random devices."""

    def choose(state: AllocationState, request: Request) -> Booking | None:
        slots = slice(0, state.size)
        after = state.free[slots] - np.array(request.amounts)
        free = np.array([mask.bit_count() for mask in state.whole[slots].tolist()])
        fits = np.flatnonzero((after >= 0).all(1) & (free >= request.gpus))
        if not fits.size:
            return None
        left = after[fits] / state.capacity[fits]
        # Each plugin's score is a whole number from 0 to 100; the deviation of two fractions is half their difference.
        least = (100 * left).astype(int).sum(1) // 2
        balanced = (100 * (1 - np.abs(left[:, 0] - left[:, 1]) / 2)).astype(int)
        score = least + balanced
        node = int(rng.choice(fits[score == score.max()].tolist()))
        gpus = rng.sample(gpus_in_mask(int(state.whole[node])), request.gpus)
        return Booking(node, request.amounts, sum(1 << gpu for gpu in gpus))

    return choose


def run(hardware: Machine, nodes: int, jobs: list[Job], choose: Choose) -> Result:
    """Simulate a stream."""
    facts = topology_of(hardware)
    state = AllocationState(("cpu", "memory"))
    for index in range(nodes):
        state.put_node(Node(f"node-{index}", (int(hardware.cpu * 1000), hardware.memory), 8, hardware.gpu, hardware))
    crossed = Crossed(facts)
    ends: list[tuple[float, int]] = []
    waiting: list[int] = []
    waits = [0.0] * len(jobs)
    speeds: list[float] = []
    small: list[bool] = []
    avoidable = 0

    def start(index: int, now: float) -> bool:
        nonlocal avoidable
        job = jobs[index]
        booking = choose(state, job.request)
        if booking is None:
            return False
        free = int(state.whole[booking.node])
        state.book(index, booking)
        heapq.heappush(ends, (now + job.runs, index))
        waits[index] = now - job.arrives
        if job.gpus > 1:
            speeds.append(slowest(facts, booking.gpus))
            avoidable += crossed.pairs(booking.gpus) - crossed.fewest(free, job.gpus)
        if 2 <= job.gpus <= 4:
            small.append(crossed.pairs(booking.gpus) > 0)
        return True

    def finish(until: float) -> None:
        while ends and ends[0][0] <= until:
            now, index = heapq.heappop(ends)
            state.release(index)
            # A size that does not fit once does not fit later in the queue either: nothing is freed meanwhile.
            full: set[int] = set()
            for other in list(waiting):
                size = jobs[other].gpus
                if size in full:
                    continue
                if start(other, now):
                    waiting.remove(other)
                else:
                    full.add(size)

    for index, job in enumerate(jobs):
        finish(job.arrives)
        if not start(index, job.arrives):
            waiting.append(index)
    finish(math.inf)
    of_8 = [wait for wait, job in zip(waits, jobs, strict=True) if job.gpus == 8]
    return Result(_mean(speeds), _mean(small), avoidable, _mean(waits), _mean(of_8))


def slowest(facts: Topology, gpus: int) -> float:
    """Return the speed of the slowest pair of a set of GPUs, GB/s."""
    return min(facts.bandwidth(i, j) for i, j in combinations(gpus_in_mask(gpus), 2))


class Crossed:
    """Counts pairs on different sockets by enumeration."""

    def __init__(self, facts: Topology) -> None:
        self._socket = {gpu: switch.socket for switch in facts.machine.switches for gpu in switch.gpus}
        self._fewest: dict[tuple[int, int], int] = {}

    def pairs(self, gpus: int) -> int:
        return sum(self._socket[i] != self._socket[j] for i, j in combinations(gpus_in_mask(gpus), 2))

    def fewest(self, free: int, count: int) -> int:
        """Return the minimum over all free subsets."""
        found = self._fewest.get((free, count))
        if found is None:
            sets = combinations(gpus_in_mask(free), count)
            found = self._fewest[free, count] = min(self.pairs(sum(1 << gpu for gpu in each)) for each in sets)
        return found


def _mean(values: list[float] | list[bool]) -> float:
    return sum(values) / max(1, len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs that run")
    parser.add_argument("--nodes", type=int, default=40, help="machines")
    parser.add_argument("--load", type=float, default=0.9, help="part of the GPUs that jobs ask for in the mean")
    parser.add_argument("--seed", type=int, default=1, help="of the stream")
    options = parser.parse_args()
    hardware = machine()
    jobs = stream(options.jobs, options.nodes, options.load, Random(options.seed))
    ours = run(hardware, options.nodes, jobs, engine())
    theirs = run(hardware, options.nodes, jobs, kube_scheduler(Random(options.seed)))
    print(f"{options.jobs} jobs on {options.nodes} {MACHINE}, {options.load:.0%} load")
    print(f"{'':24}{'avactl':>10}{'kube-scheduler':>16}")
    for name, mine, other in (
        ("slowest pair, GB/s", f"{ours.bandwidth:.2f}", f"{theirs.bandwidth:.2f}"),
        ("2 to 4 GPUs, 2 sockets", f"{ours.crossing:.1%}", f"{theirs.crossing:.1%}"),
        ("avoidable pairs", f"{ours.avoidable}", f"{theirs.avoidable}"),
        ("wait, s", f"{ours.wait:.0f}", f"{theirs.wait:.0f}"),
        ("wait of 8 GPUs, s", f"{ours.wait_8:.0f}", f"{theirs.wait_8:.0f}"),
    ):
        print(f"{name:24}{mine:>10}{other:>16}")
    ratio = ours.bandwidth / theirs.bandwidth
    print(f"bar links-avoidable-pairs: {ours.avoidable} (at most 0) {'ok' if not ours.avoidable else 'short'}")
    print(f"bar links-bandwidth-ratio: {ratio:.2f} (at least 1.50) {'ok' if ratio >= 1.5 else 'short'}")
    short = "ok" if ours.wait_8 < theirs.wait_8 else "short"
    print(f"bar links-wait-8-seconds: {ours.wait_8:.0f} (below {theirs.wait_8:.0f}) {short}")


if __name__ == "__main__":
    main()
