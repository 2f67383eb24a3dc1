"""GPU allocation on Alibaba's production trace, against FGD's published means. See `--help`.

The protocol is that of the FGD paper (Weng et al., "Beware of Fragmentation", USENIX ATC'23), so that figures are
comparable: the pods of a list arrive shuffled by a seed, up to 130% of the cluster's GPUs; they stay; a pod that does
not fit is dropped. The figure is the allocated fraction of GPU milli at 100% and at 130% arrived, mean of seeds 42 to
51. The expected workload is learnt from the arrivals so far, with no prior knowledge (FGD is given the whole list's).
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from avactl.hardware.placement.allocation import MILLI_PER_GPU, AllocationState, Node
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer, place

SEEDS = range(42, 52)
PUBLISHED = {
    "openb_pod_list_default": (95.23, 95.39),
    "openb_pod_list_gpushare40": (93.96, 94.15),
    "openb_pod_list_gpuspec10": (94.66, 94.95),
    "openb_pod_list_multigpu20": (95.53, 95.65),
    "openb_pod_list_cpu100": (95.21, 95.35),
}
"""FGD's means of ten seeds at 100% and at 130%, from the expected results of the paper's public simulator."""
NODES = "openb_node_list_gpu_node.csv"
MAX_SECONDS = 15.0


class Replay(NamedTuple):
    """One seed of one list."""

    at_100: float
    at_130: float
    seconds: float
    decision_ms: float
    """Mean time of one decision, including booking."""


def fleet(path: Path) -> AllocationState:
    """Return the trace's nodes. Their models are known, their links are not."""
    state = AllocationState(("cpu", "memory"))
    with path.open() as file:
        for row in csv.DictReader(file):
            amounts = (int(row["cpu_milli"]), int(row["memory_mib"]))
            state.put_node(Node(row["sn"], amounts, int(row["gpu"]), row["model"]))
    return state


def requests(path: Path) -> list[Request]:
    """Return the pods of a list, sorted by name."""
    with path.open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["name"])
    found = []
    for row in rows:
        gpus = int(row["num_gpu"])
        milli = int(row["gpu_milli"] or 0) if gpus == 1 else MILLI_PER_GPU
        models = frozenset(filter(None, (row.get("gpu_spec") or "").split("|"))) if gpus else frozenset()
        found.append(Request((int(row["cpu_milli"]), int(row["memory_mib"])), gpus, milli, models))
    return found


def arrivals(pods: list[Request], capacity: int, seed: int, ratio: float = 1.3) -> list[Request]:
    """Return the arrivals: the pods, randomly removed or cloned until the demand is `ratio` of the capacity."""
    rng, arriving = random.Random(seed), list(pods)
    rng.shuffle(arriving)
    total = sum(pod.total_milli for pod in arriving)
    while total > ratio * capacity:
        total -= arriving.pop(rng.randrange(len(arriving))).total_milli
    while True:
        pod = rng.choice(pods)
        if total + pod.total_milli > ratio * capacity:
            return arriving
        arriving.append(pod)
        total += pod.total_milli


def replay(nodes: Path, pods: Path, seed: int) -> Replay:
    """Replay one list with one seed."""
    start = time.perf_counter()
    state = fleet(nodes)
    capacity = int(state.gpu_total.sum())
    arriving = arrivals(requests(pods), capacity, seed)
    scorer = Scorer(state)
    arrived = allocated = 0
    figures: list[float] = []
    began = time.perf_counter()
    for index, request in enumerate(arriving):
        scorer.learn(request)
        arrived += request.total_milli
        if place(scorer, index, request) is not None:
            allocated += request.total_milli
        if not figures and arrived >= capacity:
            figures.append(100 * allocated / capacity)
    end = time.perf_counter()
    return Replay(figures[0], 100 * allocated / capacity, end - start, 1000 * (end - began) / len(arriving))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lists", nargs="*", metavar="LIST.csv", help="pod lists of the trace")
    parser.add_argument("--trace", type=Path, metavar="DIR", help=f"directory with {NODES} and the lists")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many seeds, from 42 on")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="replays at the same time")
    options = parser.parse_args()
    if options.trace is None or not options.lists:
        print("not run: the trace comes from outside, give --trace DIR LIST.csv…")
        return
    seeds = range(SEEDS.start, SEEDS.start + options.seeds)
    bars, slowest, decision = [], 0.0, 0.0
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = {
            name: [pool.submit(replay, options.trace / NODES, options.trace / name, seed) for seed in seeds]
            for name in options.lists
        }
        for name, futures in runs.items():
            done = [future.result() for future in futures]
            mean = [sum(run[index] for run in done) / len(done) for index in (0, 1)]
            slowest = max(slowest, *(run.seconds for run in done))
            decision = max(decision, *(run.decision_ms for run in done))
            print(f"{name} {mean[0]:.2f} {mean[1]:.2f}", flush=True)
            for at, figure, published in zip((100, 130), mean, PUBLISHED.get(Path(name).stem, ()), strict=False):
                verdict = "ok" if figure > published else "short"
                bars.append(f"bar {Path(name).stem}-{at}: {figure:.2f} (above {published:.2f}) {verdict}")
    verdict = "ok" if slowest <= MAX_SECONDS else "short"
    bars.append(f"bar openb-replay-seconds: {slowest:.1f} (at most {MAX_SECONDS:.0f}) {verdict}")
    print(f"slowest replay {slowest:.1f} s, {decision:.2f} ms a decision", flush=True)
    print("\n".join(bars))


if __name__ == "__main__":
    main()
