"""Reports, events and commit statuses: what a cluster says steers no terminal and no log, and is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from avactl.apply.reconcile.actions import Action, ReconcileStep
from avactl.apply.reconcile.health import Health, HealthState
from avactl.apply.reconcile.inventory import Records
from avactl.apply.reconcile.reporting.events import RunEvents
from avactl.apply.reconcile.reporting.report import StepResult, as_text
from avactl.base.object_identity import Gvk, ObjectKey
from avactl.base.terminal import inert_text
from tests.kube.recording_client import RecordingClient

HOSTILE = "::error::x\n##[error]y\x1b[2J\r\nsection_start:1:z " + "a" * 100_000


def result() -> StepResult:
    metadata = {"name": "job", "namespace": "vision", "uid": "u"}
    live = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
    step = ReconcileStep(
        Action.change, "Job vision/job", ObjectKey("batch", "Job", "vision", "job"), 0, live=live, error=HOSTILE
    )
    health = {"Job vision/job": Health(HealthState.failed, HOSTILE)}
    return StepResult("main", "x", "c" * 40, steps=[step], health=health, problem=HOSTILE)


def test_a_report() -> None:
    text = as_text(result(), False)
    assert text == inert_text(text)
    assert not {"\x1b", "\r"} & set(text)
    assert len(text) < 10_000
    assert len(text.splitlines()) < 8


def test_events() -> None:
    client = RecordingClient()
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "n", "name": "i", "uid": "u"}
    asyncio.run(RunEvents(client).report_run(reference, result()))
    assert len(client.sent) == 2
    for _, _, event in client.sent:
        assert event["note"].isprintable()
        assert len(event["note"].encode()) <= 1024


class FakeApi:
    """Gives one ConfigMap."""

    def __init__(self, state: Any, objects: Any = "") -> None:
        text = state if isinstance(state, str) else orjson.dumps(state).decode()
        self.body = {
            "metadata": {"resourceVersion": "1", "uid": "u"},
            "data": {"inventory.json": text},
            "binaryData": {"objects": objects},
        }

    async def get(self, *_: object) -> dict[str, Any]:
        return self.body


GOOD = {"repository": "r", "cluster": "main", "commit": "c", "complete": True, "kinds": [["batch/v1", "Job"]]}


@pytest.mark.parametrize(
    "state",
    [
        "",
        "[" * 100_000,
        "{}",
        "[]",
        "9" * 5000,
        {**GOOD, "kinds": 3},
        {**GOOD, "kinds": [["v1"]]},
        {**GOOD, "kinds": [["../../api/v1/secrets", "Secret"]]},
        {**GOOD, "kinds": [["v1?x", "Job"]]},
        {**GOOD, "kinds": [["v1", "x" * 1000]]},
        {**GOOD, "kinds": {"a": 1}},
    ],
    ids=lambda state: str(state)[-40:],
)
def test_a_damaged_inventory_counts_as_lost(state: Any) -> None:
    record = asyncio.run(Records(FakeApi(state), "n", "x").read())  # type: ignore[arg-type]
    assert (record.version, record.commit, record.kinds) == ("1", "", frozenset())


def test_an_inventory_of_many_kinds() -> None:
    kinds = [["batch/v1", f"Kind{number}"] for number in range(100_000)]
    record = asyncio.run(Records(FakeApi({**GOOD, "kinds": kinds}), "n", "x").read())  # type: ignore[arg-type]
    assert record.kinds == frozenset()
    whole = asyncio.run(Records(FakeApi(GOOD), "n", "x").read())  # type: ignore[arg-type]
    assert whole.kinds == {Gvk("batch/v1", "Job")}
