"""Rollouts of groups of pods, against a model of the controllers of LeaderWorkerSets and StatefulSets: pure.

The model follows `rollingUpdateParameters` of sigs.k8s.io/lws 0.9 and the StatefulSet controller, one move at a time.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from math import ceil
from typing import Any

import pytest

from avactl.contracts.document import dump
from avactl.contracts.names import SERVICE_VERSION
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
from avactl.daemons.serving.groups import GroupSet, GroupView, view_groups, view_set
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
class Role:
    """One LeaderWorkerSet and its controllers. A version that begins with `x` does not start."""

    name: str
    total: int
    surge: int
    order: random.Random
    label: str
    """Label of pods with their version."""
    uids: Iterator[int]
    spec: str = "a"
    current: str = "a"
    partition: int = GROUPS_HOLD
    observed: str = "a"
    groups: dict[int, Group] = field(default_factory=dict)
    replicas: int = 0
    broken: set[int] = field(default_factory=set)
    """Ordinals whose next groups do not start."""

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
                self.start(ordinal, self.current if ordinal < self.partition else self.spec)
        # Replace the highest outdated group at or above the partition, if enough groups would be left.
        for ordinal in sorted(self.groups, reverse=True):
            if ordinal < self.partition:
                break
            group = self.groups[ordinal]
            if group.version != self.spec:
                others = sum(1 for number, each in self.groups.items() if number != ordinal and each.ready)
                if not group.ready or others >= self.total - unavailable:
                    self.start(ordinal, self.spec)
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

    def start(self, ordinal: int, version: str) -> None:
        lasting = version.startswith("x") or ordinal in self.broken
        self.groups[ordinal] = Group(version, next(self.uids), 1e9 if lasting else self.order.choice((1, 3)))

    def ready(self, version: str) -> int:
        return sum(1 for each in self.groups.values() if each.version == version and each.ready)

    def view(self, config: RolloutConfig) -> GroupSet:
        uid = {"uid": self.name, "controller": True}
        body = {
            "metadata": {
                "name": self.name,
                "namespace": "team",
                "uid": self.name,
                "generation": 2,
                "labels": {self.label: self.spec},
            },
            "spec": {
                "replicas": self.total,
                "rolloutStrategy": {"rollingUpdateConfiguration": {"partition": self.partition}},
            },
            "status": {"observedGeneration": 2 if self.observed == self.spec else 1},
        }
        leader_set = {
            "metadata": {
                "name": self.name,
                "uid": f"{self.name}-set",
                "labels": {self.label: self.observed},
                "ownerReferences": [uid],
            },
            "status": {"currentRevision": f"{self.name}-{self.current}"},
        }
        pods = [
            {
                "metadata": {
                    "name": f"{self.name}-{ordinal}",
                    "uid": str(group.uid),
                    "labels": {
                        self.label: group.version,
                        "controller-revision-hash": f"{self.name}-{group.version}",
                    },
                    "ownerReferences": [{"uid": f"{self.name}-set", "controller": True}],
                },
                "status": {"conditions": [{"type": "Ready", "status": str(group.ready)}]},
            }
            for ordinal, group in self.groups.items()
        ]
        return view_set(body, config, leader_set, pods)


@dataclass
class Cluster:
    """One service, its controllers, route and daemon."""

    total: int = 4
    surge: int = 1
    analysis: RolloutAnalysis | None = None
    errors: set[str] = field(default_factory=set)
    """Versions whose measurements fail."""
    order: random.Random = field(default_factory=lambda: random.Random(1))
    first: str = "a"
    """Version that runs at first."""
    partition: InitVar[int] = GROUPS_HOLD
    prefill: int = 0
    """Groups of another role; 0: there is none."""
    roles: dict[str, Role] = field(default_factory=dict)
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
    lost: set[str] = field(default_factory=set)
    """Versions that were stable, and never served."""

    def __post_init__(self, partition: int) -> None:
        sizes = {"chat": self.total, **({"chat-prefill": self.prefill} if self.prefill else {})}
        uids = itertools.count(1)
        for name, total in sizes.items():
            role = Role(name, total, self.surge, self.order, self.label, uids, self.first, self.first, partition)
            role.observed = self.first
            self.roles[name] = role

    @property
    def label(self) -> str:
        return SERVICE_VERSION if self.prefill else f"{NAME}/template-revision-hash"

    @property
    def main(self) -> Role:
        return self.roles["chat"]

    @property
    def spec(self) -> str:
        return self.main.spec

    @property
    def groups(self) -> list[Group]:
        return [group for role in self.roles.values() for group in role.groups.values()]

    def deploy(self, version: str) -> None:
        """Change the specs of all roles."""
        for role in self.roles.values():
            role.spec = version

    def control(self) -> None:
        """Make one move of the controllers."""
        for role in self.roles.values():
            role.control()

    # -- the daemon

    def view(self) -> GroupView:
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
            roles=tuple(self.roles)[1:],
            start=60,
            deadline=60,
            analysis=self.analysis,
        )
        pools = {
            name: {"spec": {"selector": {"matchLabels": {self.label: version} if version else {}}}}
            for name, version in self.pools.items()
        }
        sets = [each.view(config) for each in self.roles.values()]
        return view_groups(sets, config, self.state, services, {ROUTE: route}, (), pools)

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
            case HoldGroups(name, partition):
                self.roles[name].partition = partition
            case StopGroup(leader):
                name, _, ordinal = leader["metadata"]["name"].rpartition("-")
                groups = self.roles[name].groups
                if str(groups[int(ordinal)].uid) == leader["metadata"]["uid"]:
                    del groups[int(ordinal)]
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
                # Of a pool with requests, only one that selects all versions, or one without pods, is directed.
                selected = self.pools[pool]
                idle = not selected or selected in self.lost or not self.ready(selected)
                assert not self.shares.get(pool) or idle, (pool, version, self.pools)
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
        """Return the ready groups of a version, of the role that has fewest."""
        return min(each.ready(version) for each in self.roles.values())

    def tick(self, writes: int | None = None) -> None:
        """Let half a second pass: the daemon and the controllers move in any order."""
        self.now += 0.5
        for group in self.groups:
            group.starts -= 0.5
        moves = [lambda: self.decide(writes), self.control]
        self.order.shuffle(moves)
        for move in moves:
            move()

    def until(self, settled: str, kills: bool = False, spec_changes: bool = False, outcome: str = "") -> None:
        """Run until only this version is there; requests never go where no group is ready."""
        for _ in range(400):
            self.tick(self.order.choice((None, 0, 1, 2)) if kills else None)
            if not spec_changes:
                self.check()
            if self.is_settled(settled) and self.state.outcome == (outcome or self.state.outcome):
                return
        raise AssertionError((self.state, self.roles, self.weights))

    def check(self) -> None:
        """No request goes to a version without a ready group, and all groups but one serve."""
        for role in self.roles.values():
            serving = sum(each.ready for each in role.groups.values())
            assert serving >= role.total - (0 if self.surge else 1), (self.state, role)
        for version, weight in self.weights.items():
            assert not weight or self.ready(version), (version, self.weights, self.groups)

    def is_settled(self, version: str) -> bool:
        return (
            self.state.phase == "steady"
            and all(each.partition == GROUPS_HOLD for each in self.roles.values())
            and self.weights == {version: 100}
            and (set(self.pools.values()) == {version} or not self.pools)
            and ({version} <= self.services or bool(self.pools))
            and self.services <= {version, self.spec}
            and all(len(each.groups) >= each.total for each in self.roles.values())
            and all(each.version == version and each.ready for each in self.groups)
        )


POOLS = ("chat", "chat-alt")
BACKENDS = pytest.mark.parametrize("form", ["services", "pools", "roles"])


def running(form: str = "services", **more: Any) -> Cluster:
    """A service whose first version serves; with an endpoint picker, pools select its pods, of one role or of two."""
    if form == "roles":
        more.setdefault("prefill", max(more.get("total", 4) // 2, 1 if more.get("surge", 1) else 2))
    cluster = Cluster(pools={} if form == "services" else dict.fromkeys(POOLS, ""), **more)
    for _ in range(60):
        cluster.tick()
    assert cluster.is_settled("a")
    assert cluster.state.proven
    return cluster


SIZES = [(4, 1), (4, 0), (2, 1), (2, 0), (1, 1), (5, 2), (3, 3)]


@pytest.mark.parametrize(("total", "surge"), SIZES)
@pytest.mark.parametrize("kills", [False, True])
@BACKENDS
def test_a_new_version_takes_over(total: int, surge: int, kills: bool, form: str) -> None:
    for seed in range(8):
        cluster = running(form, total=total, surge=surge, order=random.Random(seed))
        cluster.deploy("b")
        cluster.until("b", kills)
        assert (cluster.state.outcome, cluster.state.version) == ("promoted", "b")
        assert len(cluster.main.groups) == total
        assert all(each.current == "b" for each in cluster.roles.values())


@pytest.mark.parametrize(("total", "surge"), SIZES)
@pytest.mark.parametrize("kills", [False, True])
@BACKENDS
def test_a_bad_version_is_rolled_back(total: int, surge: int, kills: bool, form: str) -> None:
    for seed in range(8):
        cluster = running(form, total=total, surge=surge, analysis=MEASURED, errors={"b"}, order=random.Random(seed))
        cluster.deploy("b")
        cluster.until("a", kills, outcome="rolledBack")
        assert (cluster.state.outcome, cluster.state.rejected) == ("rolledBack", "b")
        for _ in range(50):
            cluster.tick()
            assert (cluster.state.phase, cluster.weights) == ("steady", {"a": 100})  # it is not tried again
        cluster.deploy("a")
        while cluster.state.reason != "Stable":
            cluster.tick()
        cluster.until("a", kills)
        assert len(cluster.main.groups) == total
        cluster.deploy("c")
        cluster.until("c", kills)


@pytest.mark.parametrize(("total", "surge"), SIZES)
def test_a_version_that_does_not_start_is_rolled_back(total: int, surge: int) -> None:
    cluster = running(total=total, surge=surge)
    cluster.deploy("x")
    cluster.until("a", outcome="rolledBack")
    assert (cluster.state.reason, cluster.state.rejected) == ("RolledBack", "x")
    assert "CrashLoopBackOff" in cluster.state.message


@pytest.mark.parametrize(("total", "surge"), SIZES)
@pytest.mark.parametrize("kills", [False, True])
@BACKENDS
def test_the_spec_changes_at_any_time(total: int, surge: int, kills: bool, form: str) -> None:
    for seed in range(12):
        order = random.Random(seed)
        cluster = running(form, total=total, surge=surge, order=order)
        for version in ("b", "c", order.choice("abd")):
            for role in order.sample(list(cluster.roles.values()), len(cluster.roles)):
                role.spec = version
                for _ in range(order.randrange(3) if len(cluster.roles) > 1 else 0):
                    cluster.tick()
            for _ in range(order.randrange(120)):
                cluster.tick(order.choice((None, 0, 1)) if kills else None)
        cluster.until(cluster.spec, kills, spec_changes=True)
        assert all(each.current == cluster.spec for each in cluster.roles.values())


@pytest.mark.parametrize(("total", "surge"), SIZES)
@pytest.mark.parametrize("version", ["b", "a"])
def test_groups_that_serve_do_not_stop_for_one_that_cannot_start(total: int, surge: int, version: str) -> None:
    """The machine of the last group breaks as the new version takes over; then the spec goes on, or back."""
    cluster = running(total=total, surge=surge)
    cluster.deploy("b")
    while cluster.weights.get("b") != 100:
        cluster.tick()
    cluster.main.broken = {0}
    cluster.main.start(0, cluster.main.current)
    cluster.deploy(version)
    for _ in range(600):
        cluster.tick()
        serving = {each for each, weight in cluster.weights.items() if weight}
        assert all(map(cluster.ready, serving)), (cluster.state, cluster.groups, cluster.weights)
    cluster.main.broken = set()
    cluster.main.groups[0].starts = 0
    cluster.until(version, spec_changes=True)


@BACKENDS
def test_a_first_version_that_never_served_is_replaced_at_once(form: str) -> None:
    pools = {} if form == "services" else dict.fromkeys(POOLS, "")
    cluster = Cluster(first="x", pools=pools, lost={"x"}, prefill=2 if form == "roles" else 0)
    for _ in range(60):
        cluster.tick()
    assert cluster.state.reason == "Starting"
    assert "CrashLoopBackOff" in cluster.state.message
    cluster.deploy("b")
    cluster.until("b", spec_changes=True)
    assert "RolloutStarted" not in cluster.events


def test_a_service_that_was_rolling_is_compared_with_what_runs() -> None:
    """The strategy and the version change at once: the groups that run are the stable version."""
    cluster = Cluster(partition=0)
    for _ in range(20):
        cluster.control()
        for group in cluster.groups:
            group.starts -= 1
    cluster.deploy("b")
    cluster.until("b")
    assert cluster.events[0] == "RolloutStarted"


def test_a_lost_group_gets_no_requests() -> None:
    """A group of the new version that stops comes back with the stable one, and is replaced again."""
    cluster = running()
    cluster.deploy("b")
    while cluster.weights.get("b") != 25:
        cluster.tick()
    groups = cluster.main.groups
    (lost,) = [ordinal for ordinal, each in groups.items() if each.version == "b"]
    del groups[lost]
    cluster.control()
    assert groups[lost].version == "a"
    cluster.decide()
    assert cluster.weights == {"a": 100, "b": 0}
    cluster.until("b")


def test_measurements_are_of_the_pods_of_each_version() -> None:
    cluster = running()
    cluster.deploy("b")
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
            "ownerReferences": [{"uid": "chat", "controller": True}],
        },
        "status": {},
    }
    found = view_set(view.sets[0].body, view.config, leader_set, [forged])
    assert (found.target, dict(found.leaders)) == ("", {})


def test_a_pool_with_requests_is_not_directed_elsewhere() -> None:
    """For example, because somebody has deleted the version that it was for."""
    cluster = running("pools")
    cluster.pools, cluster.shares = {"chat": "a", "chat-alt": "gone"}, {"chat": 50, "chat-alt": 50}
    cluster.deploy("b")
    while not cluster.ready("b"):
        cluster.tick()
    cluster.pools, cluster.shares = {"chat": "a", "chat-alt": "gone"}, {"chat": 50, "chat-alt": 50}
    view = cluster.view()
    stable, new = view.revisions["a"], view.revisions["b"]
    assert view.missing_backends(stable, new) == [Weigh((("a", 100),))]
    cluster.shares = {"chat": 100}
    assert cluster.view().missing_backends(stable, new) == [PointPool("chat-alt", "b")]


def test_a_role_that_does_not_start_rolls_back_both() -> None:
    cluster = running("roles")
    cluster.roles["chat-prefill"].broken = set(range(10))
    cluster.deploy("b")
    for _ in range(60):
        cluster.tick()
        assert cluster.weights == {"a": 100}
    assert cluster.main.ready("b") == 1
    assert cluster.state.message == "1 of 1 of chat and 0 of 1 of chat-prefill are ready: server: CrashLoopBackOff"
    cluster.roles["chat-prefill"].broken = set()
    cluster.until("a", outcome="rolledBack")
    assert cluster.state.rejected == "b"


def test_a_version_without_a_role_gets_no_requests() -> None:
    cluster = running("roles")
    cluster.deploy("b")
    while cluster.weights.get("b") != 25:
        cluster.tick()
    groups = cluster.roles["chat-prefill"].groups
    (lost,) = [ordinal for ordinal, each in groups.items() if each.version == "b"]
    del groups[lost]
    cluster.decide()
    assert cluster.weights == {"a": 100, "b": 0}
    cluster.until("b")


def test_nothing_is_replaced_by_a_part_of_a_version() -> None:
    """Whoever applies the specs has died between two roles; the rollout of before may be under way."""
    cluster = running("roles")
    cluster.deploy("b")
    while cluster.weights.get("b") != 50:
        cluster.tick()
    cluster.main.spec = "c"
    for _ in range(80):
        cluster.tick()
    assert {each.version for each in cluster.groups} == {"a", "b"}
    assert cluster.weights == {"a": 50, "b": 50}
    assert (cluster.state.reason, cluster.state.message) == (
        "RolesDiffer",
        "the roles have different versions: apply the specs again",
    )
    cluster.deploy("c")
    cluster.until("c", spec_changes=True)
    assert cluster.state.message == "version c"


def test_a_role_that_is_missing() -> None:
    cluster = running("roles")
    found = cluster.view()
    view = view_groups(found.sets[:1], found.config, found.state, (), {}, ())
    assert decide_groups(view, 0.0, 1.0, Answers()).state.message == (
        "LeaderWorkerSet chat-prefill does not exist: apply the specs"
    )


@pytest.mark.parametrize("kills", [False, True])
def test_roles_are_scaled_at_any_time(kills: bool) -> None:
    """By `kubectl scale` or an autoscaler of their own."""
    for seed in range(30):
        order = random.Random(seed)
        cluster = running("roles", order=order)
        for version in ("b", "c"):
            cluster.deploy(version)
            for _ in range(4):
                order.choice(list(cluster.roles.values())).total = order.randrange(1, 6)
                for _ in range(order.randrange(60)):
                    cluster.tick(order.choice((None, 0, 1)) if kills else None)
        cluster.until("c", kills, spec_changes=True)
        assert {len(each.groups) - each.total for each in cluster.roles.values()} == {0}


def _desired(metric: str, load: float, role: Role) -> int:
    """Return the replicas that Kubernetes' autoscaler wants. `load`: the sum of all groups, in targets.

    A `Value`, such as a utilization, is what each ready leader has of the load.

    Source: `GetExternalPerPodMetricReplicas` and `GetExternalMetricReplicas` in
    pkg/controller/podautoscaler/replica_calculator.go of Kubernetes 1.36.
    """
    if metric == "AverageValue":
        if role.groups and 0.9 <= load / len(role.groups) <= 1.1:
            return len(role.groups)
        return max(1, ceil(load - 1e-9))
    ready = sum(each.ready for each in role.groups.values())
    if not ready or 0.9 <= load / ready <= 1.1:
        return role.total
    return max(1, ceil(load / ready * ready - 1e-9))


@pytest.mark.parametrize("version", ["b", "x"])
@pytest.mark.parametrize("metric", ["AverageValue", "Value"])
@BACKENDS
def test_autoscalers_at_constant_load_add_no_groups_but_the_surge(version: str, metric: str, form: str) -> None:
    """Autoscalers of its own, one for each role, count the groups of both versions and those of the surge; these stay
    after a roll-back."""
    for begun, surge, percent in itertools.product((2, 10), (1, 2), (0.8, 1.0, 1.05)):
        cluster = running(form, total=begun, surge=surge, order=random.Random(begun))
        loads = {name: percent * role.total for name, role in cluster.roles.items()}
        before = {name: role.total for name, role in cluster.roles.items()}
        cluster.deploy(version)
        for tick in range(400):
            cluster.tick()
            for name, role in cluster.roles.items():
                if tick % 5 == 0:
                    role.total = _desired(metric, loads[name], role)
                # A load within the tolerance may have the groups of one that is 10% higher.
                most = max(before[name], ceil(loads[name] / 0.9))
                assert len(role.groups) <= most + surge, (begun, surge, percent, name)
        assert cluster.state.outcome == ("promoted" if version == "b" else "rolledBack"), (begun, surge, percent)


def test_scaled_roles_have_as_many_groups_of_a_version_as_a_step_asks_for() -> None:
    cluster = running("roles", total=3, prefill=2)
    cluster.deploy("b")
    while cluster.weights.get("b") != 25:
        cluster.tick()
    cluster.main.total, cluster.roles["chat-prefill"].total = 5, 3
    while cluster.main.ready("b") < 2:
        cluster.tick()
        assert cluster.roles["chat-prefill"].ready("b") == 1
    for _ in range(4):
        cluster.tick()
    assert {name: (each.ready("a"), each.ready("b")) for name, each in cluster.roles.items()} == {
        "chat": (4, 2),
        "chat-prefill": (3, 1),
    }
    cluster.until("b")


@BACKENDS
def test_a_stable_version_that_does_not_start_again(form: str) -> None:
    """Its image is gone, for example. The new version keeps the requests, and it is said why."""
    cluster = running(form, total=2, prefill=2 if form == "roles" else 0)
    cluster.deploy("b")
    while cluster.weights.get("b") != 50:
        cluster.tick()
    for role in cluster.roles.values():
        role.broken = set(range(10))
        for ordinal, group in list(role.groups.items()):
            if group.version == "a":
                role.start(ordinal, "a")
    cluster.deploy("a")
    while cluster.state.phase != "aborting":
        cluster.tick()
    for _ in range(300):
        cluster.tick()
    assert cluster.state.phase == "aborting"
    assert "version a does not start again: 0 of 2 groups of chat are ready" in cluster.state.message
    assert cluster.events.count("RolloutNotReturned") == 1
    for role in cluster.roles.values():
        role.broken = set()
        for group in role.groups.values():
            group.starts = 0
    cluster.until("a", spec_changes=True)


def test_measurements_are_of_all_roles() -> None:
    cluster = running("roles")
    cluster.deploy("b")
    while cluster.weights.get("b") != 50:
        cluster.tick()
    assert cluster.view().pod_names("b") == "(chat-(3|4)|chat-prefill-(2))"


def test_a_service_that_had_no_roles_before() -> None:
    """Its pods have no version that is known of roles: what the spec says starts, as at first."""
    cluster = running("roles")
    cluster.state = RolloutState(stable="e41", proven=True, reason="Stable")
    for role in cluster.roles.values():
        role.current = "A"  # no version
        for group in role.groups.values():
            group.version = "A"
    cluster.until("a", spec_changes=True)
    assert "RolloutStarted" not in cluster.events


def test_a_role_that_has_finished_is_not_taken_back() -> None:
    """Groups of it that stop come back with the new version, so its only group of the other role must not stop."""
    cluster = running("roles", total=1, prefill=1)
    cluster.deploy("b")
    while cluster.weights.get("b") != 100:
        cluster.tick()
    cluster.main.broken = {0}
    while cluster.roles["chat-prefill"].current != "b":
        cluster.tick()
    cluster.deploy("c")
    for _ in range(200):
        cluster.tick()
        assert cluster.weights == {"a": 0, "b": 100}
        assert cluster.ready("b") == 1
    assert cluster.state.reason == "Unfinished"
    cluster.deploy("b")
    cluster.main.broken = set()
    cluster.main.groups[0].starts = 0
    cluster.until("b")
    cluster.deploy("c")
    cluster.until("c")
