"""A day of services beside elastic training on the same machines, and with machines of their own.

Services of three resource classes follow waves over the day, as an autoscaler would scale them; a training job of a
lower priority takes what they leave. Two runs on the same number of kwok machines, with a real API server, Kubernetes'
controllers and avactl's scheduler: on one pool, and on two, of which that of the services is as large as their peak. A
GPU is used while a pod that has it is bound and not being deleted; a pod waits from its creation until it is bound.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from math import ceil
from pathlib import Path

from benchmarks.clusters import bar
from benchmarks.colocation.scenario import Day, day, replicas
from benchmarks.colocation.specs import GPUS, SERVICES
from benchmarks.elastic_headline.picture import Panel, picture
from benchmarks.elastic_headline.timeline import Busy

MACHINES = 6
_NAMES = {"chat": "chat (gpu)", "vision": "vision (gpu)", "train": "training"}


def main() -> None:
    """Measure, and print the bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.colocation", description=__doc__)
    parser.add_argument("--day", type=float, default=150, help="seconds of a day (default: 150)")
    parser.add_argument("--svg", type=Path, help="write a picture")
    options = parser.parse_args()
    peak = max(sum(each.gpus * replicas(each, part / 1000) for each in SERVICES) for part in range(1000))
    own = ceil(peak / GPUS)
    pools = {"serve": own, "train": MACHINES - own}
    apart = asyncio.run(day(pools, "serve", "train", options.day))
    together = asyncio.run(day({"main": MACHINES}, "", "", options.day))
    panels = []
    print(f"\n{MACHINES} machines with {GPUS} GPUs; services use {peak} at their peak, {own} machines\n")
    print("                    GPU-hours used   by services   longest wait of a service's pod   preempted workers")
    for name, found in (("own machines", apart), ("the same machines", together)):
        whole, serving = used(found), used(found, "chat", "vision")
        print(f"{name:18}  {whole:14.1%}   {serving:11.1%}   {longest_wait(found):30.2f} s   {preempted(found):17}")
        note = f"{whole:.1%} of GPU-hours used; a service's pod waited {longest_wait(found):.2f} s at most"
        panels.append(Panel(f"Services and training on {name}", note, _busy(found), _NAMES, 24, None, 4, "h"))
    print("\npods of a class by machine at noon, on the same machines")
    for kind, counts in spread(together).items():
        print(f"  {kind:4} {' '.join(map(str, counts))}")
    print()
    if options.svg is not None:
        options.svg.write_text(picture(panels, MACHINES * GPUS))
    bar("colocation-used", used(together), 0.90, at_least=True)
    bar("colocation-wait", longest_wait(together), 1.0, at_least=False, unit=" s")
    bar("colocation-gain", used(together) / used(apart), 1.0, at_least=True)


def used(found: Day, *specs: str) -> float:
    """Return the part of the GPUs' time that pods of these specs had them; of all specs without names."""
    total = 0.0
    for life in found.lives:
        if life.bound is not None and (not specs or life.spec in specs):
            ended = found.ended if life.ended is None else min(life.ended, found.ended)
            total += life.gpus * max(0.0, ended - max(life.bound, found.began))
    return total / (found.gpus * (found.ended - found.began))


def longest_wait(found: Day) -> float:
    """Return the longest time, in seconds, that a pod of a service waited to be bound in the day."""
    waits = [0.0]
    for life in found.lives:
        if life.spec != "train" and life.created >= found.began:
            until = next(each for each in (life.bound, life.ended, found.ended) if each is not None)
            waits.append(until - life.created)
    return max(waits)


def preempted(found: Day) -> int:
    """Return how many workers of the training job were stopped in the day."""
    return sum(
        life.spec == "train" and life.bound is not None and life.ended is not None and life.ended > found.began
        for life in found.lives
    )


def spread(found: Day) -> dict[str, list[int]]:
    """Return how many pods of each class the machines have at noon, the most first."""
    noon = (found.began + found.ended) / 2
    counts: dict[str, Counter[str]] = {}
    for each in SERVICES:
        counts.setdefault(each.kind, Counter()).update(
            life.node
            for life in found.lives
            if life.spec == each.name
            and life.bound is not None
            and life.bound <= noon
            and (life.ended is None or life.ended > noon)
        )
    return {
        kind: sorted([*counted.values(), *[0] * (MACHINES - len(counted))])[::-1] for kind, counted in counts.items()
    }


def _busy(found: Day) -> list[Busy]:
    hour = (found.ended - found.began) / 24
    return [
        Busy(
            life.spec,
            (max(life.bound, found.began) - found.began) / hour,
            ((found.ended if life.ended is None else life.ended) - found.began) / hour,
        )
        for life in found.lives
        if life.bound is not None and (life.ended is None or life.ended > found.began)
        for _ in range(life.gpus)
    ]


if __name__ == "__main__":
    main()
