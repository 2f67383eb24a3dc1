"""Decisions of pipelines: every order of events, with a daemon that dies after any action."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal, NamedTuple

import pytest

from avactl.contracts.delivery import MetricBound, PipelineState
from avactl.daemons.delivery.decide import (
    COPIED,
    NONE,
    REJECTED,
    STEPS,
    UNCHANGED,
    Action,
    DeliveryPlan,
    DeployAction,
    PipelineConfig,
    PipelineJob,
    RemoveAction,
    Revert,
    Seen,
    Start,
    Status,
    Step,
    candidate_url,
    decide,
)

GOOD, BAD, GARBAGE = '{"auc": 0.9}', '{"auc": 0.5}', "Traceback (most recent call last)"
OLD, OTHER, PUBLISHED = "s3://models/old", "s3://models/by-hand", "s3://models/published"
BOUNDS = (MetricBound(name="auc", min=0.7, at_least=0.99),)
By = Literal["", "commit", "pullRequest"]


class World(NamedTuple):
    """What is true outside of the daemon, and the state that it has written."""

    state: PipelineState
    cause: str
    jobs: tuple[tuple[Step, PipelineJob], ...] = ()
    served: str = OLD
    rollout: Literal["progressing", "promoted", "rejected"] | None = None
    proposal: Literal["", "open", "closed"] = ""
    proposed: str = ""
    causes: int = 2
    """Causes that may still arrive."""
    hands: int = 1
    """Deployments by hand that may still be made."""
    sealed: frozenset[str] = frozenset()
    passed: frozenset[int] = frozenset()
    """Runs whose validation wrote good metrics."""
    shown: tuple[str, ...] = (OLD,)
    """Everything that was served, in order."""
    recorded: tuple[tuple[str, Literal["promoted", "rejected"]], ...] = ()
    """How rollouts on another cluster ended, by URL."""

    def seen(self) -> Seen:
        rollout = dict(self.recorded).get(f"{PUBLISHED}/{self.state.run}", self.rollout)
        return Seen(self.cause, "4f53", dict(self.jobs), self.served, rollout, self.proposal)

    def with_job(self, step: Step, job: PipelineJob | None) -> World:
        jobs = dict(self.jobs)
        if job is None:
            jobs.pop(step, None)
        else:
            jobs[step] = job
        return self._replace(jobs=tuple(sorted(jobs.items())))

    def serving(self, url: str) -> World:
        return self._replace(served=url, rollout=None, shown=(*self.shown, url))


def apply(config: PipelineConfig, world: World, action: Action) -> World:
    """Carry out one action, which must be allowed."""
    match action:
        case Start(step, run, _, lineage, rejected):
            assert not rejected or (step == "stage" and not config.trains)
            assert dict(world.jobs).get(step) is None, "a Job of that name is there"
            assert all(job.run == run for _, job in world.jobs), "Jobs of two runs at the same time"
            assert not any(job.status == "running" for _, job in world.jobs), "two steps at the same time"
            if step == "seal":
                assert run in world.passed, "published without a validation"
                assert lineage is not None
                assert dict(lineage.metrics) == {"auc": 0.9}
            return world.with_job(step, PipelineJob(run, "running"))
        case RemoveAction(step):
            return world.with_job(step, None)
        case DeployAction(url, version, by):
            assert (by, url) == (config.deploys, f"{config.to}/{version}")
            assert url in world.sealed, "deployed before it is published"
            assert url not in world.shown or url == world.served, "deployed twice"
            if by == "pullRequest":
                return world._replace(proposal=world.proposal or "open", proposed=url)
            return world if world.served == url else world.serving(url)
        case Revert(url, back):
            assert "rejected" in (world.rollout, dict(world.recorded).get(url)) or world.served != url
            return world.serving(back) if world.served == url else world


def passes(config: PipelineConfig, world: World) -> Iterator[World]:
    """One pass of the daemon, which may die after each action."""
    plan = decide(config, world.state, world.seen(), 100.0)
    if plan.actions:
        assert plan.state == world.state, "a state is written only when everything is as it wants it"
        for action in plan.actions:
            world = apply(config, world, action)
            yield world
    elif plan.state != world.state:
        new = world._replace(state=plan.state)
        # A proposal is that of one run.
        yield new._replace(proposal="", proposed="") if plan.state.run != world.state.run else new


def events(config: PipelineConfig, world: World) -> Iterator[World]:
    """What may happen without the daemon."""
    if world.causes:
        yield world._replace(cause=f"v{4 - world.causes}", causes=world.causes - 1)
    if world.hands:
        yield world.serving(OTHER)._replace(hands=0)
    for step, job in world.jobs:
        if job.status != "running":
            continue
        yield world.with_job(step, job._replace(status="failed", message="exit code 1"))
        if step == "validate":
            yield world.with_job(step, PipelineJob(job.run, "succeeded", GOOD))._replace(
                passed=world.passed | {job.run}
            )
            yield world.with_job(step, PipelineJob(job.run, "succeeded", BAD))
        elif step == "stage" and not config.trains:
            yield world.with_job(step, PipelineJob(job.run, "succeeded", f"{COPIED}export/{job.run}"))
            yield world.with_job(step, PipelineJob(job.run, "succeeded", UNCHANGED))
        else:
            done = world.with_job(step, PipelineJob(job.run, "succeeded"))
            if step == "seal":
                done = done._replace(sealed=done.sealed | {candidate_url(config, job.run)})
            yield done
    if world.proposal == "open":
        yield world.serving(world.proposed)._replace(proposal="closed", proposed="")
        yield world._replace(proposal="closed", proposed="")
    if config.rollout and world.served.startswith(config.to):
        known = dict(world.recorded).get(world.served)
        if config.cluster and known is None:
            yield world._replace(recorded=(*world.recorded, (world.served, "promoted")))
            yield world._replace(recorded=(*world.recorded, (world.served, "rejected")))
        elif known == "rejected":  # the other cluster's daemon restores the spec, maybe before the pipeline does
            yield world.serving(next(each for each in world.shown[::-1] if dict(world.recorded).get(each) != known))
        elif not config.cluster and world.rollout is None:
            yield world._replace(rollout="promoted")
            yield world._replace(rollout="rejected")


def explored(config: PipelineConfig) -> tuple[dict[str, World], dict[str, set[str]]]:
    """Every world that can be reached, and who leads to whom."""
    first = World(PipelineState(), "v1")
    worlds, before, todo = {repr(first): first}, {repr(first): set[str]()}, deque([first])
    while todo:
        world = todo.popleft()
        for after in (*passes(config, world), *events(config, world)):
            key = repr(after)
            if key not in worlds:
                worlds[key], before[key] = after, set()
                todo.append(after)
            before[key].add(repr(world))
    return worlds, before


@pytest.mark.parametrize("concurrency", ["forbid", "replace", "queue"])
@pytest.mark.parametrize(
    ("deploys", "rollout", "cluster"),
    [
        ("", False, ""),
        ("commit", False, ""),
        ("commit", True, ""),
        ("pullRequest", True, ""),
        ("commit", False, "serve"),
        ("commit", True, "serve"),
        ("pullRequest", True, "serve"),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_every_order_of_events(
    concurrency: Literal["forbid", "replace", "queue"], deploys: By, rollout: bool, cluster: str, trains: bool
) -> None:
    config = PipelineConfig(PUBLISHED, trains, BOUNDS, deploys, rollout, concurrency, cluster=cluster)
    worlds, before = explored(config)
    # From everywhere the pipeline comes to rest: no run hangs, whatever has happened before.
    calm = [key for key, world in worlds.items() if world.state.phase == "idle" and not world.state.queued]
    reaches, todo = set(calm), deque(calm)
    while todo:
        for key in before[todo.popleft()] - reaches:
            reaches.add(key)
            todo.append(key)
    assert set(worlds) - reaches == set()
    reasons = {world.state.reason for world in worlds.values()}
    assert {"ValidationFailed", "Rejected", "StagingFailed", "PublicationFailed"} <= reasons
    assert ("TrainingFailed" in reasons, "Unchanged" in reasons) == (trains, not trains)
    assert ("Replaced" in reasons) == (concurrency == "replace")
    done = "HandedOver" if cluster and not rollout else "Deployed"
    expected = {"": {"Published"}, "commit": {done, "Superseded"}, "pullRequest": {done, "Declined"}}
    assert expected[deploys] <= reasons
    assert ("HandedOver" in reasons) == (done == "HandedOver")
    if cluster:  # nothing is claimed but what the other cluster has recorded
        for world in worlds.values():
            outcome = dict(world.recorded).get(candidate_url(config, world.state.run))
            assert world.state.reason != "Deployed" or outcome == "promoted"
            assert world.state.reason != "RolledBack" or outcome == "rejected"
    assert ("RolledBack" in reasons) == rollout
    runs = {world.state.run for world in worlds.values()}
    assert max(runs) == 2


def run(config: PipelineConfig, world: World, until: str) -> World:
    """Let everything succeed until a phase."""
    for _ in range(60):
        if world.state.phase == until and world.state.reason:
            return world
        for step, job in world.jobs:
            if job.status == "running":
                world = world.with_job(step, PipelineJob(job.run, "succeeded", GOOD if step == "validate" else ""))
                world = world._replace(passed=world.passed | {job.run})
                if step == "seal":
                    world = world._replace(sealed=world.sealed | {candidate_url(config, job.run)})
        for after in passes(config, world):
            world = after
    raise AssertionError(f"never {until}: {world}")


def begun(config: PipelineConfig) -> World:
    first = World(PipelineState(), "v1")
    return next(passes(config, first))._replace(cause="v2")


def test_what_was_there_before_is_no_cause() -> None:
    config = PipelineConfig("s3://models/published")
    plan = decide(config, PipelineState(), Seen("v1"), 0)
    assert (plan.state.handled, plan.state.phase) == ("v1", "idle")
    assert decide(config, plan.state, Seen("v1"), 1) == DeliveryPlan(plan.state)
    assert decide(config, plan.state, Seen(""), 1) == DeliveryPlan(plan.state)
    assert decide(config, plan.state, Seen("v2"), 1).state.phase == "clearing"


def test_a_worse_model_stops_with_its_numbers() -> None:
    config = PipelineConfig("s3://models/published", bounds=BOUNDS)
    world = run(config, begun(config), "validating")
    world = world.with_job("validate", PipelineJob(1, "succeeded", '{"auc": 0.6, "live": {"auc": 0.8}}'))
    state = decide(config, world.state, world.seen(), 5).state
    assert (state.reason, state.message) == (
        "Rejected",
        "auc: 0.6, at least 0.7; auc: 0.6, at least 0.99 × 0.8 of the live version",
    )


@pytest.mark.parametrize("text", [GARBAGE, "", "[]", '{"live": 3}', "{" + " " * 5000 + "}"])
def test_garbage_is_no_pass(text: str) -> None:
    config = PipelineConfig("s3://models/published", bounds=BOUNDS)
    world = run(config, begun(config), "validating").with_job("validate", PipelineJob(1, "succeeded", text))
    assert decide(config, world.state, world.seen(), 5).state.reason == "ValidationFailed"


@pytest.mark.parametrize("text", ["{}", '{"auc": "0.9"}', '{"auc": true}', '{"auc": 1e999}', '{"auc": null}'])
def test_a_metric_that_is_no_number_is_missing(text: str) -> None:
    config = PipelineConfig("s3://models/published", bounds=BOUNDS)
    world = run(config, begun(config), "validating").with_job("validate", PipelineJob(1, "succeeded", text))
    state = decide(config, world.state, world.seen(), 5).state
    assert state.reason in ("Rejected", "ValidationFailed")
    assert state.phase == "stopping"


def test_the_live_version_by_its_published_metrics() -> None:
    """The first version of a pipeline compares with nothing; the next one with the metrics of the first."""
    config = PipelineConfig("s3://models/published", bounds=(MetricBound(name="auc", at_least=0.99),), deploys="commit")
    world = run(config, begun(config), "idle")
    assert (world.state.reason, world.served) == ("Deployed", "s3://models/published/1")
    world = run(config, world._replace(cause="v3"), "validating")
    for value, phase in ((0.89, "stopping"), (0.892, "sealing")):
        judged = world.with_job("validate", PipelineJob(2, "succeeded", f'{{"auc": {value}}}'))
        assert decide(config, judged.state, judged.seen(), 5).state.phase == phase


def test_a_run_ends_after_its_timeout() -> None:
    config = PipelineConfig("s3://models/published", timeout=3600)
    world = run(config, begun(config), "training")
    (world,) = passes(config, world)
    assert decide(config, world.state, world.seen(), world.state.begun + 3600) == DeliveryPlan(world.state)
    state = decide(config, world.state, world.seen(), world.state.begun + 3601).state
    assert (state.phase, state.reason) == ("stopping", "TimedOut")
    assert decide(config, state, world.seen(), 9999).actions == (RemoveAction("train", 1),)
    assert decide(config, state, world.seen()._replace(jobs={}), 9999).state.phase == "idle"


def test_a_suspended_pipeline_begins_nothing() -> None:
    config = PipelineConfig("s3://models/published", suspended=True)
    world = begun(config)
    plan = decide(config, world.state, world.seen(), 5)
    assert (plan.state.phase, plan.state.handled) == ("idle", "v2")


@pytest.mark.parametrize("cause", ["v3", "v4"])
def test_suspending_lets_the_active_run_go_on(cause: str) -> None:
    """What is due meanwhile, or waits, is no run later."""
    config = PipelineConfig("s3://models/published", concurrency="queue")
    (world,) = passes(config, run(config, begun(config), "training")._replace(cause="v3"))
    assert world.state.queued == "v3"
    suspended = config._replace(suspended=True)
    world = run(suspended, world._replace(cause=cause), "idle")
    assert (world.state.reason, world.state.run) == ("Published", 1)
    state = decide(suspended, world.state, world.seen(), 5).state
    assert (state.phase, state.queued, state.handled) == ("idle", "", cause)
    assert decide(config, state, world.seen(), 6).state == state


def test_forbid_skips_a_run_that_is_due_meanwhile() -> None:
    config = PipelineConfig("s3://models/published", deploys="commit", rollout=True)
    for phase in ("training", "validating", "deploying", "rolling"):
        world = run(config, begun(config), phase)._replace(cause="v3")
        state = decide(config, world.state, world.seen(), 5).state
        assert (state.phase, state.handled, state.queued) == (phase, "v3", "")
        assert decide(config, state.replace(phase="idle"), world.seen(), 6).state.phase == "idle"


def test_queue_begins_the_last_that_waits() -> None:
    config = PipelineConfig("s3://models/published", concurrency="queue")
    world = run(config, begun(config), "training")
    for cause in ("v3", "v4", "v5"):
        world = world._replace(cause=cause)
        (world,) = passes(config, world)
        assert (world.state.phase, world.state.queued, world.state.run) == ("training", cause, 1)
    world = run(config, world, "idle")
    (world,) = passes(config, world)
    assert (world.state.run, world.state.message, world.state.queued) == (2, "for v5", "")


def test_replace_stops_what_is_not_published_yet() -> None:
    config = PipelineConfig("s3://models/published", concurrency="replace", deploys="commit", rollout=True)
    for phase in ("training", "staging", "validating", "sealing"):
        world = run(config, begun(config), phase)._replace(cause="v3")
        (world,) = passes(config, world)
        assert (world.state.phase, world.state.reason, world.state.message) == ("stopping", "Replaced", "by v3")
        world = run(config, world, "idle")
        (world,) = passes(config, world)
        assert (world.state.run, world.state.message) == (2, "for v3")
    # A published version is deployed first: the rollout of a service is never left half.
    for phase in ("deploying", "rolling"):
        world = run(config, begun(config), phase)._replace(cause="v3")
        (world,) = passes(config, world)
        assert (world.state.phase, world.state.queued) == (phase, "v3")


def test_the_timeout_is_for_the_time_until_the_publication() -> None:
    config = PipelineConfig("s3://models/published", timeout=60, deploys="commit", rollout=True)
    late = 10_000.0
    for phase in ("clearing", "training", "staging", "validating", "sealing"):
        state = decide(config, run(config, begun(config), phase).state, Seen("v2"), late).state
        assert (state.reason, state.message) == ("TimedOut", f"after 60 s in phase {phase}")
    for phase in ("deploying", "rolling"):
        world = run(config, begun(config), phase)
        assert decide(config, world.state, world.seen(), late).state.reason == "Running"


def streamed(config: PipelineConfig, world: World, message: str) -> PipelineState:
    """Let the copying of a running job's output end with a message."""
    job = PipelineJob(world.state.run, "succeeded", message, {"images": ["sha256:" + "a" * 64]})
    return decide(config, world.state, world.with_job("stage", job).seen(), 5).state


