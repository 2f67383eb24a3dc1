"""Promotions: orders of events on both clusters, in git and on the forge, with a daemon that dies after any action."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple

import pytest

from avactl.contracts.delivery import HealthRecord, value_digest
from avactl.daemons.delivery.commits.promoted_values import (
    CommittedDigests,
    PromotionValues,
    SpecValues,
    find_conflict,
)
from avactl.daemons.delivery.health import next_record
from avactl.daemons.delivery.promote import PromotionConfig, PromotionDecision, PromotionSeen, decide_promotion

TICK = 100.0
RECORDS: dict[str, HealthRecord] = {}
"""Records that were made: equal ones are the same object."""
WINDOW = TICK
By = Literal["commit", "pullRequest"]
Outcome = Literal["progressing", "healthy", "unhealthy", "rejected"]
MAX_WORLDS = 2_500
"""Worlds of one exploration: chance decides which."""


@cache
def values_of(value: str) -> SpecValues:
    return SpecValues((value,), {"spec.model.version": value_digest(value)})


class Running(NamedTuple):
    """What one cluster runs."""

    value: str
    template: str
    outcome: Outcome
    since: float


class Pull(NamedTuple):
    """A pull request, with the change that its branch has."""

    source: str
    target: str
    state: Literal["", "open", "closed", "merged", "withdrawn"]
    """Empty: only its branch is pushed."""


class World(NamedTuple):
    """What is true outside of the daemons."""

    commits: tuple[tuple[str, str, str], ...] = (("a", "a", "0"),)
    """Values of the source and the target, and another setting of the source, after each commit; the newest last."""
    clock: int = 0
    source: Running = Running("a", "0", "healthy", 0.0)
    target: Running = Running("a", "", "healthy", 0.0)
    records: tuple[HealthRecord | None, HealthRecord | None] = (None, None)
    pulls: tuple[Pull, ...] = ()
    budget: tuple[int, ...] = ()
    """Ticks, changes of the source, its failures, failures of the target, and decisions of people."""
    rejected: frozenset[str] = frozenset()
    """Values that the target has rolled back, and that it had not run before."""
    undone: frozenset[str] = frozenset()
    """Values that somebody has taken out of the target since the source has them."""
    begun: float = 0.0
    """Since when the source has been healthy with what it runs, as nobody but this test knows."""
    first: tuple[tuple[str, float], ...] = (("a", 0.0),)
    """When the source first had each value."""

    @property
    def head(self) -> tuple[str, str, str]:
        return self.commits[-1]

    def spend(self, index: int) -> World:
        return self._replace(budget=tuple(each - (at == index) for at, each in enumerate(self.budget)))

    def run_source(self, outcome: Outcome, since: float) -> World:
        """Let the source's cluster apply the branch."""
        value, _, setting = self.head
        first = self.first if value in dict(self.first) else (*self.first, (value, self.clock * TICK))
        return self._replace(source=Running(value, setting, outcome, since), first=first)

    def commit(self, source: str | None = None, target: str | None = None, setting: str | None = None) -> World:
        old = self.head
        new = (source or old[0], target or old[1], setting or old[2])
        undone = self.undone if new[0] == old[0] else frozenset()
        return self._replace(commits=(*self.commits, new), undone=undone)

    @property
    def key(self) -> object:
        return (*self[:4], tuple(map(id, self.records)), *self[5:])

    def pull(self) -> Pull | None:
        """Return the newest pull request with the change that the head asks for."""
        return next((each for each in reversed(self.pulls) if (each.source, each.target) == self.head[:2]), None)

    def with_pull(self, old: Pull, new: Pull) -> World:
        index = len(self.pulls) - 1 - self.pulls[::-1].index(old)
        return self._replace(pulls=(*self.pulls[:index], new, *self.pulls[index + 1 :]))


@cache
def promotion_values(commits: tuple[tuple[str, str, str], ...]) -> PromotionValues:
    """Return what the daemon reads of the branch."""
    source, target = values_of(commits[-1][0]), values_of(commits[-1][1])
    if source == target:
        return PromotionValues(source, target, "")
    states = (
        CommittedDigests(str(number), values_of(each[0]).digest, values_of(each[1]).digest)
        for number, each in reversed(list(enumerate(commits)))
    )
    return PromotionValues(source, target, find_conflict(states, source.digest, target.digest))


