"""The short form of `python -m benchmarks.balancing`: three servers of speed 1, 2 and 4, of which one is killed."""

from __future__ import annotations

from benchmarks.balancing.load import SPEEDS, Schedule, balanced, round_robin, run

SCHEDULE = Schedule(begin=3, kill=8, end=11, rate=35)
SERVICE = 0.08


def test_shares_follow_the_capacity_and_no_request_fails_after_a_detected_failure() -> None:
    result = run(balanced, SCHEDULE, SERVICE)
    assert len(result.requests) > 200
    assert result.failed_after_detection() == 0
    assert len(result.failed()) <= 5  # those that the killed server had
    assert result.deviation(SCHEDULE) < 0.4
    after = [each.server for each in result.requests if each.due > SCHEDULE.kill + 1]
    assert result.killed not in after


def test_round_robin_gives_each_server_the_same() -> None:
    """The peer is what it is said to be."""
    result = run(round_robin, SCHEDULE, SERVICE)
    assert [round(each, 1) for each in result.shares(SCHEDULE)] == [0.3] * len(SPEEDS)
