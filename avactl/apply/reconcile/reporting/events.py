"""Kubernetes Events: results of a run on the inventory's ConfigMap, drift and rejections on the objects."""

from __future__ import annotations

import asyncio

from avactl.apply.reconcile.actions import Action, ReconcileStep
from avactl.apply.reconcile.reporting.report import StepResult
from avactl.base.object_identity import object_reference
from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts.names import RECONCILER
from avactl.diagnostics.redaction import redact_text
from avactl.kube.client import Client
from avactl.kube.events import EventRecorder
from avactl.kube.object_client import Body

_MAX_STEPS = 20
"""Events of objects in one run: a thousand would hide the rest, and cost more than the run."""
_MAX_NOTE_CHARS = 4096
"""Characters of a text that are read for a note."""


class RunEvents:
    """Posts the Events of runs."""

    def __init__(self, client: Client) -> None:
        self._recorder = EventRecorder(client, RECONCILER, "Reconcile")

    async def report_run(self, reference: dict[str, str], result: StepResult) -> None:
        """Post the Events of a run that changed something."""
        if not reference.get("uid"):
            return
        bad = bool(result.problem or result.failed)
        text = result.problem or result.summary()
        if result.commit:
            text = f"commit {result.commit[:12]}: {text}"
        about = [step for step in result.steps if step.error or step.action is Action.restore]
        await asyncio.gather(
            self._record(reference, "ReconcileFailed" if bad else "Reconciled", text, warning=bad),
            *(self._report_step(step, live) for step in about[:_MAX_STEPS] if (live := step.after or step.live)),
        )

    async def report_broken(self, reference: dict[str, str], commit: str, errors: int) -> None:
        """Post the Event for a commit that does not compile."""
        text = f"commit {commit[:12]} has {errors} errors: nothing was changed"
        if reference.get("uid"):
            await self._record(reference, "CompileFailed", text, warning=True)

    async def _report_step(self, step: ReconcileStep, live: Body) -> None:
        reference = object_reference(live["apiVersion"], live["kind"], live["metadata"])
        if step.error:
            await self._record(reference, "ApplyFailed", step.error, warning=True)
            return
        fields = ", ".join(d.field + (f" (by {d.by})" if d.by else "") for d in step.differences)
        await self._record(reference, "DriftCorrected", f"reverted: {fields or step.reason}")

    async def _record(self, reference: dict[str, str], reason: str, note: str, *, warning: bool = False) -> None:
        note = visible_text(redact_text(shorten_middle(note, _MAX_NOTE_CHARS)))
        await self._recorder.record(reference, reason, note, warning=warning)
