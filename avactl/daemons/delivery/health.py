"""The health of services in promotions: what a cluster sees of its own service, and what of it is written to git.

A record is written when it changes, and once more when the service has been healthy for as long as a promotion wants:
the time in between is known to be healthy only then, also if the cluster is lost in the meantime.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from avactl.contracts.delivery import MAX_REJECTED, HealthRecord, PromotedValues
from avactl.contracts.document import DocumentError, load
from avactl.contracts.names import PROMOTED_VALUES, TEMPLATE_DIGEST
from avactl.daemons.delivery.commits.promoted_values import combined_digest
from avactl.daemons.delivery.rollouts import rollout_state, template_verdict
from avactl.kube.timestamps import unix_time_or

MAX_SETTLE_S = 300.0
"""Longest time until a service that became healthy is recorded: one that flaps makes few commits."""
_SETTLED_SHARE = 0.25
"""Part of the shortest window after which it is recorded otherwise."""
Body = dict[str, Any]


def observe_health(deployment: Body, sets: Iterable[Body], now: float) -> HealthRecord | None:
    """Return the version that a service runs and its health; None if that cannot be told now.

    `sets`: the ReplicaSets of its versions. A service is healthy from the moment when its rollout is complete and all
    of its pods are available; without pods it is not. With `maxSurge: 0`, Kubernetes calls a Deployment available that
    lacks a pod.
    """
    notes, status = deployment["metadata"].get("annotations") or {}, deployment.get("status") or {}
    try:
        values = load(PromotedValues, notes.get(PROMOTED_VALUES)).root
    except DocumentError:
        return None
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return None
    template = notes.get(TEMPLATE_DIGEST, "")
    seen = HealthRecord(
        values=values,
        template=template if isinstance(template, str) and len(template) <= 64 else "",
        outcome="progressing",
        since=now,
        seen=now,
    )
    verdict, state = template_verdict(deployment, sets), rollout_state(deployment)
    if verdict == "rejected":
        return seen.replace(outcome="rejected", since=min(state.ended, now))
    if verdict != "promoted":
        return seen
    available: Body = next((each for each in status.get("conditions") or () if each.get("type") == "Available"), {})
    changed = unix_time_or(now, str(available.get("lastTransitionTime", "")))
    if available.get("status") != "True":
        return seen.replace(outcome="unhealthy", since=min(changed, now))
    if status.get("availableReplicas", 0) < max(deployment["spec"].get("replicas", 1), 1):
        return seen.replace(outcome="unhealthy")
    return seen.replace(outcome="healthy", since=min(max(changed, state.since, state.ended), now))


def next_record(
    known: HealthRecord | None, seen: HealthRecord, windows: Sequence[float], fields: Collection[str] = ()
) -> HealthRecord | None:
    """Return the record to write, from the one that is known and what is seen now; None if nothing is to be written.

    The age of the pods is not that of values that are not part of them: these are healthy at the earliest since they
    were first seen. `windows`: seconds of health that promotions wait for. `fields`: values that are promoted to the
    service; none for a source alone, which need not remember what it has rolled back.
    """
    begins = known is None or any(known.values.get(path) != digest for path, digest in seen.values.items())
    since = seen.seen if known is None or begins else min(max(known.since, seen.since), seen.seen)
    proven = seen.outcome == "healthy" or (known is not None and known.values == seen.values and known.proven)
    new = seen.replace(since=since, rejected=_rejected_versions(known, seen, fields), proven=proven)
    if known is None or begins:
        return new
    same = (known.values, known.template) == (new.values, new.template)
    lasted = new.seen - new.since
    if new.outcome == "healthy" and lasted < min([MAX_SETTLE_S, *(_SETTLED_SHARE * each for each in windows)]):
        if known.outcome == "healthy" and (not same or known.since < new.since - 1):
            return new.replace(outcome="unhealthy")
        return None
    if not same or known.outcome != new.outcome or known.rejected != new.rejected:
        return new
    if new.outcome != "healthy":
        return None
    confirmed = known.seen - known.since
    # A later begin: it was not healthy in between.
    restarted = known.since < new.since - 1
    return new if restarted or any(confirmed < each <= lasted for each in windows) else None


def _rejected_versions(known: HealthRecord | None, seen: HealthRecord, fields: Collection[str]) -> tuple[str, ...]:
    own = combined_digest({path: digest for path, digest in seen.values.items() if path in fields})
    before = () if known is None else known.rejected
    if seen.outcome == "healthy":
        return tuple(each for each in before if each != own)  # somebody has deployed it again
    # With values that were healthy before, what is rejected is another change of the service.
    proven = known is not None and known.values == seen.values and known.proven
    if seen.outcome != "rejected" or not fields or own in before or proven:
        return before
    return (*before, own)[-MAX_REJECTED:]
