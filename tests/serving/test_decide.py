"""Decisions that take minutes in a cluster, and what others write: pure."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from avactl.contracts.document import DocumentError, load
from avactl.contracts.serving import (
    RolloutAnalysis,
    RolloutConfig,
    RolloutQuery,
    RolloutRoute,
    RolloutState,
    RolloutStep,
    RouteRules,
)
from avactl.daemons.serving.decide import decide
from avactl.daemons.serving.revisions import new_body, revisions_of
from avactl.daemons.serving.sizes import Sizes, next_sizes, step_sizes
from avactl.daemons.serving.view import Answers, Create, Reject, Scale, ServingPlan, View, Weigh
from avactl.kube.pod_diagnosis import PodDiagnosis, PodStage

LABELS = {"app": "web", "app.kubernetes.io/component": "server"}


def deployment(image: str, total: int = 4) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team", "uid": "u"},
        "spec": {
            "paused": True,
            "replicas": total,
            "progressDeadlineSeconds": 600,
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "server", "image": image}]}},
        },
    }


def replica_set(image: str, hash: str, replicas: int, ready: int) -> dict[str, Any]:
    body = new_body(deployment(image), hash, replicas, attached=False)
    body["metadata"] |= {"generation": 1, "uid": hash, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**body, "status": {"observedGeneration": 1, "availableReplicas": ready, "replicas": replicas}}


def by_replicas(in_place: bool = False, **more: Any) -> RolloutConfig:
    """A canary by replicas with two steps."""
    steps = (RolloutStep(percent=25, pause=60), RolloutStep(percent=50, pause=60))
    fields: dict[str, Any] = {"traffic": "replicas", "steps": steps, "surge": 1, "port": 80, "ports": {"http": 80}}
    return RolloutConfig(**{**fields, "in_place": in_place, **more})


def view(state: RolloutState, stable: int, canary: int, ready: int, in_place: bool = False) -> View:
    """A canary by replicas whose new version has `ready` pods."""
    made = deployment("b")
    config = by_replicas(in_place)
    sets = [replica_set("a", "old", stable, stable), replica_set("b", "new", canary, ready)]
    return View(made, config, state, revisions_of(made, sets), {}, {}, {})


NONE = Sizes(0, 0)
STEPPING = RolloutState(stable="old", canary="new", phase="stepping", since=1000.0, proven=True)


def test_a_version_that_is_not_ready_in_time_is_rejected() -> None:
    crashing = Answers(pods=PodDiagnosis(PodStage.failing, "server: CrashLoopBackOff"))
    assert decide(view(STEPPING, 4, 1, 0), 1005.0, 1.0, crashing).state == STEPPING
    held = decide(view(STEPPING, 4, 1, 0), 1300.0, 1.0, crashing).state
    assert (held.phase, held.reason, held.message) == (
        "stepping",
        "Starting",
        "0 of 1 pods are ready: server: CrashLoopBackOff",
    )
    late = decide(view(held, 4, 1, 0), 1601.0, 1.0, crashing).state
    assert (late.phase, late.reason) == ("aborting", "NotReady")
    (reject,) = decide(view(late, 4, 1, 0), 1602.0, 1.0).actions
    assert isinstance(reject, Reject)


def test_the_time_of_a_start_counts_from_the_end_of_the_copy() -> None:
    def at(now: float, state: RolloutState, *pods: Any) -> RolloutState:
        observed = view(state, 4, 1, 0)
        observed = replace(observed, config=observed.config.replace(start=600.0))
        observed.deployment["spec"]["progressDeadlineSeconds"] = 30_000
        return decide(observed, now, 1.0, Answers(pods=PodDiagnosis(*pods))).state

    copies = (PodStage.preparing, "init container model runs since 2026-01-01T00:00:00Z")
    held = at(11_000.0, STEPPING, *copies)
    assert (held.phase, held.reason, held.message) == ("stepping", "Starting", f"0 of 1 pods are ready: {copies[1]}")
    # A copy that does not end is given up: by its size, it ought to have.
    late = at(31_001.0, held, *copies)
    assert (late.phase, late.reason) == ("aborting", "NotReady")
    assert late.message == f"0 of 1 pods are ready after 30001 s: {copies[1]}"
    loads = (PodStage.starting, "server runs, and its startup probe does not succeed", 11_000.0)
    assert at(11_599.0, held, *loads).phase == "stepping"
    assert at(11_601.0, held, *loads).phase == "aborting"
    # A container that crashes again and again no longer says when it first started, but was pulled long after the
    # pod was initialized.
    crashed = at(11_100.0, held, PodStage.failing, "server ended with exit code 1, restarted once", 11_000.0)
    again = (PodStage.failing, "server ended with exit code 1, restarted 5 times", 1001.0)
    assert at(11_599.0, crashed, *again).phase == "stepping"
    assert at(11_601.0, crashed, *again).phase == "aborting"
    # It fails before it has copied anything: since the pods exist.
    assert at(1601.0, STEPPING, PodStage.failing, "model: ImagePullBackOff").phase == "aborting"


def test_the_time_without_a_place_does_not_count() -> None:
    full = Answers(pods=PodDiagnosis(PodStage.unscheduled, "0/2 nodes are available"))
    starts = Answers(pods=PodDiagnosis(PodStage.starting, "server runs"))
    held = decide(view(STEPPING, 4, 1, 0), 9000.0, 1.0, full).state
    placed = decide(view(held, 4, 1, 0), 9001.0, 1.0, starts).state
    assert (placed.phase, placed.reason, placed.since) == ("stepping", "Starting", 9001.0)
    assert decide(view(placed, 4, 1, 0), 9601.0, 1.0, starts).state.phase == "stepping"
    assert decide(view(placed, 4, 1, 0), 9602.0, 1.0, starts).state.phase == "aborting"


def test_the_condition_says_why_the_first_version_does_not_start() -> None:
    crashing = Answers(pods=PodDiagnosis(PodStage.failing, "model ended with exit code 1: no such bucket"))
    first = RolloutState(stable="new", since=1000.0, reason="Starting")

    def at(now: float, state: RolloutState, answers: Answers, ready: int = 0) -> ServingPlan:
        made = deployment("b")
        config = by_replicas(steps=(RolloutStep(percent=25, pause=60),))
        sets = revisions_of(made, [replica_set("b", "new", 4, ready)])
        attached = {hash: each._replace(attached=True) for hash, each in sets.items()}
        return decide(View(made, config, state, attached, {}, {}, {}), now, 1.0, answers)

    assert at(1005.0, first, Answers()).ask == ""  # pods take some seconds
    assert at(1011.0, first, Answers()).ask == "pods"
    said = at(1011.0, first, crashing)
    assert said.state.message == "0 of 4 pods are ready: model ended with exit code 1: no such bucket"
    assert [each.reason for each in said.events] == ["RolloutStarting"]
    again = at(1012.0, said.state, crashing)
    assert (again.state, again.events) == (said.state, [])
    assert at(1013.0, said.state, crashing, ready=1).state.reason == "Stable"


def test_pods_without_capacity_wait_or_go_in_place() -> None:
    full = Answers(pods=PodDiagnosis(PodStage.unscheduled, "0/2 nodes are available"))
    held = decide(view(STEPPING, 4, 1, 0), 9000.0, 1.0, full).state
    assert (held.phase, held.reason) == ("stepping", "NoRoom")
    state = decide(view(STEPPING, 4, 1, 0, in_place=True), 1300.0, 1.0, full).state
    assert state.in_place
    (scale,) = decide(view(state, 4, 1, 0, in_place=True), 1301.0, 1.0).actions
    assert isinstance(scale, Scale)
    assert (scale.revision.hash, scale.replicas) == ("old", 3)


def test_the_stable_version_is_whole_before_the_new_one_loses_a_pod() -> None:
    aborting = STEPPING.replace(phase="aborting", reason="AnalysisFailed", message="worse")
    found = view(aborting, 2, 2, 2)
    found.revisions["new"].body["metadata"].setdefault("annotations", {})["avactl.dev/rejected"] = "worse"
    revisions = revisions_of(found.deployment, [each.body for each in found.revisions.values()])
    found = View(found.deployment, found.config, aborting, revisions, {}, {}, {})
    (scale,) = decide(found, 1001.0, 1.0).actions
    assert (scale.revision.hash, scale.replicas) == ("old", 4)  # type: ignore[union-attr]


MEASURED = RolloutAnalysis(interval=10, failures=1, queries=(RolloutQuery(name="errors", promql="x", max=1),))
VALIDATED = RolloutAnalysis(interval=10, failures=1, queries=(), job="web-validation")


def sleeping(
    state: RolloutState,
    sets: list[dict[str, Any]],
    *,
    total: int = 0,
    analysis: RolloutAnalysis | None = None,
    surge: int = 1,
    in_place: bool = False,
) -> View:
    """A canary by replicas of a service without pods."""
    made = deployment("b", total)
    config = by_replicas(in_place, surge=surge, analysis=analysis)
    return View(made, config, state, revisions_of(made, sets), {}, {}, {})


def scaled(plan: ServingPlan) -> list[tuple[str, int]]:
    return [(each.revision.hash, each.replicas) for each in plan.actions if isinstance(each, Scale)]


def test_a_service_without_pods_has_served() -> None:
    """Its version is not replaced at once, as one that has never been ready: it may be woken by the next request."""
    old = replica_set("a", "old", 0, 0)
    old["metadata"] |= {"ownerReferences": [{**old["metadata"]["ownerReferences"][0], "controller": True}]}
    labels = {**old["metadata"]["labels"], "pod-template-hash": "last"}
    notes = {"deployment.kubernetes.io/revision": "7"}
    newest = {**old, "metadata": {**old["metadata"], "name": "web-last", "annotations": notes, "labels": labels}}
    newest["spec"] = {**newest["spec"], "selector": {"matchLabels": {**LABELS, "pod-template-hash": "last"}}}
    adopted = decide(sleeping(RolloutState(), [old, newest]), 1000.0, 1.0).state
    assert (adopted.stable, adopted.proven) == ("last", True)
    begun = decide(sleeping(adopted, [old, newest]), 1000.0, 1.0)
    assert (begun.state.phase, begun.actions) == ("starting", [])

    never = decide(sleeping(RolloutState(stable="old", proven=False), [old]), 1000.0, 1.0)
    assert (never.state.phase, [type(each) for each in never.actions]) == ("steady", [Create])


def test_a_service_without_pods_is_stable() -> None:
    body = replica_set("b", "new", 0, 0)
    body["metadata"]["ownerReferences"][0]["controller"] = True
    for proven in (True, False):
        state = decide(sleeping(RolloutState(stable="new", proven=proven), [body]), 1000.0, 1.0).state
        assert (state.reason, state.proven) == ("Stable", proven)


@pytest.mark.parametrize("analysis", [MEASURED, VALIDATED], ids=["queries", "job"])
@pytest.mark.parametrize("phase", ["starting", "stepping"])
def test_without_pods_nothing_is_measured(analysis: RolloutAnalysis, phase: str) -> None:
    """A rollout that compares versions waits until a request has started a pod, and never promotes before."""
    state = STEPPING.replace(phase=phase, reached=1000.0, passed=3)
    running = [replica_set("a", "old", 1, 1), replica_set("b", "new", 1, 1)]
    assert scaled(decide(sleeping(state, running, analysis=analysis), 1001.0, 1.0)) == [("old", 0), ("new", 0)]
    asleep = [replica_set("a", "old", 0, 0), replica_set("b", "new", 0, 0)]
    for now in (1001.0, 1e6, 1e9):
        plan = decide(sleeping(state, asleep, analysis=analysis), now, 1.0, Answers(measured=("passed", "1")))
        assert (plan.actions, plan.ask) == ([], "")
        state = plan.state
        assert (state.phase, state.reason, state.passed) == (phase, "NoRequests", 0)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_version_has_its_whole_time_once_the_service_has_pods_again(in_place: bool) -> None:
    """It is not rejected for the days in which there was nothing to start."""
    asleep = [replica_set("a", "old", 0, 0), replica_set("b", "new", 0, 0)]
    state = decide(sleeping(STEPPING, asleep, analysis=MEASURED, in_place=in_place), 1001.0, 1.0).state
    why, now = Answers(pods=PodDiagnosis(PodStage.starting, "loads its model"), measured=("passed", "1")), 1e6
    awake = decide(sleeping(state, asleep, total=4, analysis=MEASURED, in_place=in_place), now, 1.0, why).state
    assert awake.since == now
    plan = decide(sleeping(awake, asleep, total=4, analysis=MEASURED, in_place=in_place), now, 1.0, why)
    assert ("new", 1) in scaled(plan)
    loading = [replica_set("a", "old", 3, 3), replica_set("b", "new", 1, 0)]
    state = decide(sleeping(awake, loading, total=4, analysis=MEASURED), now + 500, 1.0, why).state
    assert (state.phase, state.reason) == ("stepping", "Starting")
    # Also if the daemon was away meanwhile, the pods are measured anew.
    ready = [replica_set("a", "old", 3, 3), replica_set("b", "new", 1, 1)]
    plan = decide(sleeping(awake, ready, total=4, analysis=MEASURED), now + 500, 1.0, why)
    assert (plan.state.reached, plan.state.passed) == (now + 500, 0)


@pytest.mark.parametrize(("surge", "in_place"), [(1, False), (0, False), (0, True)])
def test_a_version_without_analysis_starts_once_before_it_is_promoted(surge: int, in_place: bool) -> None:
    def step(state: RolloutState, sets: list[dict[str, Any]], now: float) -> ServingPlan:
        crashes = Answers(pods=PodDiagnosis(PodStage.failing, "crashes"))
        return decide(sleeping(state, sets, surge=surge, in_place=in_place), now, 1.0, crashes)

    old, none = replica_set("a", "old", 0, 0), replica_set("b", "new", 0, 0)
    assert scaled(step(STEPPING, [old, none], 1000.0)) == [("new", 1)]
    crashing = step(STEPPING, [old, replica_set("b", "new", 1, 0)], 1601.0).state
    assert (crashing.phase, crashing.reason) == ("aborting", "NotReady")
    state, ready = STEPPING, replica_set("b", "new", 1, 1)
    for now in range(1000, 1400, 10):
        plan = step(state, [old, ready], float(now))
        state = plan.state
        if scaled(plan):
            break
    assert (state.phase, scaled(plan)) == ("promoting", [("new", 0)])
    assert step(state, [old, none], 1400.0).state.outcome == "promoted"


def test_a_roll_back_needs_no_pods_of_a_service_that_has_none() -> None:
    aborting = STEPPING.replace(phase="aborting", reason="Superseded")
    sets = [replica_set("a", "old", 0, 0), replica_set("b", "new", 1, 1)]
    assert scaled(decide(sleeping(aborting, sets), 1001.0, 1.0)) == [("new", 0)]
    sets = [replica_set("a", "old", 0, 0), replica_set("b", "new", 0, 0)]
    assert decide(sleeping(aborting, sets), 1001.0, 1.0).state.outcome == "rolledBack"


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("total", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("by_replicas", [False, True])
def test_sizes_come_to_their_goal_and_keep_the_floor(total: int, by_replicas: bool, in_place: bool) -> None:
    limit, floor = (total, total - 1) if in_place else (2 * total, total)
    for percent in (1, 5, 33, 50, 99, 100):
        now, goal = Sizes(total, 0), step_sizes(total, percent, by_replicas=by_replicas, in_place=in_place)
        for _ in range(3 * total + 3):
            following = next_sizes(now, now, NONE, goal, limit=limit, floor=floor, stable_first=False)
            assert sum(following) <= max(limit, sum(now))
            assert sum(map(min, following, now)) >= min(floor, sum(now))
            now = following
        assert now == goal or (in_place and total == 1), (percent, now, goal)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("total", [2, 4, 7, 30])
def test_ready_pods_never_fall_below_the_floor(total: int, in_place: bool) -> None:
    """The controller takes up each size at a time of its own, and pods become ready later still."""
    limit, floor = (total, total - 1) if in_place else (total + 1, total)
    for seed in range(60):
        order = random.Random(seed)
        goal = order.choice([Sizes(0, total), step_sizes(total, 50, by_replicas=True, in_place=in_place)])
        sizes, seen, ready = Sizes(total, 0), Sizes(total, 0), [total, 0]
        for _ in range(200 * total):
            match order.randrange(3):
                case 0:
                    known = [each == size for each, size in zip(seen, sizes, strict=True)]
                    up = Sizes(*(count if sure else 0 for count, sure in zip(ready, known, strict=True)))
                    pairs = zip(sizes, ready, known, strict=True)
                    down = Sizes(*(size - count if sure else 0 for size, count, sure in pairs))
                    sizes = next_sizes(sizes, up, down, goal, limit=limit, floor=floor, stable_first=False)
                case 1:
                    which = order.randrange(2)
                    seen = Sizes(*(sizes[each] if each == which else seen[each] for each in range(2)))
                    ready[which] = min(ready[which], seen[which])
                case 2:
                    which = order.randrange(2)
                    ready[which] = min(ready[which] + 1, seen[which])
            assert sum(ready) >= floor, (seed, sizes, ready)
        assert (sizes, tuple(ready)) == (goal, goal)


def test_sizes_in_place_of_one_pod_never_exceed_it() -> None:
    now = next_sizes(Sizes(1, 0), Sizes(1, 0), NONE, Sizes(0, 1), limit=1, floor=0, stable_first=False)
    assert now == Sizes(0, 0)


HTTP, GRPC = RolloutRoute("HTTPRoute", "web-rollout", 80), RolloutRoute("GRPCRoute", "web-rollout", 90)
RULES = {"HTTPRoute": {"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]}, "GRPCRoute": {}}


def route(kind: str, weights: dict[str, int], accepted: bool = True) -> dict[str, Any]:
    port = 80 if kind == "HTTPRoute" else 90
    ordered = reversed(weights.items())
    backends = [{"name": f"web-{hash}", "port": port, "weight": weight} for hash, weight in ordered]
    condition = {"type": "Accepted", "status": str(accepted), "reason": "Conflict", "message": "host taken"}
    return {
        "metadata": {"name": "web-rollout", "annotations": {"avactl.dev/rollout-route": json.dumps([RULES[kind]])}},
        "spec": {"rules": [{**RULES[kind], "backendRefs": backends}]},
        "status": {"parents": [{"conditions": [condition]}]},
    }


def by_gateway(
    state: RolloutState, http: dict[str, int], grpc: dict[str, int] | None, accepted: bool = True, ready: int = 1
) -> View:
    """A canary by both routes, of which one may be missing; its new version has one pod, which may not be ready."""
    made = deployment("b")
    ports = {"http": 80, "grpc": 90}
    config = by_replicas(traffic="gateway", ports=ports, route="web-rollout", grpc_route="web-rollout")
    sets = [replica_set("a", "old", 4, 4), replica_set("b", "new", 1, ready)]
    routes = {HTTP: route("HTTPRoute", http), GRPC: route("GRPCRoute", grpc or {}, accepted)}
    if grpc is None:
        del routes[GRPC]
    services: dict[str, Any] = {"web-old": {}, "web-new": {}}
    return View(made, config, state, revisions_of(made, sets), services, routes, {})


WEIGHED = STEPPING.replace(weight=0, weighed=1000.0)


def test_a_changed_timeout_of_the_spec_reaches_the_route() -> None:
    weights = (("old", 100), ("new", 0))
    observed = by_gateway(WEIGHED, dict(weights), dict(weights))
    assert observed.unweighed(weights) == []
    rules = [{**RULES["HTTPRoute"], "timeouts": {"request": "3600s"}}]
    observed.routes[HTTP]["metadata"]["annotations"]["avactl.dev/rollout-route"] = json.dumps(rules)
    assert observed.unweighed(weights) == [HTTP]
    assert observed.rules(HTTP, weights)[0]["timeouts"] == {"request": "3600s"}


def test_a_step_has_its_share_once_both_routes_have_it() -> None:
    known, wanted_ = {"old": 100, "new": 0}, {"old": 75, "new": 25}
    # Neither, or only the first one because the daemon was killed between the two writes.
    for http, grpc, missing in ((known, known, [HTTP, GRPC]), (wanted_, known, [GRPC])):
        found = by_gateway(WEIGHED, http, grpc)
        plan = decide(found, 1010.0, 1.0)
        (weigh,) = plan.actions
        assert plan.state == WEIGHED
        assert isinstance(weigh, Weigh)
        assert (weigh.weights, found.unweighed(weigh.weights)) == ((("old", 75), ("new", 25)), missing)
    state = decide(by_gateway(WEIGHED, wanted_, wanted_), 1010.0, 1.0).state
    assert (state.weight, state.weighed) == (25, 1010.0)


def test_a_route_that_lacks_the_new_version_begins_again_with_the_other() -> None:
    reached = WEIGHED.replace(weight=25, reached=1002.0)
    plan = decide(by_gateway(reached, {"old": 75, "new": 25}, {"old": 100}), 1010.0, 1.0)
    assert plan.actions == [Weigh((("old", 100), ("new", 0)))]
    assert (plan.state.weight, plan.state.weighed) == (0, 0.0)


def test_the_stable_version_is_the_last_backend() -> None:
    """Istio 1.31.0 asks the picker of the last pool of a rule for all of its requests: it must have pods."""
    (rule,) = by_gateway(WEIGHED, {}, {}).rules(HTTP, (("old", 75), ("new", 25)))
    assert [(each["name"], each["weight"]) for each in rule["backendRefs"]] == [("web-new", 25), ("web-old", 75)]


def test_a_version_that_loses_its_pods_gets_no_requests_until_it_has_some() -> None:
    reached, shared = WEIGHED.replace(weight=25, reached=1002.0), {"old": 75, "new": 25}
    lost = by_gateway(reached, shared, shared, ready=0)
    plan = decide(lost, 1010.0, 1.0)
    assert plan.actions == [Weigh((("old", 100), ("new", 0)))]
    none = {"old": 100, "new": 0}
    state = decide(by_gateway(reached, none, none, ready=0), 1010.0, 1.0).state
    assert (state.weight, state.weighed) == (0, 1010.0)
    waits = decide(by_gateway(state, none, none, ready=0), 1012.0, 1.0)
    assert (waits.actions, waits.state.reached, waits.state.since) == ([], 0.0, 1012.0)
    # It comes back with its share.
    back = decide(by_gateway(waits.state, none, none), 1013.0, 1.0)
    assert back.actions == [Weigh((("old", 75), ("new", 25)))]


@pytest.mark.parametrize("state", ["unknown", "none left"])
def test_requests_do_not_move_for_pods_of_which_nothing_is_known(state: str) -> None:
    reached, shared = WEIGHED.replace(weight=25, reached=1002.0), {"old": 75, "new": 25}
    found = by_gateway(reached, shared, shared, ready=0)
    lost = found.revisions["new"]
    if state == "unknown":  # its controller has not seen the last change of its size
        revisions = {**found.revisions, "new": lost._replace(unready=0)}
    else:  # the stable version has no pod that could answer instead
        revisions = {"new": lost, "old": found.revisions["old"]._replace(ready=0, unready=4)}
    plan = decide(replace(found, revisions=revisions), 1010.0, 1.0)
    assert not [each for each in plan.actions if isinstance(each, Weigh)]


def test_the_message_names_the_route_that_has_no_gateway() -> None:
    both = {"old": 75, "new": 25}
    held = decide(by_gateway(WEIGHED, both, both, accepted=False), 1010.0, 1.0).state
    assert (held.reason, held.message) == (
        "GatewayUnavailable",
        "no gateway has accepted GRPCRoute web-rollout: Conflict host taken",
    )
    gone = decide(by_gateway(WEIGHED, both, None), 1010.0, 1.0).state
    assert gone.message.startswith("GRPCRoute web-rollout does not exist")


@pytest.mark.parametrize("grpc", [{"old": 75, "new": 25}, {"old": 100}, None])
def test_requests_of_all_routes_return_before_the_new_version_stops(grpc: dict[str, int] | None) -> None:
    aborting = WEIGHED.replace(phase="aborting", weight=25, reason="Reverted")
    plan = decide(by_gateway(aborting, {"old": 75, "new": 25}, grpc), 1010.0, 1.0)
    assert plan.actions == [Weigh((("old", 100), ("new", 0)))]
    back = {"old": 100, "new": 0}
    found = by_gateway(aborting.replace(weight=0, weighed=1010.0), back, None if grpc is None else back)
    assert decide(found, 1010.5, 1.0).actions == []
    (scale,) = decide(found, 1012.0, 1.0).actions
    assert isinstance(scale, Scale)
    assert (scale.revision.hash, scale.replicas) == ("new", 0)


DOCUMENT = (
    '{"traffic": "gateway", "steps": [{"percent": 50, "pause": 1}], "surge": 1, "inPlace": false, "port": 80, '
    '"ports": {"http": 80, "grpc": 90}, ROUTES}'
)


@pytest.mark.parametrize(
    ("routes", "found"),
    [
        ('"route": "web-rollout"', (HTTP,)),  # the only form before GRPCRoutes
        ('"route": "web-rollout", "grpcRoute": "web-rollout"', (HTTP, GRPC)),
        ('"grpcRoute": "web-rollout"', (GRPC,)),
    ],
)
def test_routes_of_a_document(routes: str, found: tuple[RolloutRoute, ...]) -> None:
    assert load(RolloutConfig, DOCUMENT.replace("ROUTES", routes)).routes == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "x" * 100_000,
        '{"phase": "done"}',
        '{"stable": "../x"}',
        '{"step": -1}',
        '{"since": 1e300}',
        '{"stable": 5}',
        '{"in_place": 1}',
        '{"message": "' + "m" * 2000 + '"}',
        '{"weight": "9"}',
        "[" * 5000,
    ],
)
def test_a_forged_state_is_none(text: str) -> None:
    assert RolloutState.read(text) == RolloutState()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"traffic": "gateway"}',
        "x" * 100_000,
        '{"traffic": "replicas", "steps": [{"percent": 50, "pause": 1}, {"percent": 20, "pause": 1}], "surge": 1, '
        '"inPlace": false, "port": 80, "ports": {"http": 80}}',
        '{"traffic": "replicas", "steps": [{"percent": 50, "pause": NaN}], "surge": 1, "inPlace": false, "port": 80, '
        '"ports": {"http": 80}}',
        '{"traffic": "gateway", "steps": [{"percent": 50, "pause": 1}], "surge": 1, "inPlace": false, "port": 80, '
        '"ports": {"http": 80}, "route": "a/b"}',
        '{"traffic": "gateway", "steps": [{"percent": 50, "pause": 1}], "surge": 1, "inPlace": false, "port": 80, '
        '"ports": {"http": 80}, "grpcRoute": "web-rollout"}',
    ],
)
def test_a_forged_document_is_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        load(RolloutConfig, text)


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "[1]", "x" * 100_000])
def test_forged_rules_are_refused(text: str | None) -> None:
    with pytest.raises(DocumentError):
        load(RouteRules, text)
