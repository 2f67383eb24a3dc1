"""Kubernetes Events: results of a run on the inventory's ConfigMap, drift and rejections on the objects."""

from __future__ import annotations

import asyncio
from typing import Any

from avactl.apply.reconcile.actions import Action, Step
from avactl.apply.reconcile.api import Api
from avactl.apply.reconcile.reporting.report import Result
from avactl.base.terminal import shortened, visible
from avactl.diagnostics.redaction import redact
from avactl.kube import logs
from avactl.kube.client import ApiError, UnreachableError
from avactl.kube.events import events_path, new_event

CONTROLLER = "avactl-reconcile"
_MOST = 20
"""Events of objects in one run: a thousand would hide the rest, and cost more than the run."""
_NOTE = 4096
"""Characters of a text that are read for a note."""


async def tell(api: Api, reference: dict[str, str], result: Result) -> None:
    """Write the Events of a run that changed something. A failed write is only logged."""
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
    """Write the Event for a commit that does not compile."""
    text = f"commit {commit[:12]} has {errors} errors: nothing was changed"
    if reference.get("uid"):
        await _send(api, _event(reference, "CompileFailed", text, warning=True))


def _of_step(step: Step) -> dict[str, Any] | None:
    live = step.after or step.live
    if live is None:
        return None
    named = {key: live["metadata"].get(key) for key in ("name", "uid", "namespace")}
    reference = {"apiVersion": live["apiVersion"], "kind": live["kind"], **{k: v for k, v in named.items() if v}}
    if step.error:
        return _event(reference, "ApplyFailed", step.error, warning=True)
    fields = ", ".join(d.field + (f" (by {d.by})" if d.by else "") for d in step.differences)
    return _event(reference, "DriftCorrected", f"reverted: {fields or step.reason}")


def _event(reference: dict[str, str], reason: str, note: str, *, warning: bool = False) -> dict[str, Any]:
    note = visible(redact(shortened(note, _NOTE)))
    return new_event(CONTROLLER, "Reconcile", reference, reason, note, warning=warning)


async def _send(api: Api, event: dict[str, Any]) -> None:
    try:
        await api.client.request("POST", events_path(event), event)
    except (ApiError, UnreachableError) as error:
        logs.info("event not written", error=str(error))
