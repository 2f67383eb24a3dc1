"""Things in a cluster that are not at rest: promotions, pipelines, rollouts and training jobs.

Pure. The entries are those of `promotion_entries`, `pipeline_entries` and `service_entries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from avactl.base.terminal import duration_text
from avactl.kube.timestamps import seconds_since
from avactl.workbench.jobs.state import TrainingJobState, unusual_conditions

Entry = Mapping[str, Any]
_FAILED_RUNS = frozenset({"Declined", "Rejected", "RolledBack", "TimedOut", "ValidationFailed"})
"""Results of a pipeline's last run after which nobody has got the new version."""


class Unsettled(NamedTuple):
    """One thing that is not at rest."""

    kind: str
    """`promotion`, `pipeline`, `rollout` or `job`."""
    name: str
    """TEAM/NAME of a spec, NAMESPACE/NAME of a service or job."""
    state: str
    lasts: str
    """For how long, as text; empty if that is not known."""
    why: str


def unsettled_promotion(entry: Entry, now: float) -> Unsettled | None:
    """Return a promotion unless its target has the values of its source."""
    if entry["phase"] == "current" and not entry["problem"]:
        return None
    lasts = _duration(entry["since"], now)
    if entry["phase"] == "soaking":
        lasts += f" of {duration_text(entry['window'])}"
    source = f"{entry['from']} on {entry['cluster']}" if entry["cluster"] else entry["from"]
    step = f"from {source}: {entry['runs']} → {entry['tries']}" if entry["tries"] else f"from {source}"
    return Unsettled(
        "promotion",
        entry["service"],
        entry["phase"] or "not begun",
        lasts,
        _reasons(step, entry["url"] or entry["message"], entry["problem"]),
    )


def unsettled_pipeline(entry: Entry, now: float) -> Unsettled | None:
    """Return a pipeline that runs, has a problem, or whose last run has failed."""
    failed = entry["reason"] in _FAILED_RUNS
    if entry["phase"] == "idle" and not failed and not entry["problem"]:
        return None
    state = f"{entry['phase'] or 'not begun'}" + (f" on {entry['cluster']}" if entry["cluster"] else "")
    if failed and entry["phase"] == "idle":
        state = entry["reason"]
    number = f"run {entry['run']}" if entry["run"] else ""
    why = _reasons(number, entry["message"], entry["problem"])
    return Unsettled("pipeline", entry["pipeline"], state, _duration(entry["since"], now), why)


def unsettled_rollout(entry: Entry, now: float) -> Unsettled | None:
    """Return a service with a rollout under way, an invalid one, or whose last one was rolled back."""
    if entry["phase"] == "steady" and entry["outcome"] != "rolledBack" and entry["reason"] != "InvalidRollout":
        return None
    state = "rolled back" if entry["phase"] == "steady" and entry["outcome"] == "rolledBack" else entry["phase"]
    if entry["step"]:
        state = f"step {entry['step']} of {entry['steps']}, {entry['percent']}%"
    why = f"{entry['reason']} {entry['message']}".strip()
    return Unsettled("rollout", entry["service"], state, _duration(entry["since"], now), why)


def unsettled_job(job: TrainingJobState, now: datetime) -> Unsettled | None:
    """Return a training job that waits, has failed, or whose owner may want to know something."""
    notes = unusual_conditions(job, now)
    if job.state in ("succeeded", "suspended") or (job.state == "running" and not notes):
        return None
    lasts = duration_text(seconds_since(job.created, now))
    return Unsettled("job", f"{job.namespace}/{job.name}", job.state, lasts, _reasons(job.why, *notes))


def _reasons(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _duration(since: float, now: float) -> str:
    return duration_text(max(0.0, now - since)) if since else ""
