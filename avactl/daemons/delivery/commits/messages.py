"""Texts of the commits and pull requests of pipelines, promotions and roll-backs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from avactl.base.terminal import duration_text, shorten_middle
from avactl.contracts.delivery import HealthRecord, PipelineState, PromotionPlan, RollbackPlan
from avactl.daemons.delivery.commits.repository import (
    PROMOTION_TRAILER,
    RECORD_TRAILER,
    ROLLBACK_TRAILER,
    TRAILER,
)
from avactl.daemons.delivery.plans import DeliveredPipeline

BRANCHES = "avactl/"
"""Beginning of the branches of all pull requests."""
_PROMOTION_BRANCH = re.compile(rf"{BRANCHES}([^/]+)/promotion/([^/]+)-[0-9a-f]{{16}}").fullmatch
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


def health_message(namespace: str, service: str, record: HealthRecord) -> str:
    """Return the message of the commit that records the health of a service."""
    since = format_moment(record.since)
    return _format_message(
        f"{namespace}/{service}: {record.outcome}", [f"Since: {since}"], f"{RECORD_TRAILER}: {record.outcome}"
    )


def promotion_prefix(team: str, document: str) -> str:
    """Return the beginning of the branches of a promotion's pull requests; a digest of the change follows."""
    return f"{BRANCHES}{team}/promotion/{document}-"


def parse_promotion_branch(branch: str) -> tuple[str, str] | None:
    """Return the team and the target's document of a promotion's branch; None for other branches."""
    found = _PROMOTION_BRANCH(branch)
    return None if found is None else (found[1], found[2])


def promotion_message(
    plan: PromotionPlan, record: HealthRecord, version: str, values: Sequence[tuple[str, object, object]]
) -> str:
    """Return the message of the commit that promotes a version, with what the gates have seen.

    `values`: path, old and new value of each field that changes.
    """
    source, target = plan.source, plan.target
    facts = [
        f"From: {source.document} on cluster {source.cluster}, to {target.document} on cluster {target.cluster}",
        f"Healthy since: {format_moment(record.since)}, with all pods available",
        f"Last seen healthy: {format_moment(record.seen)}, after {_duration(record.seen - record.since)}; "
        f"required: {_duration(plan.window)}",
        *(f"{path}: {_short_value(before)} → {_short_value(after)}" for path, before, after in values),
    ]
    subject = f"{target.document}: promote {version} from {source.document}"
    return _format_message(subject, facts, f"{PROMOTION_TRAILER}: {plan.team}/{target.document}")


def format_moment(seconds: float) -> str:
    """Return a moment as messages show it, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _duration(seconds: float) -> str:
    return duration_text(max(0.0, seconds))


def _short_value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return "none" if value is None else shorten_middle(_one_line(text), 200)


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
