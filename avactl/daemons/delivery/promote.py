"""The next step of a promotion, from what is observed. Pure, and without a state of its own: git and the forge say what
has been done, so a daemon that dies anywhere decides the same again.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from avactl.contracts.delivery import HealthRecord
from avactl.daemons.delivery.commits.promoted_values import PromotionValues, SpecValues

Phase = Literal["current", "waiting", "soaking", "rolling", "proposed", "held"]
Step = Literal["", "commit", "propose"]


class PromotionConfig(NamedTuple):
    """The part of a promotion's plan that decisions depend on."""

    window: float
    """Seconds that the source must be healthy."""
    by: Literal["commit", "pullRequest"]
    rollout: bool
    """True if the target says how its rollouts end."""


class PromotionSeen(NamedTuple):
    """Observations of one pass."""

    values: PromotionValues
    source: HealthRecord | None
    """The record of the source's cluster."""
    target: HealthRecord | None
    proposal: Literal["", "open", "closed", "merged", "withdrawn"] = ""
    """Newest pull request with exactly this change."""


class PromotionDecision(NamedTuple):
    """The step to take now, and the text for users."""

    phase: Phase
    message: str = ""
    step: Step = ""
    since: float = 0.0
    """Since when the source is healthy; 0 if it is not."""
    keep: bool = False
    """True if a pull request with this change stays as it is: what it promotes is still proven, or people closed it."""


def decide_promotion(config: PromotionConfig, seen: PromotionSeen) -> PromotionDecision:
    """Return the next step."""
    values, source, target = seen.values, seen.source, seen.target
    if values.source.digest == values.target.digest:
        return PromotionDecision("current")
    if values.conflict:
        return PromotionDecision("held", values.conflict)
    if target is not None and values.source.digest in target.rejected:
        return PromotionDecision("held", "this version was rolled back here")
    if source is None:
        return PromotionDecision("waiting", "nothing is recorded of the source")
    if not _runs(source, values.source):
        return PromotionDecision("waiting", "the source does not run this version yet")
    if source.outcome != "healthy":
        return PromotionDecision("waiting", _WAITS[source.outcome])
    lasted = source.seen - source.since
    if lasted < config.window:
        return PromotionDecision("soaking", since=source.since)
    if config.by == "pullRequest" and seen.proposal == "open":
        return PromotionDecision("proposed", since=source.since, keep=True)
    if config.by == "pullRequest" and seen.proposal == "closed":
        return PromotionDecision("held", "the pull request was closed", keep=True)
    if config.rollout and not _is_settled(values, target):
        return PromotionDecision("rolling", "the rollout here has not ended", since=source.since, keep=True)
    if config.by == "commit":
        return PromotionDecision("proposed", step="commit", since=source.since)
    if seen.proposal == "merged":
        # The branch was fetched before: what was merged is not what the pull request was opened with.
        return PromotionDecision("held", "the pull request was merged without this change")
    return PromotionDecision("proposed", step="propose", since=source.since, keep=True)


_WAITS = {
    "progressing": "the rollout of the source has not ended",
    "unhealthy": "pods of the source are not available",
    "rejected": "the source has rolled this version back",
}


def _is_settled(values: PromotionValues, target: HealthRecord | None) -> bool:
    """Return True if the target runs what its spec says, or has rolled it back."""
    return target is not None and target.outcome != "progressing" and _runs(target, values.target)


def _runs(record: HealthRecord, wanted: SpecValues) -> bool:
    """Return True if a service runs these values; a record has also those of other promotions."""
    return all(record.values.get(path) == digest for path, digest in wanted.digests.items())