def test_a_running_job_without_anything_new() -> None:
    config = PipelineConfig("s3://models/published", trains=False, bounds=BOUNDS)
    world = run(config, begun(config), "staging")
    world = world._replace(state=world.state.replace(rejected="4f53 export/6"))
    for message, note in (
        (UNCHANGED, "nothing newer than what is published"),
        (NONE, "no output is complete yet"),
        (REJECTED, "nothing newer than export/6, which was rejected"),
    ):
        state = streamed(config, world, message)
        assert (state.phase, state.reason, state.message) == ("stopping", "Unchanged", note)


def test_an_output_is_rejected_once() -> None:
    """Until bounds, validation or live version are other ones."""
    config = PipelineConfig("s3://models/published", trains=False, bounds=BOUNDS, validation="4f53")
    state = streamed(config, run(config, begun(config), "staging"), f"{COPIED}export/7")
    assert (state.output, state.ran) == ("export/7", {"images": ["sha256:" + "a" * 64]})
    bad = {"validate": PipelineJob(1, "succeeded", BAD)}
    state = decide(config, state, Seen("v2", served=OLD, jobs=bad), 6).state  # type: ignore[arg-type]
    assert (state.reason, state.rejected.partition(" ")[2]) == ("Rejected", "export/7")

    def told(config: PipelineConfig, served: str) -> str:
        begins = state.replace(phase="staging", run=2, output="")
        (action,) = decide(config, begins, Seen("v2", served=served), 7).actions
        assert isinstance(action, Start)
        return action.rejected

    assert told(config, OLD) == "export/7"
    assert told(config, OTHER) == ""
    assert told(config._replace(validation="9e01"), OLD) == ""
    assert told(config._replace(bounds=(MetricBound(name="auc", min=0.4),)), OLD) == ""
    assert told(config._replace(trains=True), OLD) == ""


