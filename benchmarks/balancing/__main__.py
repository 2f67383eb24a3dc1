"""Three gRPC servers of speed 1, 2 and 4, each with one request at a time, and one client; one server is killed.

`avactl_client` and gRPC's own `round_robin` get the same requests, at the same random times. Shares are measured once
the client has had 10 s to learn. The load is such that `round_robin` can serve it until the kill, with its slowest
server almost busy all the time. Latencies are from when a request was due.
"""

from __future__ import annotations

import argparse

from benchmarks.balancing.load import SPEEDS, Result, Schedule, balanced, round_robin, run
from benchmarks.measure import Bar, bar

LEARNING = 10.0
"""Seconds before shares count."""


def main() -> None:
    """Measure, and print the bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.balancing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="seconds of a run, over 20 (default: 60)")
    parser.add_argument("--service", type=float, default=80, help="ms of a request on the slowest server (default: 80)")
    parser.add_argument("--load", type=float, default=0.4, help="part of the capacity that is requested (default: 0.4)")
    options = parser.parse_args()
    service = options.service / 1000
    kill = LEARNING + (options.seconds - LEARNING) * 0.7
    schedule = Schedule(LEARNING, kill, options.seconds, options.load * sum(SPEEDS) / service)
    own = run(balanced, schedule, service)
    peer = run(round_robin, schedule, service)
    spans = {"before the kill": (LEARNING, kill), "after it": (kill, options.seconds)}
    print(f"\n{options.load:.0%} of the capacity requested; the server of speed 2 is killed\n")
    print(f"{'':26}{'avactl_client':>16}{'round_robin':>16}")
    for number, speed in enumerate(SPEEDS):
        shares = [each.shares(schedule)[number] for each in (own, peer)]
        name = f"share of speed {speed} ({speed / sum(SPEEDS):.1%})"
        print(f"{name:26}{shares[0]:16.1%}{shares[1]:16.1%}")
    print(f"{'requests':26}{len(own.requests):16}{len(peer.requests):16}")
    print(f"{'failed':26}{len(own.failed()):16}{len(peer.failed()):16}")
    print(f"{'failed after detection':26}{own.failed_after_detection():16}{peer.failed_after_detection():16}")
    for name, span in spans.items():
        for part in (0.5, 0.99):
            label = f"p{part * 100:.0f} {name}"
            print(f"{label:26}{_ratio(own, peer, part, *span):16.2f}{1:16.2f}")
    print()
    bar(Bar("balancing-shares", own.deviation(schedule), 0.10))
    bar(Bar("balancing-failed", own.failed_after_detection(), 0, digits=0))
    bar(Bar("balancing-p99", _ratio(own, peer, 0.99, LEARNING, options.seconds), 1.0))
    bar(Bar("balancing-p99-before-kill", _ratio(own, peer, 0.99, LEARNING, kill), 1.0))


def _ratio(own: Result, peer: Result, part: float, begin: float, end: float) -> float:
    return own.latency(part, begin, end) / peer.latency(part, begin, end)


if __name__ == "__main__":
    main()
