"""Rollouts under load, and what the clients saw of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from benchmarks.canary.load import Answer
from benchmarks.canary.stage import Moment, Stage

ERRORS, SLOW = 3, 4
"""Bad versions of the model: see train.py."""
LONGEST = 600.0
"""Seconds of load at most."""


class Outcome(NamedTuple):
    """One rollout."""

    name: str
    requests: int
    failed: dict[str, int]
    """Failed requests by status and reason, without the bad version's own errors."""
    own: int
    """Errors of the bad version itself."""
    shares: dict[int, float]
    """Share of the new version at each step, in percent, by what it should be."""
    exposed: float
    """Seconds from the first request that the new version got to the last one."""
    bad: int
    """Requests that the new version got."""
    ended: str
    """`promoted` or `rolledBack`."""
    reason: str

    @property
    def deviation(self) -> float:
        """Largest distance of a share from its step, in percentage points."""
        return max((abs(share - percent) for percent, share in self.shares.items()), default=0.0)

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**self._asdict(), "deviation": self.deviation, "failures": sum(self.failed.values())}


def roll(stage: Stage, name: str, old: int, new: int, *, in_place: bool = False) -> Outcome:
    """Roll out a version under load until it is promoted or rolled back, and only one version is left."""
    return _roll(stage, {name: "http"}, old, new, in_place=in_place)[0]


def roll_both(stage: Stage, old: int, new: int) -> list[Outcome]:
    """Roll out a version while half of the requests come by HTTP, and half by gRPC; return the outcome of each."""
    return _roll(stage, {"both-http": "http", "both-grpc": "grpc"}, old, new)


def _roll(stage: Stage, names: Mapping[str, str], old: int, new: int, *, in_place: bool = False) -> list[Outcome]:
    moments: list[Moment] = []
    good = new not in (ERRORS, SLOW)
    rate = stage.pace.rate / len(names)
    with ExitStack() as stack:
        loads = [stack.enter_context(stage.load(LONGEST, rate, protocol)) for protocol in names.values()]
        time.sleep(1.0)
        before = stage.state().get("ended", 0.0)
        stage.deploy(new, in_place=in_place)

        def ended() -> bool:
            moments.append(stage.moment())
            return stage.state().get("ended", 0.0) != before and stage.settled(new if good else old)

        stage.until(ended, LONGEST)
        # Pods of the other version drain.
        time.sleep(stage.pace.drain + 1.0)
    state = stage.state()
    seen = zip(names, loads, strict=True)
    return [outcome(name, stage.pace.steps, str(new), good, answers(), moments, state) for name, answers in seen]


def outcome(
    name: str,
    steps: Sequence[int],
    new: str,
    good: bool,
    answers: Sequence[Answer],
    moments: Sequence[Moment],
    state: dict[str, Any],
) -> Outcome:
    """Return what the clients saw of a rollout with these steps to version `new`, and how the daemon ended it."""
    wrong = [each for each in answers if each.status != 200]
    own = [each for each in wrong if not good and each.version == new]
    failed = Counter(f"{each.status} {each.version} {each.error}"[:80] for each in wrong if each not in own)
    got = [each.sent for each in answers if each.version == new]
    exposed = max(got) - min(got) if got else 0.0
    return Outcome(
        name,
        len(answers),
        dict(failed),
        len(own),
        _shares(steps, new, answers, moments),
        exposed,
        len(got),
        state.get("outcome", ""),
        state.get("message", ""),
    )


def _shares(steps: Sequence[int], new: str, answers: Sequence[Answer], moments: Sequence[Moment]) -> dict[int, float]:
    """Return the share of a version, by step: of the requests from when the step was reached to when it was left."""
    found = {}
    for number, percent in enumerate(steps):
        within = [each for each in moments if (each.phase, each.step) == ("stepping", number) and each.reached]
        if not within:
            continue
        began, ended = within[0].reached, within[-1].time
        there = [each for each in answers if began <= each.sent <= ended and each.version]
        if there:
            found[percent] = 100 * sum(each.version == new for each in there) / len(there)
    return found
