"""Rollouts of groups of pods, against a model of the controllers of LeaderWorkerSets and StatefulSets: pure.

The model follows `rollingUpdateParameters` of sigs.k8s.io/lws 0.9 and the StatefulSet controller, one move at a time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from avactl.contracts.document import dump
from avactl.contracts.serving import (
    GROUPS_HOLD,
    RolloutAnalysis,
    RolloutConfig,
    RolloutQuery,
    RolloutRoute,
    RolloutState,
    RolloutStep,
    RouteRules,
)
from avactl.daemons.serving.decide_groups import decide_groups
from avactl.daemons.serving.groups import GroupView, view_groups
from avactl.daemons.serving.view import (
    Action,
    AddService,
    Answers,
    HoldGroups,
    PointPool,
    RemoveService,
    StopGroup,
    Weigh,
)
from avactl.kube.pod_diagnosis import PodDiagnosis, PodStage

NAME, ROUTE = "leaderworkerset.sigs.k8s.io", RolloutRoute("HTTPRoute", "chat-rollout", 80)
STEPS = (RolloutStep(percent=25, pause=5), RolloutStep(percent=50, pause=5))
MEASURED = RolloutAnalysis(interval=2, failures=1, queries=(RolloutQuery(name="errors", promql="x", max=1),))


@dataclass
class Group:
    """One group: its version, and the seconds until it is ready."""

    version: str
    uid: int
    starts: float

    @property
    def ready(self) -> bool:
        return self.starts <= 0


@dataclass
class Cluster:
    """One service, its controllers, route and daemon. A version that begins with `x` does not start."""

    total: int = 4
    surge: int = 1
    analysis: RolloutAnalysis | None = None
    errors: set[str] = field(default_factory=set)
    """Versions whose measurements fail."""
    order: random.Random = field(default_factory=lambda: random.Random(1))
    spec: str = "a"
    current: str = "a"
    partition: int = GROUPS_HOLD
    observed: str = "a"
    groups: dict[int, Group] = field(default_factory=dict)
    replicas: int = 0
    services: set[str] = field(default_factory=set)
    weights: dict[str, int] = field(default_factory=dict)
    """Percent of the requests by version."""
    pools: dict[str, str] = field(default_factory=dict)
    """Versions that InferencePools select; empty: the backends are Services."""
    shares: dict[str, int] = field(default_factory=dict)
    """Percent of the requests by pool."""
    state: RolloutState = field(default_factory=RolloutState)
    now: float = 1000.0
    events: list[str] = field(default_factory=list)
    uids: int = 0
    lost: set[str] = field(default_factory=set)
    """Versions that were stable, and never served."""

    # -- the controllers

    def control(self) -> None:
        """Make one move of the controllers."""
        self.observed = self.spec
        whole = [self._serves(each) for each in range(self.replicas)]
        unready = sum(1 for each in range(self.total) if not (each < len(whole) and whole[each]))
        most, unavailable = self.total + min(self.surge, self.total), 0 if self.surge else 1
        if self.replicas < self.total:
            self.replicas = self.total
        elif unready <= most - self.total:
            self.replicas = self.total + max(0, unready - unavailable)
        else:
            self.replicas = most
        for ordinal in [each for each in self.groups if each >= self.replicas]:
            del self.groups[ordinal]
        for ordinal in range(self.replicas):
            if ordinal not in self.groups:
                self._start(ordinal, self.current if ordinal < self.partition else self.spec)
        # Replace the highest outdated group at or above the partition, if enough groups would be left.
        for ordinal in sorted(self.groups, reverse=True):
            if ordinal < self.partition:
                break
            group = self.groups[ordinal]
            if group.version != self.spec:
                others = sum(1 for number, each in self.groups.items() if number != ordinal and each.ready)
                if not group.ready or others >= self.total - unavailable:
                    self._start(ordinal, self.spec)
                break
            if not group.ready:
                break
        if len(self.groups) == self.replicas and all(
            each.version == self.spec and each.ready for each in self.groups.values()
        ):
            self.current = self.spec

    def _serves(self, ordinal: int) -> bool:
        group = self.groups.get(ordinal)
        return group is not None and group.ready and group.version == self.spec

    def _start(self, ordinal: int, version: str) -> None:
        self.uids += 1
        self.groups[ordinal] = Group(version, self.uids, 1e9 if version.startswith("x") else self.order.choice((1, 3)))

    # -- the daemon

    def view(self) -> GroupView:
        uid = {"uid": "lws", "controller": True}
        body = {
            "metadata": {"name": "chat", "namespace": "team", "uid": "lws", "generation": 2},
            "spec": {
                "replicas": self.total,
                "rolloutStrategy": {"rollingUpdateConfiguration": {"partition": self.partition}},
            },
            "status": {"observedGeneration": 2 if self.observed == self.spec else 1},
        }
        leader_set = {
            "metadata": {
                "name": "chat",
                "uid": "set",
                "labels": {f"{NAME}/template-revision-hash": self.observed},
                "ownerReferences": [uid],
            },
            "status": {"currentRevision": f"chat-{self.current}"},
        }
        pods = [
            {
                "metadata": {
                    "name": f"chat-{ordinal}",
                    "uid": str(group.uid),
                    "labels": {
                        f"{NAME}/template-revision-hash": group.version,
                        "controller-revision-hash": f"chat-{group.version}",
                    },
                    "ownerReferences": [{"uid": "set", "controller": True}],
                },
                "status": {"conditions": [{"type": "Ready", "status": str(group.ready)}]},
            }
            for ordinal, group in self.groups.items()
        ]
        services = [
            {"metadata": {"name": f"chat-{each}", "uid": each, "labels": {"pod-template-hash": each}}}
            for each in self.services
        ]
        refs: list[dict[str, Any]] = [
            {"name": f"chat-{name}", "port": 80, "weight": weight} for name, weight in self.weights.items()
        ]
        if self.pools:
            refs = [
                {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name, "weight": weight}
                for name, weight in self.shares.items()
            ]
        route = {
            "metadata": {"annotations": {"avactl.dev/rollout-route": dump(RouteRules(({"matches": []},)))}},
            "spec": {"rules": [{"matches": [], "backendRefs": refs}]} if refs else {},
            "status": {"parents": [{"conditions": [{"type": "Accepted", "status": "True"}]}]},
        }
        config = RolloutConfig(
            traffic="gateway",
            steps=STEPS,
            surge=self.surge,
            in_place=False,
            port=80,
            ports={"http": 80},
            route="chat-rollout",
            pools=tuple(self.pools),
            start=60,
            deadline=60,
            analysis=self.analysis,
        )
        pools = {
            name: {
                "spec": {"selector": {"matchLabels": {f"{NAME}/template-revision-hash": version} if version else {}}}
            }
            for name, version in self.pools.items()
        }
        return view_groups(body, config, self.state, leader_set, pods, services, {ROUTE: route}, (), pools)

    def decide(self, writes: int | None = None) -> None:
        """Make one pass of the daemon, which is killed after so many writes."""
        for _ in range(12):
            view = self.view()
            answers = Answers()
            while True:
                plan = decide_groups(view, self.now, 1.0, answers)
                if plan.ask == "pods":
                    answers = answers._replace(pods=PodDiagnosis(PodStage.failing, "server: CrashLoopBackOff"))
                elif plan.ask == "measure":
                    failed = self.state.canary in self.errors
                    answers = answers._replace(measured=("failed" if failed else "passed", "errors"))
                else:
                    break
            assert not plan.ask
            for action in plan.actions:
                if writes == 0:
                    return
                writes = None if writes is None else writes - 1
                self._act(action)
            if plan.state != self.state:
                if writes == 0:
                    return
                writes = None if writes is None else writes - 1
                self.state = plan.state
                self.events += [each.reason for each in plan.events]
            elif not plan.actions:
                return

    def _act(self, action: Action) -> None:
        match action:
            case HoldGroups(partition):
                self.partition = partition
            case StopGroup(leader):
                ordinal = int(leader["metadata"]["name"].removeprefix("chat-"))
                if str(self.groups[ordinal].uid) == leader["metadata"]["uid"]:
                    del self.groups[ordinal]
            case AddService(revision):
                self.services.add(revision.hash)
            case RemoveService(service):
                assert not self.weights.get(service["metadata"]["uid"])
                self.services.remove(service["metadata"]["uid"])
            case Weigh(weights) if self.pools:
                view = self.view()
                self.shares = {view.pool_of(name): weight for name, weight in reversed(weights)}
                assert len(self.shares) == len(weights), (weights, self.pools)
                assert set(self.shares) <= set(self.pools), (weights, self.pools)
                self._follow_pools()
            case PointPool(pool, version):
                # Of a pool with requests, only one that selects all versions, or a lost one, is directed.
                assert not self.shares.get(pool) or self.pools[pool] in ("", *self.lost), (pool, version, self.pools)
                self.pools[pool] = version
                self._follow_pools()
            case Weigh(weights):
                assert {name for name, _ in weights} <= self.services
                self.weights = dict(reversed(weights))
            case _:
                raise AssertionError(action)

    def _follow_pools(self) -> None:
        self.weights = {}
        for pool, share in self.shares.items():
            self.weights[self.pools[pool]] = self.weights.get(self.pools[pool], 0) + share

    # -- what is observed

    def ready(self, version: str) -> int:
        return sum(1 for each in self.groups.values() if each.version == version and each.ready)

    def tick(self, writes: int | None = None) -> None:
        """Let half a second pass: the daemon and the controllers move in any order."""
        self.now += 0.5
        for group in self.groups.values():
            group.starts -= 0.5
        moves = [lambda: self.decide(writes), self.control]
        self.order.shuffle(moves)
        for move in moves:
            move()

    def until(self, settled: str, kills: bool = False, spec_changes: bool = False, outcome: str = "") -> None:
        """Run until only this version is there; requests never go where no group is ready."""
        for _ in range(4000):
            self.tick(self.order.choice((None, 0, 1, 2)) if kills else None)
            if not spec_changes:
                self.check()
            if self.is_settled(settled) and self.state.outcome == (outcome or self.state.outcome):
                return
        raise AssertionError((self.state, self.groups, self.weights, self.partition))

    def check(self) -> None:
        """No request goes to a version without a ready group, and all groups but one serve."""
        serving = sum(each.ready for each in self.groups.values())
        assert serving >= self.total - (0 if self.surge else 1), (self.state, self.groups)
        for version, weight in self.weights.items():
            assert not weight or self.ready(version), (version, self.weights, self.groups)

    def is_settled(self, version: str) -> bool:
        return (
            self.state.phase == "steady"
            and self.partition == GROUPS_HOLD
            and self.weights == {version: 100}
            and (set(self.pools.values()) == {version} or not self.pools)
            and ({version} <= self.services or bool(self.pools))
            and self.services <= {version, self.spec}
            and len(self.groups) >= self.total
            and all(each.version == version and each.ready for each in self.groups.values())
        )


POOLS = ("chat", "chat-alt")
BACKENDS = pytest.mark.parametrize("pools", [False, True], ids=["services", "pools"])


def running(pools: bool = False, **more: Any) -> Cluster:
    """A service whose first version serves; with an endpoint picker, pools select its pods."""
    cluster = Cluster(pools=dict.fromkeys(POOLS, "") if pools else {}, **more)
    for _ in range(60):
        cluster.tick()
    assert cluster.is_settled("a")
    assert cluster.state.proven
    return cluster


SIZES = [(4, 1), (4, 0), (2, 1), (2, 0), (1, 1), (5, 2), (3, 3)]


@pytest.mark.parametrize(("total", "surge"), SIZES)
@pytest.mark.parametrize("kills", [False, True])
@BACKENDS
def test_a_new_version_takes_over(total: int, surge: int, kills: bool, pools: bool) -> None:
    for seed in range(8):
        cluster = running(pools, total=total, surge=surge, order=random.Random(seed))
        cluster.spec = "b"
        cluster.until("b", kills)
        assert (cluster.state.outcome, cluster.state.version) == ("promoted", "b")
        assert len(cluster.groups) == total
        assert cluster.current == "b"


@pytest.mark.parametrize(("total", "surge"), SIZES)
@pytest.mark.parametrize("kills", [False, True])
@BACKENDS
def test_a_bad_version_is_rolled_back(total: int, surge: int, kills: bool, pools: bool) -> None:
    for seed in range(8):
        cluster = running(pools, total=total, surge=surge, analysis=MEASURED, errors={"b"}, order=random.Random(seed))
        cluster.spec = "b"
        cluster.until("a", kills, outcome="rolledBack")
        assert (cluster.state.outcome, cluster.state.rejected) == ("rolledBack", "b")
        for _ in range(50):
            cluster.tick()
            assert (cluster.state.phase, cluster.weights) == ("steady", {"a": 100})  # it is not tried again
        cluster.spec = "a"
        while cluster.state.reason != "Stable":
            cluster.tick()
        cluster.until("a", kills)
        assert len(cluster.groups) == total
        cluster.spec = "c"
        cluster.until("c", kills)


@pytest.mark.parametrize(("total", "surge"), SIZES)
def test_a_version_that_does_not_start_is_rolled_back(total: int, surge: int) -> None:
    cluster = running(total=total, surge=surge)
    cluster.spec = "x"
    cluster.until("a", outcome="rolledBack")
    assert (cluster.state.reason, cluster.state.rejected) == ("RolledBack", "x")
    assert "CrashLoopBackOff" in cluster.state.message


@pytest.mark.parametrize(("total", "surge"), SIZES)
@pytest.mark.parametrize("kills", [False, True])
@BACKENDS
def test_the_spec_changes_at_any_time(total: int, surge: int, kills: bool, pools: bool) -> None:
    for seed in range(12):
        order = random.Random(seed)
        cluster = running(pools, total=total, surge=surge, order=order)
        for version in ("b", "c", order.choice("abd")):
            cluster.spec = version
            for _ in range(order.randrange(120)):
                cluster.tick(order.choice((None, 0, 1)) if kills else None)
        cluster.until(cluster.spec, kills, spec_changes=True)
        assert cluster.current == cluster.spec


@pytest.mark.parametrize(("total", "surge"), SIZES)
@pytest.mark.parametrize("version", ["b", "a"])
def test_groups_that_serve_do_not_stop_for_one_that_cannot_start(
    total: int, surge: int, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of the last group breaks as the new version takes over; then the spec goes on, or back."""
    cluster = running(total=total, surge=surge)
    cluster.spec = "b"
    while cluster.weights.get("b") != 100:
        cluster.tick()
    start = cluster._start

    def start_elsewhere(ordinal: int, version: str) -> None:
        start(ordinal, version)
        if not ordinal:
            cluster.groups[0].starts = 1e9

    monkeypatch.setattr(cluster, "_start", start_elsewhere)
    cluster._start(0, cluster.current)
    cluster.spec = version
    for _ in range(600):
        cluster.tick()
        serving = {each for each, weight in cluster.weights.items() if weight}
        assert all(map(cluster.ready, serving)), (cluster.state, cluster.groups, cluster.weights)
    monkeypatch.undo()
    cluster.groups[0].starts = 0
    cluster.until(version, spec_changes=True)


