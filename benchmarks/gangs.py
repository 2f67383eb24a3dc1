"""Time to decide on random gangs of two or three roles: placed, impossible, or not found by the bounded search.

    python -m benchmarks.gangs [--sets 2000] [--machines 6] [--large 500] [--seed 1]

Machines differ in free CPUs, memory and GPUs, some of which have links or are shared. A decision is `place_gang`, and
the proof if nothing was placed, in CPU time of its one thread. The bar is for `--machines` or fewer; the second line
is for `--large` machines of which half is in use.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from random import Random
from typing import NamedTuple

from avactl.hardware.machine import Machine, Nvlink, NvlinkPair, PcieSwitch
from avactl.hardware.placement.allocation import MILLI_PER_GPU, AllocationState, Booking, Node
from avactl.hardware.placement.gang import Gang, GangRole, is_impossible, place_gang
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer
from benchmarks.measure import Bar, bar

MAX_P99_MS = 50.0
PAIRS = Nvlink(25.0, tuple(NvlinkPair(gpu, (gpu + 1) % 8, 1 + gpu % 2) for gpu in range(8)))
SWITCHES = tuple(PcieSwitch(index // 2, (2 * index, 2 * index + 1)) for index in range(4))
LINKED = Machine("V100", 8, 2**34, 8.0, 2**36, SWITCHES, PAIRS, (), 3.0, 8.0, 12.0)


class Decision(NamedTuple):
    """A decision on one gang."""

    outcome: str
    milliseconds: float


def fleet(random: Random, machines: int, booked: float) -> AllocationState:
    """Return machines of which a fraction of the GPUs is in use, whole or shared."""
    state = AllocationState(("cpu", "memory"), ("block", "rack"))
    for index in range(machines):
        gpus = random.choice((0, 8, 8))
        domains = (index // 32, index // 8)
        amounts = (random.randrange(8, 129, 4), random.choice((64, 128, 256)))
        slot = state.put_node(Node(f"n{index}", amounts, gpus, "V100", LINKED if gpus else None, domains))
        for gpu in range(gpus):
            if random.random() < booked:
                milli = random.choice((250, 500, MILLI_PER_GPU, MILLI_PER_GPU))
                state.book((index, gpu), Booking(slot, (1, 1), 1 << gpu, milli))
    return state


def gang(random: Random, most: int) -> Gang:
    """Return a gang of two or three roles with at most so many pods each."""
    roles = []
    for number in range(random.choice((2, 2, 3))):
        gpus = random.choice((0, 1, 1, 2, 4))
        share = gpus == 1 and random.random() < 0.3
        linked = gpus > 1 and random.random() < 0.5
        request = Request(
            (random.randrange(4, 49, 2), random.choice((8, 16, 64))),
            gpus,
            random.choice((250, 400, 700)) if share else MILLI_PER_GPU,
            link=random.choice(("nvlink", "socket")) if linked else "any",
            required=linked,
        )
        roles.append(GangRole(str(number), request, random.randint(1, most)))
    return Gang(tuple(roles), random.choice((None, None, "block", "rack")))


def decide(state: AllocationState, wanted: Gang) -> Decision:
    """Time one decision."""
    scorer = Scorer(state)
    began = time.process_time()
    if place_gang(scorer, "gang", wanted) is not None:
        outcome = "placed"
    else:
        outcome = "impossible" if is_impossible(scorer, wanted) else "not found"
    return Decision(outcome, 1000 * (time.process_time() - began))


def describe(name: str, decisions: list[Decision]) -> float:
    """Print the outcomes and times; return the 99th percentile in milliseconds."""
    times = sorted(decision.milliseconds for decision in decisions)
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(d.outcome for d in decisions).most_common())
    print(f"{name}: {outcomes}; median {times[len(times) // 2]:.1f} ms, p99 {p99:.1f} ms, longest {times[-1]:.1f} ms")
    return p99


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gangs")
    parser.add_argument("--sets", type=int, default=2000)
    parser.add_argument("--machines", type=int, default=6)
    parser.add_argument("--large", type=int, default=500, help="machines of the large sets; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    random = Random(options.seed)
    small = [
        decide(fleet(random, random.randint(2, options.machines), random.choice((0.0, 0.3))), gang(random, 4))
        for _ in range(options.sets)
    ]
    p99 = describe(f"at most {options.machines} machines", small)
    if options.large:
        most = max(4, options.large // 5)
        large = [
            decide(fleet(random, options.large, 0.5), gang(random, most)) for _ in range(max(1, options.sets // 40))
        ]
        describe(f"{options.large} machines", large)
    bar(Bar("gangs-decision-p99", p99, MAX_P99_MS, " ms", 1))


if __name__ == "__main__":
    main(sys.argv[1:])
