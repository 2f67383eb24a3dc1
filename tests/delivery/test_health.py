"""The health of a service that its cluster records: when it begins, what ends it, and how often that is written."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.contracts.delivery import MAX_REJECTED, HealthRecord, PromotedValues, value_digest
from avactl.contracts.document import dump
from avactl.contracts.names import PROMOTED_VALUES, ROLLOUT_STATE
from avactl.contracts.serving import RolloutState
from avactl.daemons.delivery import health
from avactl.daemons.delivery.commits.promoted_values import combined_digest
from avactl.daemons.delivery.health import MAX_SETTLE_S, next_record, observe_health

NOON = 1_767_268_800.0
"""2026-01-01T12:00:00Z"""
WINDOW = 7200.0
VALUES = {"spec.model.version": value_digest("2")}
OTHER = {"spec.model.version": value_digest("3")}


def deployment(state: RolloutState, **changes: Any) -> dict[str, Any]:
    values = dump(PromotedValues(VALUES))
    available = {"type": "Available", "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z"}
    return {
        "metadata": {
            "name": "web",
            "generation": 3,
            "annotations": {PROMOTED_VALUES: values, ROLLOUT_STATE: dump(state)},
        },
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 3, "availableReplicas": 2, "conditions": [available], **changes},
    }


def observe(verdict: str, state: RolloutState, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> HealthRecord | None:
    monkeypatch.setattr(health, "template_verdict", lambda *_: verdict)
    return observe_health(deployment(state, **changes), [], NOON + 9000)


def test_healthy_since_the_last_of_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rollout is complete, and all pods are available: whichever was later."""
    for ended, since in ((NOON - 60, NOON), (NOON + 60, NOON + 60)):
        seen = observe("promoted", RolloutState(ended=ended), monkeypatch)
        assert seen is not None
        assert (seen.outcome, seen.since, seen.seen) == ("healthy", since, NOON + 9000)
    seen = observe("promoted", RolloutState(since=NOON + 30), monkeypatch)  # the first version has no rollout
    assert seen is not None
    assert seen.since == NOON + 30


@pytest.mark.parametrize(
    "changes",
    [
        {"availableReplicas": 0},
        {"availableReplicas": 1},
        {"conditions": [{"type": "Available", "status": "False", "lastTransitionTime": "2026-01-01T13:00:00Z"}]},
        {"conditions": []},
        {"conditions": [{"type": "Available", "status": "False", "lastTransitionTime": 7}]},
    ],
)
def test_unhealthy_without_pods_or_with_too_few(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    seen = observe("promoted", RolloutState(ended=NOON), monkeypatch, **changes)
    assert seen is not None
    assert seen.outcome == "unhealthy"


def test_nothing_is_told_of_a_status_that_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    assert observe("promoted", RolloutState(ended=NOON), monkeypatch, observedGeneration=2) is None


def record(outcome: str = "healthy", since: float = 0.0, seen: float = 0.0, **more: Any) -> HealthRecord:
    fields: dict[str, Any] = {"values": VALUES, "template": "a", "outcome": outcome, **more}
    return HealthRecord(since=since, seen=seen, **fields)


def test_a_healthy_service_is_written_twice() -> None:
    """When it has settled, and when the window has passed: only then is the time in between known to be healthy."""
    known, written = next_record(None, record("progressing"), [WINDOW], VALUES), []
    for now in range(0, 20_000, 30):
        new = next_record(known, record(since=0, seen=now), [WINDOW], VALUES)
        if new is not None:
            known = new
            written.append(now)
    assert written == [MAX_SETTLE_S, WINDOW]


def test_a_service_that_flaps_makes_few_commits() -> None:
    known, written = next_record(None, record(since=0, seen=0), [WINDOW], VALUES), []
    for now in range(0, 7200, 30):  # a pod fails every two minutes, between two looks
        new = next_record(known, record(since=now - now % 120, seen=now), [WINDOW], VALUES)
        if new is not None:
            known = new
            written.append(new.outcome)
    assert written == ["unhealthy"]


def test_another_template_begins_anew() -> None:
    known = record(since=0, seen=WINDOW)
    new = next_record(known, record("progressing", 7300, 7300, template="b"), [WINDOW], VALUES)
    assert new is not None
    assert new.outcome == "progressing"
    assert next_record(new, record(since=7400, seen=7500, template="b"), [WINDOW], VALUES) is None
    again = next_record(new, record(since=7400, seen=7800, template="b"), [WINDOW], VALUES)
    assert again is not None
    assert (again.since, again.seen) == (7400, 7800)


def test_values_that_are_no_part_of_the_pods_begin_anew() -> None:
    """The pods, and their rollout, are as old as before."""
    known = next_record(None, record(since=0, seen=WINDOW, values=OTHER), [WINDOW])
    assert known is not None
    written = []
    for now in range(20_000, 40_000, 30):
        new = next_record(known, record(since=0, seen=now), [WINDOW])
        if new is not None:
            known = new
            written.append((now, new.outcome, new.since))
    assert written[0] == (20_000, "healthy", 20_000)
    assert written[1:] == [(27_200, "healthy", 20_000)]


def test_the_time_before_the_first_record_does_not_count() -> None:
    """Nobody knows which values the service had."""
    known = next_record(None, record(since=0, seen=WINDOW), [WINDOW])
    assert known is not None
    assert (known.since, known.seen) == (WINDOW, WINDOW)
    # Nor does that before another value is promoted, too; one less changes nothing.
    more = next_record(known, record(since=0, seen=3 * WINDOW, values={**VALUES, "spec.env": "0" * 16}), [WINDOW])
    assert more is not None
    assert more.since == 3 * WINDOW
    less = next_record(more, record(since=0, seen=4 * WINDOW), [WINDOW])
    assert less is not None
    assert less.since == 3 * WINDOW


def test_a_rejected_version_is_remembered() -> None:
    own = combined_digest(VALUES)
    running = next_record(None, record("progressing"), [WINDOW], VALUES)
    rejected = next_record(running, record("rejected"), [WINDOW], VALUES)
    assert rejected is not None
    assert rejected.rejected == (own,)
    back = next_record(rejected, record(since=0, seen=400, values=OTHER), [WINDOW], VALUES)
    assert back is not None
    assert back.rejected == (own,)
    # Somebody deploys it again, and it is good.
    again = next_record(back, record(since=0, seen=400), [WINDOW], VALUES)
    assert again is not None
    assert again.rejected == ()


def test_what_is_rejected_after_it_was_healthy_is_another_change() -> None:
    known = next_record(None, record(since=0, seen=400), [WINDOW], VALUES)
    for outcome in ("unhealthy", "progressing", "rejected", "progressing", "rejected"):
        new = next_record(known, record(outcome, template="b"), [WINDOW], VALUES)
        assert new is not None
        assert new.rejected == ()
        known = new


def test_the_memory_is_bounded() -> None:
    known: HealthRecord | None = None
    for number in range(2 * MAX_REJECTED):
        values = {"spec.model.version": value_digest(str(number))}
        known = next_record(known, record("rejected", values=values), [WINDOW], VALUES) or known
    assert known is not None
    assert len(known.rejected) == MAX_REJECTED
    assert HealthRecord.model_validate_json(dump(known)) == known