@BACKENDS
def test_a_first_version_that_never_served_is_replaced_at_once(pools: bool) -> None:
    cluster = Cluster(spec="x", current="x", observed="x", pools=dict.fromkeys(POOLS, "") if pools else {}, lost={"x"})
    for _ in range(60):
        cluster.tick()
    assert cluster.state.reason == "Starting"
    assert "CrashLoopBackOff" in cluster.state.message
    cluster.spec = "b"
    cluster.until("b", spec_changes=True)
    assert "RolloutStarted" not in cluster.events


def test_a_service_that_was_rolling_is_compared_with_what_runs() -> None:
    """The strategy and the version change at once: the groups that run are the stable version."""
    cluster = Cluster(partition=0)
    for _ in range(20):
        cluster.control()
        for group in cluster.groups.values():
            group.starts -= 1
    cluster.spec = "b"
    cluster.until("b")
    assert cluster.events[0] == "RolloutStarted"


def test_a_lost_group_gets_no_requests() -> None:
    """A group of the new version that stops comes back with the stable one, and is replaced again."""
    cluster = running()
    cluster.spec = "b"
    while cluster.weights.get("b") != 25:
        cluster.tick()
    (lost,) = [ordinal for ordinal, each in cluster.groups.items() if each.version == "b"]
    del cluster.groups[lost]
    cluster.control()
    assert cluster.groups[lost].version == "a"
    cluster.decide()
    assert cluster.weights == {"a": 100, "b": 0}
    cluster.until("b")


