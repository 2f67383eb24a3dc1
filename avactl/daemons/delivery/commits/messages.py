"""Texts of the commits and pull requests of pipelines and roll-backs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from avactl.base.terminal import shorten_middle
from avactl.contracts.delivery import PipelineState, RollbackPlan
from avactl.daemons.delivery.commits.repository import RECORD_TRAILER, ROLLBACK_TRAILER, TRAILER
from avactl.daemons.delivery.plans import DeliveredPipeline

_MAX_SUBJECT_LENGTH = 72
_MAX_REASON_LENGTH = 500
"""Maximum length of the reason for a roll-back in a message."""
_MAX_SHOWN = 8
"""Maximum number of commits that a message names."""


def proposal_branch(pipeline: DeliveredPipeline, run: int) -> str:
    """Return the branch of the pull request of a run; unique also for teams with names like `vision-a`."""
    return f"avactl/{pipeline.team}/{pipeline.name}-{run}"


def commit_message(pipeline: DeliveredPipeline, state: PipelineState, url: str, version: str) -> str:
    """Return the message of the commit that deploys a version."""
    target = pipeline.target
    assert target is not None
    facts = [
        f"Run {state.run} of pipeline {pipeline}, {state.message}.",
        f"Model: {url}",
        *([f"Before: {state.before}"] if state.before else []),
        *(
            f"{name}: {_format_number(value)}{_previous_version(state, name)}"
            for name, value in sorted(state.metrics.items())
        ),
    ]
    subject = f"{target.document}: deploy version {version} of {target.model}"
    return _format_message(subject, facts, f"{TRAILER}: {pipeline} run {state.run}")


def revert_message(pipeline: DeliveredPipeline, state: PipelineState, url: str, back: str) -> str:
    """Return the message of the commit that reverts a deployment."""
    target = pipeline.target
    assert target is not None
    subject = f"{target.document}: roll {target.model} back to version {back.rstrip('/').rpartition('/')[2]}"
    facts = [f"The rollout of {url} was rolled back; this restores the running version.", f"Model: {back}"]
    return _format_message(subject, facts, f"{TRAILER}: {pipeline} run {state.run}")


def rollback_branch(service: RollbackPlan, rejected: str) -> str:
    """Return the branch of the pull request that reverts a service's spec from a rejected version."""
    return f"avactl/{service.team}/rollback/{service.document}-{rejected}"


def rollback_message(service: RollbackPlan, why: str, undone: Sequence[str], good: str) -> str:
    """Return the message of the commit that reverts a service's spec to its text at an earlier commit.

    `undone`: the commits of its file since then, the newest first.
    """
    shown = _one_line(why)[:_MAX_REASON_LENGTH]
    commits = ", ".join(each[:10] for each in undone[:_MAX_SHOWN]) + (", …" if len(undone) > _MAX_SHOWN else "")
    facts = [
        "The rollout was rolled back in the cluster; this restores the spec of the running version.",
        *([f"Why: {shown}"] if shown.strip() else []),
        f"Undone: {commits}",
        f"Restored from: {good[:10]}",
    ]
    subject = f"{service.document}: roll back to the version that runs"
    return _format_message(subject, facts, f"{ROLLBACK_TRAILER}: {service.team}/{service.document}")


def record_message(namespace: str, service: str, model: str, url: str, outcome: str) -> str:
    """Return the message of the commit that records how a rollout ended."""
    subject = f"{namespace}/{service}: {model} {outcome}"
    return _format_message(subject, [f"Model: {url}"], f"{RECORD_TRAILER}: {outcome}")


def _format_message(subject: str, facts: list[str], trailer: str) -> str:
    """Return a message whose facts, which have text of specs and pods, add no paragraphs, and no commands of forges."""
    short = subject if len(subject) <= _MAX_SUBJECT_LENGTH else f"{subject[: _MAX_SUBJECT_LENGTH - 1]}…"
    lines = [shorten_middle(_one_line(each), 2 * _MAX_REASON_LENGTH) for each in facts]
    return "\n".join([_escape_commands(_one_line(short)), "", *map(_escape_commands, lines), "", trailer, ""])


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)


def _escape_commands(text: str) -> str:
    """Return a text without commands that forges interpret: `[skip ci]`, `***NO_CI***`, `fixes #1`, `@NAME`, and links
    to issues."""
    for command, shown in (("[", "("), ("]", ")"), ("***", "* * *"), ("#", "# "), ("GH-", "GH "), ("@", "@ ")):
        text = text.replace(command, shown)
    return re.sub(r"(https?):(?=//)", r"\1: ", text, flags=re.IGNORECASE)


def _format_number(value: float) -> str:
    return f"{value:.6g}"


def _previous_version(state: PipelineState, name: str) -> str:
    known = state.known.get(state.before, {})
    return f" (live: {_format_number(known[name])})" if name in known else ""
