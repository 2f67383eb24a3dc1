"""The next step of a pipeline, from what is observed. Pure: a daemon that dies anywhere decides the same again.

Each pass returns actions, or, once everything is as the phase wants it, the next state. Every action may be repeated: a
Job has the number of its run, and a commit of values that are there already changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from avactl.contracts.delivery import MAX_KNOWN, MetricBound, PipelineState, SpecOrigin, VersionLineage
from avactl.daemons.delivery.validation import MetricsError, missed_bounds, parse_metrics

Step = Literal["train", "stage", "validate", "seal"]
Status = Literal["running", "succeeded", "failed"]
Rollout = Literal["progressing", "promoted", "rejected"]
STEPS: tuple[Step, ...] = ("train", "stage", "validate", "seal")
UNCHANGED, REJECTED, NONE, COPIED = "unchanged", "rejected", "none", "copied "
"""Results of `stage`: the newest output is already published, was rejected before, does not exist, or was copied."""
WORKING: dict[str, Step] = {"training": "train", "staging": "stage", "validating": "validate", "sealing": "seal"}
"""Steps by phase."""
_FAILED: dict[Step, str] = {
    "train": "TrainingFailed",
    "stage": "StagingFailed",
    "validate": "ValidationFailed",
    "seal": "PublicationFailed",
}
MAX_MESSAGE = 1000
"""Characters of a message; pods write some of them."""
_IS_PATH = re.compile(r"[!-~]{1,512}").fullmatch


class PipelineConfig(NamedTuple):
    """The part of a pipeline's plan that decisions depend on."""

    to: str
    """Directory of all versions."""
    trains: bool = True
    """True if a run has Jobs that train; False if it publishes from a running job."""
    bounds: tuple[MetricBound, ...] = ()
    deploys: Literal["", "commit", "pullRequest"] = ""
    rollout: bool = False
    """True if the service says by a condition how its rollout ends."""
    concurrency: Literal["forbid", "replace", "queue"] = "forbid"
    timeout: float | None = None
    """Longest time until the publication, in seconds."""
    suspended: bool = False
    validation: str = ""
    """Digest of the validation in the specs."""
    cluster: str = ""
    """Cluster of the service if it is another one; "" otherwise."""


class PipelineJob(NamedTuple):
    """The Job of a step: the one of that name, whatever run it is of."""

    run: int
    status: Status
    message: str = ""
    """Text that its pod has written, or why it failed."""
    ran: Mapping[str, Any] = {}
    """Images, and commits of the code, that the training's pods ran."""


class Seen(NamedTuple):
    """Observations of one pass."""

    cause: str
    """Text that changes when a run is due: version of a dataset, commit, or time; "" if it is not known now."""
    commit: str = ""
    jobs: Mapping[Step, PipelineJob] = {}
    served: str = ""
    """URL of the service's model in the specs at the head of the branch."""
    rollout: Rollout | None = None
    """State of the rollout to the version of the active run; None if the service has not taken it up."""
    proposal: Literal["", "open", "closed"] = ""
    """Pull request of the active run: none (yet), open, or closed without a merge."""
    version: str = ""
    """Version of the service's model in the specs."""
    origin: SpecOrigin = SpecOrigin()
    """Data, image, code and parameters in the specs."""


class Start(NamedTuple):
    """Start the Job of a step, with the run's number and what its pod is told."""

    step: Step
    run: int
    live: str
    lineage: VersionLineage | None
    """Lineage that a version is published with; None for other steps."""
    rejected: str = ""
    """Output of a running job that would be rejected again."""


class RemoveAction(NamedTuple):
    """Remove the Job of a step, and wait until it is gone with its pods."""

    step: Step
    run: int


class DeployAction(NamedTuple):
    """Set the URL and version of the service's model, by a commit or a pull request."""

    url: str
    version: str
    by: Literal["commit", "pullRequest"]


class Revert(NamedTuple):
    """Set the URL and version back, by a commit, if the URL is still the first one."""

    url: str
    back: str
    version: str


Action = Start | RemoveAction | DeployAction | Revert


class DeliveryPlan(NamedTuple):
    """Actions to carry out; if there are none, the state to write down."""

    state: PipelineState
    actions: tuple[Action, ...] = ()


def candidate_url(config: PipelineConfig, run: int) -> str:
    """Return the URL of the version of a run."""
    return f"{config.to}/{run}"


