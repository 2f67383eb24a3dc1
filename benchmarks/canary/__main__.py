"""Canary rollouts of a real model server behind a real gateway, under 200 requests a second.

    python -m benchmarks.canary [promote|both|errors|slow|full|groups|pickers|roles] [--short]
        [--json FILE] [--rate REQUESTS]

Traefik reads HTTPRoutes and GRPCRoutes from a real API server and sends requests to model servers, one process a pod,
with addresses of a network namespace; Prometheus finds and measures them; the serving daemon does the rest.

promote: version 1 → 2. both: the same, with half of the requests by gRPC; alone, without analysis and Prometheus.
errors: version 3, whose predictions fail. slow: version 4, which takes a quarter of a second. full: promote and errors
in place, where the quota has no room for another pod. groups: promote, each replica a group of two pods of a
LeaderWorkerSet; only alone, without analysis and Prometheus. pickers: promote and errors, with an endpoint picker for
each version and Istio instead of Traefik; then a version that loses all of its pods in the last step, and timeouts of
the route. roles: promote and errors of prefill and decode pods behind Istio. Both alone, too, at 60 requests a second
or `--rate`, with longer steps at a lower rate.

--short takes seconds where the rest takes minutes: other intervals, and a gateway that is told sooner.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.canary.groups import group_stage
from benchmarks.canary.pickers import PickerStage, RoleStage, lose_pods, measure_timeouts, picker_stage
from benchmarks.canary.scenario import ERRORS, SLOW, Outcome, roll, roll_both
from benchmarks.canary.stage import LONG, PICKED, SHORT, Pace, Stage, prepare, stage
from benchmarks.measure import Bar, bar
from tools.controlplane import UnavailableError
from tools.network import enter

CASES = ("promote", "both", "errors", "slow", "full")
GROUPS, PICKERS, ROLES = "groups", "pickers", "roles"
_ALONE = (GROUPS, PICKERS, ROLES)


def measured(case: str, made: Stage, live: int) -> tuple[list[Outcome], int]:
    """Run a case from the version that is live; return what was seen, and the version that is live then."""
    if case == "promote":
        return [roll(made, case, live, 3 - live)], 3 - live
    if case == "both":
        return roll_both(made, live, 3 - live), 3 - live
    if case == "errors":
        return [roll(made, case, live, ERRORS)], live
    if case == "slow":
        return [roll(made, case, live, SLOW)], live
    made.fill_quota(True)
    found = [
        roll(made, "full-promote", live, 3 - live, in_place=True),
        roll(made, "full-errors", 3 - live, ERRORS, in_place=True),
    ]
    made.fill_quota(False)
    return found, 3 - live


def _show(each: Outcome, pace: Pace) -> None:
    print(f"\n{each.name}: {each.requests} requests, {each.ended}: {each.reason}")
    print(f"  shares of the new version: {', '.join(f'{p}% → {s:.1f}%' for p, s in each.shares.items())}")
    if each.failed:
        print(f"  failed: {each.failed}")
    bar(Bar(f"canary-{each.name}-failed", sum(each.failed.values()), 0, digits=0))
    if each.ended == "promoted":
        bar(
            Bar(
                f"canary-{each.name}-share",
                each.deviation if len(each.shares) == len(pace.steps) else None,
                3,
                " pt",
                1,
            )
        )
    else:
        print(f"  {each.bad} requests went to it, {each.own} of them failed")
        bar(Bar(f"canary-{each.name}-exposed", each.exposed, 2 * pace.interval, " s", 1))


def main() -> None:
    """Measure, and print the bars."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.canary", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", nargs="*", choices=[*CASES, *_ALONE, []], metavar="CASE", help="default: all")
    parser.add_argument("--short", action="store_true", help="seconds, not minutes")
    parser.add_argument("--json", type=Path, help="write what was seen")
    parser.add_argument("--rate", type=float, default=PICKED.rate, help="requests a second of `pickers` and `roles`")
    options = parser.parse_args()
    if len(options.case) > 1 and (alone := set(_ALONE).intersection(options.case)):
        parser.error(f"`{min(alone)}` has a stage of its own: run it alone")
    case = options.case[0] if len(options.case) == 1 else ""
    picked, grouped = case in (PICKERS, ROLES), case in (GROUPS, ROLES)
    analysed = case not in ("both", GROUPS)
    try:
        prepare(analysed=analysed, grouped=grouped, picked=picked)
        enter("benchmarks.canary", sys.argv[1:])
    except UnavailableError as reason:
        sys.exit(f"not measured: {reason}")
    pace = SHORT if options.short else LONG
    found: list[Outcome] = []
    more: list[dict[str, object]] = []
    live = 1
    if picked:
        # As many requests in each step, whatever the rate.
        pace = PICKED._replace(rate=options.rate, pause=PICKED.pause * PICKED.rate / options.rate)
        with picker_stage(pace, RoleStage if case == ROLES else PickerStage) as pickers:
            found += [roll(pickers, case, 1, 2), roll(pickers, f"{case}-errors", 2, ERRORS)]
            for each in found:
                _show(each, pace)
            if case == PICKERS:
                more += [lose_pods(pickers, 2, 1)._asdict(), dict(measure_timeouts(pickers, 2))]
                print(*more, sep="\n")
    elif grouped:
        with group_stage(pace) as groups:
            found.append(roll(groups, GROUPS, 1, 2))
            _show(found[0], pace)
    else:
        with stage(pace, analysed=analysed) as made:
            for case in options.case or CASES:
                outcomes, live = measured(case, made, live)
                for each in outcomes:
                    _show(each, pace)
                found += outcomes
    if options.json is not None:
        options.json.write_text(json.dumps([*(each.data() for each in found), *more]))


if __name__ == "__main__":
    main()
