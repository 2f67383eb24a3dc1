"""Rounds of synchronous training: membership, ranks, and what a restarted master believes."""

from __future__ import annotations

import pytest
from avactl_worker import messages as m
from hypothesis import given
from hypothesis import strategies as st

from avactl.daemons.elastic import rounds, values
from avactl.daemons.elastic.job import LEASE, JobError
from avactl.daemons.elastic.rounds import Rounds
from avactl.daemons.elastic.values import Values
from avactl.daemons.elastic.workers import ElasticWorker

QUIET = rounds.QUIET + 0.01


def worker(name: str) -> ElasticWorker:
    return ElasticWorker(ord(name), name, ord(name), 0.0)


class World:
    """Workers a, b, c, … that ask a master which may be restarted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rounds = Rounds()
        self.workers: dict[str, ElasticWorker] = {}
        self.places: dict[str, m.Round] = {}
        self.requests: dict[str, m.Rendezvous] = {}

    def ask(self, names: str, step: int = 0, broken: bool = False, least: int = 1, most: int = 0) -> None:
        for name in names:
            self.requests[name] = m.Rendezvous(
                round=self.places.get(name), broken=broken, address=f"{name}:1", step=step, least=least, most=most
            )
            self.rounds.ask(self.workers.setdefault(name, worker(name)), self.requests[name], self.now)

    def wait(self, seconds: float = 0.0) -> dict[str, int]:
        """Let time pass; return the ranks of the workers that got a place."""
        self.now += seconds
        self.rounds.advance(self.now)
        found = {}
        for name, request in list(self.requests.items()):
            place = self.rounds.ask(self.workers[name], request, self.now, again=True)
            if place is not None:
                self.places[name] = place
                found[name] = place.rank
                del self.requests[name]
        return found

    def watch(self, name: str, heard: bool = False) -> m.Change | None:
        asked = m.Watch(round=self.places[name], heard=heard)
        return self.rounds.watch(self.workers[name], asked, self.now)

    def begin(self, names: str) -> None:
        """Form the first round."""
        self.ask(names)
        assert self.wait(QUIET) == {name: rank for rank, name in enumerate(names)}

    def restart(self) -> None:
        self.rounds = Rounds(self.now + 3.0)


@pytest.fixture
def world() -> World:
    return World()


def test_workers_that_come_together_get_one_round(world: World) -> None:
    world.ask("a")
    assert world.wait(rounds.QUIET / 2) == {}
    world.ask("b")
    assert world.wait(rounds.QUIET / 2) == {}
    assert world.wait(QUIET) == {"a": 0, "b": 1}
    a, b = world.places["a"], world.places["b"]
    assert (a.revision, a.size, a.next, a.after, a.before) == (1, 2, "b:1", "b", "b")
    assert a.token == b.token
    assert len(a.token) == 16


def test_nobody_waits_for_more_than_the_most(world: World) -> None:
    world.ask("ab", most=2)
    assert world.wait() == {"a": 0, "b": 1}


def test_a_steady_trickle_does_not_delay_the_round_for_ever(world: World) -> None:
    for name in "abcdefghijklmn":
        world.ask(name)
        if world.wait(rounds.QUIET * 0.9):
            break
    assert world.now <= rounds.LONGEST + rounds.QUIET


def test_fewer_than_the_least_wait_and_say_so(world: World) -> None:
    world.ask("a", least=2)
    assert world.wait(100) == {}
    assert world.rounds.reason() == "more workers: 1 of at least 2 are there"
    world.ask("b", least=2)
    assert world.wait(QUIET) == {"a": 0, "b": 1}


def test_a_worker_that_joins_ends_the_round_at_a_step_and_gets_the_last_rank(world: World) -> None:
    world.begin("ab")
    world.ask("c")
    assert world.watch("a") is None  # maybe more join
    assert world.wait(QUIET) == {}
    told = world.watch("a")
    assert told == m.Change(wanted=True, reason="c joins")
    assert world.watch("a", heard=True) is None
    world.ask("b", step=5)
    assert world.wait(QUIET) == {}
    assert world.rounds.reason() == "a to end a step of round 1"
    world.ask("a", step=5)
    assert world.wait() == {"a": 0, "b": 1, "c": 2}
    assert world.watch("a") is None


def test_a_lost_worker_breaks_the_round_and_survivors_keep_their_order(world: World) -> None:
    world.begin("abc")
    world.rounds.gone(world.workers["a"], world.now)
    told = world.watch("b")
    assert told == m.Change(broken=True, reason="a has left or was lost")
    world.ask("cb", step=7, broken=True)
    assert world.wait() == {"b": 0, "c": 1}


def test_a_closed_connection_counts_when_a_peer_has_lost_it_too(world: World) -> None:
    world.begin("abc")
    world.rounds.disconnected(world.workers["a"], world.now)
    assert world.wait(LEASE) == {}
    assert world.watch("b") is None
    world.ask("b", step=7, broken=True)
    told = world.watch("c")
    assert told is not None
    assert told.broken
    world.ask("c", step=7)
    assert world.wait() == {"b": 0, "c": 1}


def test_a_connection_that_is_opened_again_does_not_count(world: World) -> None:
    world.begin("abc")
    world.rounds.disconnected(world.workers["a"], world.now)
    world.rounds.connected(world.workers["a"])
    world.ask("bc", step=7, broken=True)
    assert world.wait(LEASE) == {}
    world.ask("a", step=7, broken=True)
    assert world.wait() == {"a": 0, "b": 1, "c": 2}


def test_the_most_steps_win_over_the_longest_membership(world: World) -> None:
    world.begin("abc")
    world.ask("a", step=7, broken=True)
    world.ask("bc", step=8, broken=True)
    assert world.wait() == {"b": 0, "c": 1, "a": 2}


def test_two_changes_together(world: World) -> None:
    """While a round is formed anew, one more worker joins, and another one is lost."""
    world.begin("abc")
    world.ask("d")
    world.rounds.gone(world.workers["b"], world.now)
    world.ask("a", step=3, broken=True)
    world.ask("e")
    world.rounds.gone(world.workers["d"], world.now)
    assert world.wait(QUIET) == {}
    world.ask("c", step=3, broken=True)
    assert world.wait() == {"a": 0, "c": 1}  # they repeat the step; e joins after it
    world.wait(QUIET)
    assert world.watch("a") == m.Change(wanted=True, reason="e joins")
    world.ask("ac", step=4)
    assert world.wait() == {"a": 0, "c": 1, "e": 2}


def test_survivors_that_are_too_few_wait_for_those_that_join(world: World) -> None:
    world.begin("ab")
    world.rounds.gone(world.workers["b"], world.now)
    world.ask("a", step=3, broken=True, least=2)
    assert world.wait(QUIET) == {}
    world.ask("c", least=2)
    assert world.wait(QUIET) == {"a": 0, "c": 1}


def test_an_answer_that_is_lost_is_given_again(world: World) -> None:
    world.begin("ab")
    before = world.places.pop("b")
    world.ask("b")
    assert world.wait() == {"b": 1}
    assert world.places["b"] == before
    assert world.watch("a") is None


def test_a_candidate_that_has_gone_gets_no_place(world: World) -> None:
    world.ask("ab")
    world.rounds.disconnected(world.workers["b"], world.now)
    assert world.wait(QUIET) == {"a": 0}


# -- a restarted master -----------------------------------------------------------------------------------------------


def test_a_restarted_master_believes_the_workers(world: World) -> None:
    world.begin("abc")
    world.restart()
    assert world.watch("b") is None
    assert world.watch("a") is None
    assert world.wait(rounds.RETURN) == {}
    assert world.watch("c") is None
    assert (world.rounds.revision, world.rounds.size) == (1, 3)
    world.ask("d")
    world.wait(LEASE)
    told = world.watch("a")
    assert told is not None
    assert told.wanted
    world.ask("cab", step=9)
    assert world.wait() == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert world.rounds.revision == 2


def test_a_member_that_does_not_come_back_to_a_restarted_master(world: World) -> None:
    world.begin("abc")
    world.restart()
    assert world.watch("a") is None
    assert world.watch("b") is None
    world.wait(LEASE)
    assert world.watch("a") == m.Change(broken=True, reason="rank 2 does not come back")


def test_a_round_that_broke_while_there_was_no_master(world: World) -> None:
    world.begin("abc")
    world.restart()
    world.ask("a", step=4, broken=True)
    assert world.wait() == {}
    world.ask("b", step=4, broken=True)
    assert world.wait(rounds.RETURN) == {"a": 0, "b": 1}


def test_new_workers_alone_do_not_begin_with_a_restarted_master(world: World) -> None:
    world.begin("ab")
    world.restart()
    world.ask("c")
    assert world.wait(QUIET) == {}
    world.ask("ab", step=9, broken=True)
    assert world.wait(3.0) == {"a": 0, "b": 1}
    world.ask("ab", step=10)
    assert world.wait() == {"a": 0, "b": 1, "c": 2}


def test_members_that_come_later_than_new_workers_take_the_lead(world: World) -> None:
    world.begin("ab")
    world.ask("ab", step=1)
    world.wait()
    world.restart()
    world.ask("c")
    assert world.wait(4.0) == {"c": 0}
    assert world.watch("a") is None  # round 2 goes on, and round 1 of c is over
    told = world.watch("c")
    assert told is not None
    assert told.broken
    world.ask("c")
    world.wait(QUIET)
    told = world.watch("a")
    assert told is not None
    assert told.wanted
    world.ask("ab", step=9)
    assert world.wait() == {"a": 0, "b": 1, "c": 2}


def test_a_round_of_a_lost_master_with_the_same_number(world: World) -> None:
    """New workers have begun with a master that knows nothing; then members of the old round come."""
    world.begin("ab")
    world.restart()
    world.ask("cd")
    assert world.wait(4.0) == {"c": 0, "d": 1}
    told = world.watch("a")
    assert told is not None
    assert told.broken
    world.ask("ab", step=9, broken=True)
    assert world.wait(QUIET) == {}
    told = world.watch("c")
    assert told is not None
    assert told.wanted
    world.ask("cd", step=2)
    assert world.wait() == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_impossible_rounds_are_refused(world: World) -> None:
    for told in (m.Round(revision=1, rank=3, size=3), m.Round(revision=1, rank=0, size=10**6)):
        with pytest.raises(JobError, match="no round has rank"):
            world.rounds.watch(worker("a"), m.Watch(round=told), 0.0)
    with pytest.raises(JobError, match="an address has"):
        world.rounds.ask(worker("a"), m.Rendezvous(), 0.0)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["ask", "break", "lost", "away"])), max_size=40))
def test_survivors_always_get_a_round_of_distinct_ranks(events: list[tuple[str, str]]) -> None:
    world = World()
    step = 0
    for name, what in events:
        step += 1
        if what == "ask":
            world.ask(name, step)
        elif what == "break" and name in world.places:
            world.ask(name, step, broken=True)
        elif name in world.workers and what == "lost":
            world.rounds.gone(world.workers.pop(name), world.now)
            world.places.pop(name, None)
            world.requests.pop(name, None)
        elif name in world.workers:
            world.rounds.disconnected(world.workers[name], world.now)
            world.rounds.connected(world.workers[name])
            if name in world.requests:
                world.ask(name, step)
        world.wait(0.1)
    for name in world.workers:
        world.ask(name, step, broken=True)
    world.wait(rounds.LONGEST)
    for name in world.workers:
        world.ask(name, step)
    world.wait(rounds.LONGEST)
    live = [world.places[name] for name in world.workers]
    assert {each.revision for each in live} <= {world.rounds.revision}
    assert sorted(each.rank for each in live) == list(range(len(live)))


# -- the store --------------------------------------------------------------------------------------------------------


def test_values() -> None:
    store = Values()
    assert store.get("a") is None
    store.set("a", b"1")
    assert store.get("a") == b"1"
    assert store.add("a", b"-3") == b"-2"
    assert store.add("new", b"5") == b"5"
    assert store.compare("c", b"", b"x") == b"x"
    assert store.compare("c", b"y", b"z") == b"x"
    assert store.compare("d", b"y", b"z") == b"y"
    assert store.compare("c", b"x", b"z") == b"z"
    assert store.has(["a", "c"])
    assert not store.has(["a", "d"])
    assert store.delete("a")
    assert not store.delete("a")
    assert len(store) == 2


def test_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_TOTAL", 100)
    monkeypatch.setattr(values, "MAX_KEYS", 3)
    store = Values()
    for key in ("", "k" * 2000):
        with pytest.raises(JobError, match="a key has 1 to 1,024 characters"):
            store.set(key, b"")
    with pytest.raises(JobError, match="a value has at most"):
        store.set("a", bytes(2 * 1024 * 1024))
    store.set("a", bytes(90))
    with pytest.raises(JobError, match="a round has at most"):
        store.set("b", bytes(20))
    for _ in range(3):
        store.set("a", bytes(95))
    store.delete("a")
    for key in "abc":
        store.set(key, bytes(20))
    with pytest.raises(JobError, match="a round has at most"):
        store.set("d", b"")
    with pytest.raises(JobError, match="only whole numbers"):
        store.add("a", b"1")