def decide(config: PipelineConfig, state: PipelineState, seen: Seen, now: float) -> DeliveryPlan:
    """Return the next plan."""
    if not state.primed:
        return DeliveryPlan(state.replace(primed=True, handled=seen.cause)) if seen.cause else DeliveryPlan(state)
    due = seen.cause if seen.cause and seen.cause != state.handled else ""
    if state.phase == "idle":
        return _decide_idle(config, state, due or state.queued, seen, now)
    if due:
        proposed = state.phase == "deploying" and seen.proposal == "open"  # it may stay open for days
        if config.suspended:
            return DeliveryPlan(state.replace(handled=due, queued=""))
        if config.concurrency == "forbid" and not proposed:
            return DeliveryPlan(state.replace(handled=due))
        if state.phase != "stopping" or state.queued != due:
            stops = config.concurrency == "replace" and state.phase in ("clearing", *WORKING)
            waiting = state.replace(handled=due, queued=due)
            return DeliveryPlan(_end_run(waiting, "Replaced", f"by {due}", now) if stops else waiting)
    timeout = config.timeout
    if timeout is not None and state.phase in ("clearing", *WORKING) and now - state.begun > timeout:
        return DeliveryPlan(_end_run(state, "TimedOut", f"after {timeout:g} s in phase {state.phase}", now))
    if state.phase in WORKING:
        return _decide_working(config, state, seen, now)
    return {
        "clearing": _decide_clearing,
        "deploying": _decide_deploying,
        "rolling": _decide_rolling,
        "reverting": _decide_reverting,
        "stopping": _decide_stopping,
    }[state.phase](config, state, seen, now)


def _decide_idle(config: PipelineConfig, state: PipelineState, due: str, seen: Seen, now: float) -> DeliveryPlan:
    if not due:
        return DeliveryPlan(state)
    if config.suspended:
        # What waits is older than what is handled.
        return DeliveryPlan(state.replace(handled=seen.cause or state.handled, queued=""))
    return DeliveryPlan(
        state.replace(
            phase="clearing",
            run=state.run + 1,
            begun=now,
            since=now,
            handled=due,
            queued="",
            commit=seen.commit,
            origin=seen.origin,
            ran={},
            output="",
            metrics={},
            before="",
            before_version="",
            reason="Running",
            message=f"for {due}",
        )
    )


def _end_run(state: PipelineState, reason: str, message: str, now: float) -> PipelineState:
    """Return the state of a run that ends: what of it still works is stopped first."""
    text = "".join(each if each.isprintable() else " " for each in message[:MAX_MESSAGE])
    return state.replace(phase="stopping", since=now, reason=reason, message=text)


def _decide_clearing(config: PipelineConfig, state: PipelineState, seen: Seen, now: float) -> DeliveryPlan:
    old = tuple(RemoveAction(step, job.run) for step, job in seen.jobs.items() if job.run != state.run)
    return (
        DeliveryPlan(state, old)
        if old
        else DeliveryPlan(state.replace(phase="training" if config.trains else "staging", since=now))
    )


def _decide_stopping(config: PipelineConfig, state: PipelineState, seen: Seen, now: float) -> DeliveryPlan:
    # What has ended stays, with its pods and logs, until the next run begins.
    running = tuple(RemoveAction(step, job.run) for step, job in seen.jobs.items() if job.status == "running")
    return DeliveryPlan(state, running) if running else DeliveryPlan(state.replace(phase="idle", since=now))


def _decide_working(config: PipelineConfig, state: PipelineState, seen: Seen, now: float) -> DeliveryPlan:
    step = WORKING[state.phase]
    job = seen.jobs.get(step)
    if job is None:
        rejected = _rejected_output(config, state, seen.served) if step == "stage" else ""
        return DeliveryPlan(
            state, (Start(step, state.run, seen.served, _version_lineage(config, state, step), rejected),)
        )
    if job.run != state.run:
        return DeliveryPlan(state, (RemoveAction(step, job.run),))
    if job.status == "running":
        return DeliveryPlan(state)
    if job.status == "failed":
        return DeliveryPlan(_end_run(state, _FAILED[step], job.message, now))
    if step == "train":
        return DeliveryPlan(state.replace(phase="staging", since=now, ran=job.ran))
    if step == "stage":
        return DeliveryPlan(_stage_output(config, state, job, now))
    return (
        _judge_candidate(config, state, seen, job, now) if step == "validate" else _decide_published(config, state, now)
    )


def _stage_output(config: PipelineConfig, state: PipelineState, job: PipelineJob, now: float) -> PipelineState:
    if job.message == UNCHANGED:
        return _end_run(state, "Unchanged", "nothing newer than what is published", now)
    if job.message == NONE:
        return _end_run(state, "Unchanged", "no output is complete yet", now)
    if job.message == REJECTED:
        output = state.rejected.partition(" ")[2]
        return _end_run(state, "Unchanged", f"nothing newer than {output}, which was rejected", now)
    state = state.replace(phase="validating", since=now)
    if config.trains:
        return state
    path = job.message.removeprefix(COPIED) if job.message.startswith(COPIED) else ""
    return state.replace(ran=job.ran, output=path if _IS_PATH(path) else "")


def _verdict_terms(config: PipelineConfig, served: str) -> str:
    """Return a digest of the terms of a verdict: validation, live version and bounds."""
    bounds = [bound.model_dump() for bound in config.bounds]
    return hashlib.sha256(repr((config.validation, served, bounds)).encode()).hexdigest()[:16]


def _rejected_output(config: PipelineConfig, state: PipelineState, served: str) -> str:
    """Return the output of the running job that would be rejected again; "" if there is none.

    A job may save nothing new for a long time, and its last output should not be validated over and over.
    """
    terms, _, output = state.rejected.partition(" ")
    return output if not config.trains and terms == _verdict_terms(config, served) else ""


