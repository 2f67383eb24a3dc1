"""Kubernetes Events: what a run did, on the inventory's record; drift and refusals, on the objects."""

from __future__ import annotations

import asyncio
import os
import uuid
from datetime import UTC, datetime
from typing import Any

from avactl.diagnostics.secrets import redact
from avactl.kube import logs
from avactl.kube.client import ApiError, UnreachableError
from avactl.reconcile.api import Api
from avactl.reconcile.diffing.actions import Action, Step
from avactl.reconcile.reporting.report import Result
from avactl.terminal import shortened, visible

CONTROLLER = "avactl-reconcile"
_MOST = 20
"""Events of objects in one run: a thousand would hide the rest, and cost more than the run."""
_NOTE = 1000
"""Characters of a note; the API server takes 1,024."""


async def tell(api: Api, reference: dict[str, str], result: Result) -> None:
    """Write the Events of a run that did something. That one was not written is logged, and no failure."""
    if not reference.get("uid"):
        return
    bad = bool(result.problem or result.failed)
    text = result.problem or result.summary()
    if result.commit:
        text = f"commit {result.commit[:12]}: {text}"
    events = [_event(reference, "ReconcileFailed" if bad else "Reconciled", text, warning=bad)]
    about = [step for step in result.steps if step.error or step.action is Action.restore]
    events += [event for step in about[:_MOST] if (event := _of_step(step)) is not None]
    await asyncio.gather(*(_send(api, event) for event in events))


async def tell_broken(api: Api, reference: dict[str, str], commit: str, errors: int) -> None:
    """A commit that does not compile."""
    text = f"commit {commit[:12]} has {errors} errors: nothing was changed"
    if reference.get("uid"):
        await _send(api, _event(reference, "CompileFailed", text, warning=True))


def _of_step(step: Step) -> dict[str, Any] | None:
    live = step.after or step.live
    if live is None:
        return None
    metadata = live["metadata"]
    reference = {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    if metadata.get("namespace"):
        reference["namespace"] = metadata["namespace"]
    if step.error:
        return _event(reference, "ApplyFailed", step.error, warning=True)
    fields = ", ".join(
        difference.field + (f" (by {difference.by})" if difference.by else "") for difference in step.differences
    )
    return _event(reference, "DriftCorrected", f"put back: {fields or step.reason}")


def _event(reference: dict[str, str], reason: str, note: str, *, warning: bool = False) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        # Events of objects without a namespace are in `default`.
        "metadata": {"name": f"avactl.{uuid.uuid4().hex[:16]}", "namespace": reference.get("namespace") or "default"},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": (os.environ.get("POD_NAME") or os.uname().nodename)[:128],
        "action": "Reconcile",
        "reason": reason,
        "type": "Warning" if warning else "Normal",
        "note": visible(redact(shortened(note, 4 * _NOTE)))[:_NOTE],
        "regarding": reference,
    }


async def _send(api: Api, event: dict[str, Any]) -> None:
    path = f"/apis/events.k8s.io/v1/namespaces/{event['metadata']['namespace']}/events"
    try:
        await api.client.request("POST", path, event)
    except (ApiError, UnreachableError) as error:
        logs.info("event not written", error=str(error))
