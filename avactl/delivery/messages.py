"""Texts of the commits and pull requests of pipelines."""

from __future__ import annotations

from avactl.delivery.config import Pipeline
from avactl.delivery.decide import State
from avactl.delivery.repository import TRAILER

_SUBJECT = 72


def proposal_branch(pipeline: Pipeline, run: int) -> str:
    """Return the branch of the pull request of a run."""
    return f"avactl/{pipeline.team}-{pipeline.name}-{run}"


def commit_message(pipeline: Pipeline, state: State, url: str, version: str) -> str:
    """Return the message of the commit that deploys a version."""
    target = pipeline.target
    assert target is not None
    facts = [
        f"Run {state.run} of pipeline {pipeline}, {state.message}.",
        f"Model: {url}",
        *([f"Before: {state.before}"] if state.before else []),
        *(f"{name}: {_number(value)}{_before(pipeline, state, name)}" for name, value in sorted(state.metrics.items())),
    ]
    subject = f"{target.document}: deploy version {version} of {target.model}"
    return _message(subject, facts, pipeline, state)


def revert_message(pipeline: Pipeline, state: State, url: str, back: str) -> str:
    """Return the message of the commit that takes a version back."""
    target = pipeline.target
    assert target is not None
    subject = f"{target.document}: roll {target.model} back to version {back.rstrip('/').rpartition('/')[2]}"
    facts = [f"The rollout of {url} was rolled back: git says again what runs.", f"Model: {back}"]
    return _message(subject, facts, pipeline, state)


def _message(subject: str, facts: list[str], pipeline: Pipeline, state: State) -> str:
    short = subject if len(subject) <= _SUBJECT else f"{subject[: _SUBJECT - 1]}…"
    return "\n".join([short, "", *facts, "", f"{TRAILER}: {pipeline} run {state.run}", ""])


def _number(value: float) -> str:
    return f"{value:.6g}"


def _before(pipeline: Pipeline, state: State, name: str) -> str:
    known = state.known.get(state.before, {})
    return f" (live: {_number(known[name])})" if name in known else ""