def _version_lineage(config: PipelineConfig, state: PipelineState, step: Step) -> VersionLineage | None:
    """Return what a version is published with: it depends on the state alone, so that a repetition is the same."""
    if step != "seal":
        return None
    own = state.before.startswith(f"{config.to}/")
    return VersionLineage(
        **state.origin.model_dump(exclude_unset=True),
        ran=state.ran,
        run=state.run,
        commit=state.commit,
        cause=state.message.removeprefix("for "),
        metrics=state.metrics,
        parent=state.before.removeprefix(f"{config.to}/") if own else state.before,
    )


def _judge_candidate(
    config: PipelineConfig, state: PipelineState, seen: Seen, job: PipelineJob, now: float
) -> DeliveryPlan:
    try:
        measured = parse_metrics(job.message)
    except MetricsError as error:
        return DeliveryPlan(_end_run(state, "ValidationFailed", str(error), now))
    published = state.known.get(seen.served, {}) if seen.served else None
    missed = missed_bounds(config.bounds, measured, published)
    if missed:
        rejected = f"{_verdict_terms(config, seen.served)} {state.output}" if state.output else ""
        judged = state.replace(metrics=measured.values, rejected=rejected)
        return DeliveryPlan(_end_run(judged, "Rejected", "; ".join(missed), now))
    return DeliveryPlan(
        state.replace(
            phase="sealing", since=now, metrics=measured.values, before=seen.served, before_version=seen.version
        )
    )


def _decide_published(config: PipelineConfig, state: PipelineState, now: float) -> DeliveryPlan:
    url = candidate_url(config, state.run)
    kept = [each for each in state.known if each != url][-MAX_KNOWN + 1 :]
    # Only what is compared: pods may write more.
    own = {bound.name: state.metrics[bound.name] for bound in config.bounds if bound.name in state.metrics}
    known = {**{each: state.known[each] for each in kept}, url: own}
    state = state.replace(known=known)
    if not config.deploys:
        return DeliveryPlan(_end_run(state, "Published", url, now))
    return DeliveryPlan(state.replace(phase="deploying", since=now))


def _decide_deploying(config: PipelineConfig, state: PipelineState, seen: Seen, now: float) -> DeliveryPlan:
    url = candidate_url(config, state.run)
    if seen.served == url:
        if not config.rollout:
            return DeliveryPlan(_end_without_rollout(config, state, url, now))
        return DeliveryPlan(state.replace(phase="rolling", since=now))
    if seen.rollout == "rejected":  # the other cluster has restored the spec before this phase saw its own commit
        return _decide_reverting(config, state, seen, now)
    if not config.deploys:  # the spec was changed meanwhile
        return DeliveryPlan(_end_run(state, "Published", url, now))
    if config.deploys == "pullRequest":
        if seen.proposal == "closed":
            return DeliveryPlan(_end_run(state, "Declined", f"the pull request for {url} was closed", now))
        if seen.proposal == "open":
            # Somebody decides; a newer run does not wait for that.
            return DeliveryPlan(_end_run(state, "Proposed", url, now) if state.queued else state)
    elif seen.served != state.before:
        # Somebody else has deployed since the validation: theirs is newer than what this was compared with.
        return DeliveryPlan(_end_run(state, "Superseded", f"by {seen.served or 'a service without URL'}", now))
    return DeliveryPlan(state, (DeployAction(url, str(state.run), config.deploys),))


def _decide_rolling(config: PipelineConfig, state: PipelineState, seen: Seen, now: float) -> DeliveryPlan:
    url = candidate_url(config, state.run)
    if seen.served != url:
        if seen.rollout == "rejected":  # the other cluster was the first to restore the spec
            return _decide_reverting(config, state, seen, now)
        return DeliveryPlan(_end_run(state, "Superseded", f"by {seen.served or 'a service without URL'}", now))
    if not config.rollout:
        return DeliveryPlan(_end_without_rollout(config, state, url, now))
    if seen.rollout == "promoted":
        return DeliveryPlan(_end_run(state, "Deployed", url, now))
    if seen.rollout == "rejected":
        if not state.before:
            return DeliveryPlan(_end_run(state, "RolledBack", f"{url}; there is no version to go back to", now))
        return DeliveryPlan(state.replace(phase="reverting", since=now))
    return DeliveryPlan(state)


def _end_without_rollout(config: PipelineConfig, state: PipelineState, url: str, now: float) -> PipelineState:
    """Return the state of a run whose version is in git, and whose service does not say how its rollout ends."""
    if config.cluster:
        return _end_run(state, "HandedOver", f"{url}, to cluster {config.cluster}", now)
    return _end_run(state, "Deployed", url, now)


def _decide_reverting(config: PipelineConfig, state: PipelineState, seen: Seen, now: float) -> DeliveryPlan:
    url = candidate_url(config, state.run)
    if seen.served != url:
        served = seen.served or "a service without URL"
        return DeliveryPlan(_end_run(state, "RolledBack", f"{url}, to {served}", now))
    return DeliveryPlan(state, (Revert(url, state.before, state.before_version),))