def test_measurements_are_of_the_pods_of_each_version() -> None:
    cluster = running()
    cluster.spec = "b"
    while cluster.weights.get("b") != 50:
        cluster.tick()
    view = cluster.view()
    assert (view.pod_names("a"), view.pod_names("b")) == ("chat-(0|1|2)", "chat-(3|4)")
    assert view.pod_names("c") == "chat-(none)"


def test_pods_of_others_are_no_groups() -> None:
    cluster = running()
    view = cluster.view()
    forged = {
        "metadata": {
            "name": "chat-9",
            "uid": "x",
            "labels": {f"{NAME}/template-revision-hash": "b"},
            "ownerReferences": [{"uid": "other", "controller": True}],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    leader_set = {
        "metadata": {
            "name": "chat",
            "uid": "set",
            "labels": {f"{NAME}/template-revision-hash": "a b"},
            "ownerReferences": [{"uid": "lws", "controller": True}],
        },
        "status": {},
    }
    found = view_groups(dict(view.deployment), view.config, view.state, leader_set, [forged], (), {}, ())
    assert (found.target, dict(found.leaders)) == ("", {})


def test_a_pool_with_requests_is_not_directed_elsewhere() -> None:
    """For example, because somebody has deleted the version that it was for."""
    cluster = running(True)
    cluster.pools, cluster.shares = {"chat": "a", "chat-alt": "gone"}, {"chat": 50, "chat-alt": 50}
    cluster.spec = "b"
    while not cluster.ready("b"):
        cluster.tick()
    cluster.pools, cluster.shares = {"chat": "a", "chat-alt": "gone"}, {"chat": 50, "chat-alt": 50}
    view = cluster.view()
    stable, new = view.revisions["a"], view.revisions["b"]
    assert view.missing_backends(stable, new) == [Weigh((("a", 100),))]
    cluster.shares = {"chat": 100}
    assert cluster.view().missing_backends(stable, new) == [PointPool("chat-alt", "b")]