def observe(world: World, side: int) -> World:
    """Let the daemon of one cluster record what its service runs."""
    running, now = (world.source, world.target)[side], world.clock * TICK
    seen = HealthRecord(
        values=values_of(running.value).digests,
        template=running.template,
        outcome=running.outcome,
        since=running.since if running.outcome == "healthy" else now,
        seen=now,
    )
    new = next_record(world.records[side], seen, [WINDOW], seen.values if side else ())
    if new is None:
        return world
    records = list(world.records)
    records[side] = RECORDS.setdefault(repr(new), new)
    return world._replace(records=(records[0], records[1]))


def decided(config: PromotionConfig, world: World) -> tuple[PromotionDecision, Pull | None]:
    """Return what the promoting daemon decides. As there, the forge is asked only before it opens one."""
    seen = PromotionSeen(promotion_values(world.commits), *world.records)
    pull = None
    if decide_promotion(config, seen).step == "propose":
        pull = world.pull()
        seen = seen._replace(proposal=pull.state if pull is not None else "")
    return decide_promotion(config, seen), pull


def passes(config: PromotionConfig, world: World) -> Iterator[World]:
    """One pass of the promoting daemon, which may die after each action."""
    decision, pull = decided(config, world)
    wanted = world.head[:2]
    for each in world.pulls:
        if config.by == "pullRequest" and each.state == "open" and (each[:2] != wanted or not decision.keep):
            world = world.with_pull(each, each._replace(state="withdrawn"))
            yield world
    if not decision.step:
        return
    source, target, _ = world.head
    assert source != target
    assert world.source.value == source or world.clock * TICK > world.begun, "promoted what the source never ran"
    record = world.records[0]
    assert record is not None
    assert record.outcome == "healthy"
    assert record.seen - record.since >= WINDOW, "promoted too early"
    assert record.since >= dict(world.first)[source], "counted the time before the source had these values"
    assert record.values == values_of(source).digests, "promoted what the source did not run"
    assert source not in world.rejected, "promoted what was rolled back"
    assert source not in world.undone, "promoted what somebody has undone"
    if decision.step == "commit":
        yield world.commit(target=source)
        return
    assert pull is None or pull.state in ("", "withdrawn"), "proposed twice"
    new = Pull(source, target, "")
    if pull is None or pull.state:
        world = world._replace(pulls=(*world.pulls, new))
        yield world
    yield world.with_pull(new, new._replace(state="open"))


def events(config: PromotionConfig, world: World) -> Iterator[World]:
    """What may happen without the promoting daemon."""
    ticks, changes, failures, target_failures, decisions = world.budget
    now, (source, target, setting) = world.clock * TICK, world.head
    if ticks:
        yield world._replace(clock=world.clock + 1).spend(0)
    if changes:
        for value in {"a", "b", "c"} - {source}:
            yield world.commit(source=value).spend(1)
        yield world.commit(setting=str(int(setting) + 1)).spend(1)
    if (world.source.value, world.source.template) != (source, setting):
        yield world.run_source("progressing", now)
        if world.source.outcome == "healthy" and world.source.template == setting:
            # Values that are no part of the pods: these stay.
            yield world.run_source("healthy", world.source.since)._replace(begun=now)
    elif world.source.outcome == "progressing":
        yield world._replace(source=world.source._replace(outcome="healthy", since=now), begun=now)
        if failures:
            yield world._replace(source=world.source._replace(outcome="rejected", since=now)).spend(2)
    elif world.source.outcome == "healthy" and failures:
        yield world._replace(source=world.source._replace(outcome="unhealthy", since=now)).spend(2)
    elif world.source.outcome == "unhealthy":
        yield world._replace(source=world.source._replace(outcome="healthy", since=now), begun=now)
    if world.target.value != target:
        yield world._replace(target=Running(target, "", "progressing", now))
    elif world.target.outcome == "progressing":
        yield world._replace(
            target=world.target._replace(outcome="healthy", since=now), rejected=world.rejected - {target}
        )
        record = world.records[1]
        if target_failures and target in "abc":
            proven = record is not None and record.proven and record.values == values_of(target).digests
            rejected = world.rejected if proven else world.rejected | {target}
            failed = world._replace(target=world.target._replace(outcome="rejected", since=now), rejected=rejected)
            yield failed.spend(3)
    elif world.target.outcome == "rejected":
        # As in the daemon: the record first, then the commit.
        after = observe(world, 1)
        earlier = next((each[1] for each in reversed(after.commits) if each[1] != target), target)
        yield after.commit(target=earlier)._replace(undone=after.undone | ({target} & {source}))
    for side in (0, 1):
        if (seen := observe(world, side)) is not world:
            yield seen
    if decisions:
        for value in {"hand", *(each[1] for each in world.commits)} - {source, target}:
            # Whoever changes the target decides against what the source has now.
            against: frozenset[str] = frozenset({source} if value == "hand" or target == source else ())
            yield world.commit(target=value)._replace(undone=world.undone | against).spend(4)
    for each in world.pulls:
        if each.state == "open":
            if target == each.target:  # else it is in conflict
                merged = world.commit(target=each.source)
                yield merged.with_pull(each, each._replace(state="merged"))
            if decisions:
                closed = world.with_pull(each, each._replace(state="closed")).spend(4)
                yield closed