@pytest.mark.parametrize("message", ["", "copied", "copied a\nb", f"{COPIED}{'x' * 600}", "export/7"])
def test_an_output_without_a_name_is_measured_again(message: str) -> None:
    config = PipelineConfig("s3://models/published", trains=False, bounds=BOUNDS)
    state = streamed(config, run(config, begun(config), "staging"), message)
    assert (state.phase, state.output) == ("validating", "")
    bad = {"validate": PipelineJob(1, "succeeded", BAD)}
    assert decide(config, state, Seen("v2", jobs=bad), 6).state.rejected == ""  # type: ignore[arg-type]


def test_jobs_of_old_runs_go_first() -> None:
    config = PipelineConfig("s3://models/published")
    status: Status = "failed"
    jobs = {step: PipelineJob(3, status) for step in STEPS}
    state = PipelineState(phase="clearing", run=4, primed=True, handled="v2", begun=90, since=90)
    assert set(decide(config, state, Seen("v2", jobs=jobs), 100).actions) == {RemoveAction(step, 3) for step in STEPS}
    assert decide(config, state, Seen("v2"), 100).state.phase == "training"


def test_a_job_of_another_run_says_nothing_of_this_one() -> None:
    config = PipelineConfig("s3://models/published", bounds=BOUNDS)
    world = run(config, begun(config), "validating")
    seen = world.seen()._replace(jobs={"validate": PipelineJob(7, "succeeded", GOOD)})
    assert decide(config, world.state, seen, 5) == DeliveryPlan(world.state, (RemoveAction("validate", 7),))