def explored(config: PromotionConfig, budget: tuple[int, ...]) -> list[World]:
    """Return worlds that can be reached, by chance: there are hundreds of thousands."""
    first, chance = World(budget=budget), random.Random(str((config, budget)))
    worlds, todo = {first.key: first}, [first]
    while todo and len(worlds) < MAX_WORLDS:
        index = chance.randrange(len(todo))
        todo[index], todo[-1] = todo[-1], todo[index]
        world = todo.pop()
        for after in (*passes(config, world), *events(config, world)):
            if after.key not in worlds:
                worlds[after.key] = after
                todo.append(after)
    return list(worlds.values())


def settled(config: PromotionConfig, world: World) -> World:
    """Let everything succeed until nothing changes: each cluster applies the branch, and people merge."""
    quiet = 0
    while quiet < 4:
        before = world._replace(clock=0)
        source, target, setting = world.head
        now = world.clock * TICK
        if world.source[:3] != (source, setting, "healthy"):
            world = world.run_source("healthy", now)._replace(begun=now)
        if world.target[:3] != (target, "", "healthy"):
            world = world._replace(target=Running(target, "", "healthy", now), rejected=world.rejected - {target})
        world = observe(observe(world, 0), 1)
        for after in passes(config, world):
            world = after
        for each in world.pulls:
            if each.state == "open":
                world = world.commit(target=each.source).with_pull(each, each._replace(state="merged"))
        world = world._replace(clock=world.clock + 1)
        quiet = quiet + 1 if world._replace(clock=0) == before else 0
        assert world.clock < 40, "never quiet"
    return world


@pytest.mark.parametrize("by", ["commit", "pullRequest"])
@pytest.mark.parametrize(
    "budget",
    [(3, 2, 0, 1, 1), (4, 2, 0, 0, 0), (4, 2, 1, 1, 0), (3, 2, 1, 0, 1)],
    ids=lambda each: "-".join(map(str, each)),
)
def test_every_order_of_events(by: By, budget: tuple[int, ...]) -> None:
    config = PromotionConfig(WINDOW, by, True)
    worlds = explored(config, budget)
    phases = set()
    for world in worlds[::7]:
        end = settled(config, world)
        decision, _ = decided(config, end)
        phases.add(decision.phase)
        source, target, _ = end.head
        assert (decision.phase == "current") == (source == target)
        # What is healthy is promoted, unless somebody or a roll-back has decided otherwise.
        assert decision.phase in ("current", "held")
        assert decision.phase == "current" or sum(budget[3:]) > 0, decision
        assert not any(each.state == "open" for each in end.pulls)
    assert phases == ({"current", "held"} if budget[4] else {"current"}) or budget[3]


def test_a_record_may_have_values_of_other_promotions() -> None:
    """The same source is promoted to several services, of other values each."""
    more = {**values_of("b").digests, "spec.env": value_digest({"A": "b"})}
    source = HealthRecord(values=more, template="", outcome="healthy", since=0.0, seen=WINDOW)
    target = HealthRecord(
        values={**more, **values_of("a").digests}, template="", outcome="healthy", since=0.0, seen=0.0
    )
    seen = PromotionSeen(PromotionValues(values_of("b"), values_of("a"), ""), source, target)
    config = PromotionConfig(WINDOW, "commit", True)
    assert decide_promotion(config, seen).step == "commit"
    # One that lacks a value was written for another promotion.
    for lacking in (source.replace(values={}), None):
        assert decide_promotion(config, seen._replace(source=lacking)).phase == "waiting"
    assert decide_promotion(config, seen._replace(target=target.replace(values={}))).phase == "rolling"


@pytest.mark.parametrize("lasted", [WINDOW - 1, -1e9])
def test_the_time_is_that_of_the_cluster_that_saw_it(lasted: float) -> None:
    """A record that nobody confirms, as of a cluster that is lost, is not proven, however old it is."""
    source = HealthRecord(values=values_of("b").digests, template="", outcome="healthy", since=1e9, seen=1e9 + lasted)
    seen = PromotionSeen(PromotionValues(values_of("b"), values_of("a"), ""), source, None)
    assert decide_promotion(PromotionConfig(WINDOW, "commit", False), seen).phase == "soaking"
