"""Rollouts that the daemon of a service's cluster records for a pipeline on another one, beside its roll-backs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from avactl.contracts.delivery import REPORT_KEY, SERVICE_KEY, ReportPlan, RolloutRecord
from avactl.contracts.document import dump
from avactl.contracts.names import CONFIG_LABEL, MODEL_URLS, ROLLBACK_CONFIG, ROLLOUT_REPORT
from avactl.daemons.delivery import reports, rollbacks
from avactl.daemons.delivery.branch import SpecBranch
from avactl.daemons.delivery.commits.records import RolledOutModel, RolloutRecords
from avactl.daemons.delivery.commits.repository import CommitAuthor, DeliveryError, Repository
from avactl.daemons.delivery.config_maps import ConfigMaps
from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client
from tests.delivery.test_repository import Remote
from tests.delivery.test_rollback import WEB

MODEL = RolledOutModel("main", "vision", "web", "digits")
URL = "s3://data/published/digits/"


class Service:
    """A service with a report, whose rollout is as the test says, and the daemon that looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.remote, self.url, self.verdict = Remote(folder), f"{URL}1", "promoted"
        self.events: list[str] = []
        self.rolled_back = 0
        self.repository = Repository(str(self.remote.url), "main", "specs", folder / "cache", CommitAuthor("a", "a@b"))
        client = Client(ClusterAccess("http://nobody", None, lambda: ""))
        self.maps = ConfigMaps(client, "avactl-system")
        self.put("rollback.vision.web", ROLLBACK_CONFIG, SERVICE_KEY, dump(WEB))
        plan = ReportPlan(cluster="main", namespace="vision", service="web", model="digits")
        self.put("rollout-report.vision.digits", ROLLOUT_REPORT, REPORT_KEY, dump(plan))
        self.daemon = rollbacks.Rollbacks(client, self.maps, SpecBranch(self.repository, 0.0), None, 0.0)

        async def deployment_of(*_: object) -> dict[str, Any]:
            urls = json.dumps({"digits": self.url, "other": f"{URL}9"})
            return {"metadata": {"name": "web", "namespace": "vision", "annotations": {MODEL_URLS: urls}}}

        async def replica_sets(*_: object) -> list[dict[str, Any]]:
            return []

        async def roll_back(*_: object) -> None:
            self.rolled_back += 1

        async def emit_event(_: object, reason: str, note: str, **__: object) -> None:
            self.events.append(f"{reason}: {note}")

        monkeypatch.setattr(rollbacks, "deployment_of", deployment_of)
        monkeypatch.setattr(rollbacks, "_is_rolled_back", lambda deployment: self.verdict == "rejected")
        monkeypatch.setattr(reports, "replica_sets", replica_sets)
        monkeypatch.setattr(reports, "rollout_verdict", lambda *_: self.verdict)
        monkeypatch.setattr(self.daemon, "_roll_back", roll_back)
        monkeypatch.setattr(self.daemon, "_emit_event", emit_event)

    def put(self, name: str, kind: str, key: str, text: str) -> None:
        """Add a ConfigMap."""
        metadata = {"name": name, "labels": {CONFIG_LABEL: kind}, "resourceVersion": "1"}
        self.maps.put({"metadata": metadata, "data": {key: text}})

    def look(self, url: str, verdict: str) -> RolloutRecord | None:
        """Let the daemon look at the service with this URL; return what another cluster then reads."""
        self.url, self.verdict = url, verdict
        asyncio.run(self.daemon.advance("rollback.vision.web"))
        return RolloutRecords(self.repository, 0.0).read(MODEL)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Service:
    return Service(monkeypatch, tmp_path)


def test_only_ends_of_rollouts_are_recorded(service: Service) -> None:
    assert service.look(f"{URL}2", "progressing") is None
    first = RolloutRecord(url=f"{URL}2", outcome="promoted")
    assert service.look(f"{URL}2", "promoted") == first
    assert service.look(f"{URL}3", "progressing") == first
    assert service.look(f"{URL}3", "rejected") == RolloutRecord(url=f"{URL}3", outcome="rejected")
    assert service.rolled_back == 1
    # Only the model that a pipeline of another cluster deploys.
    assert RolloutRecords(service.repository, 0.0).read(MODEL._replace(model="other")) is None


def test_without_a_report_nothing_is_recorded(service: Service) -> None:
    service.maps.remove("avactl-system/rollout-report.vision.digits")
    assert service.look(f"{URL}2", "promoted") is None


def test_a_roll_back_does_not_wait_for_its_record(service: Service) -> None:
    """The branch may be protected from the daemon's account; its Deployment says so."""
    hook = service.remote.url / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho 'protected branch' >&2\nexit 1\n")
    hook.chmod(0o755)
    for _ in range(2):
        with pytest.raises(DeliveryError, match="avactl-rollouts/main"):
            service.look(f"{URL}2", "rejected")
    assert service.rolled_back == 2
    (event,) = service.events
    assert event.startswith("RolloutNotRecorded: the push to avactl-rollouts/main was refused")


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"cluster": 1}', '{"cluster": "' + "x" * 2_000_000 + '"}'],
    ids=["empty", "cut", "wrong", "large"],
)
def test_a_malformed_report_holds_up_neither_records_nor_rollbacks(service: Service, text: str) -> None:
    """Also one of another service of the namespace."""
    service.put("rollout-report.vision.broken", ROLLOUT_REPORT, REPORT_KEY, text)
    record = service.look(f"{URL}2", "rejected")
    assert record is not None
    assert record.outcome == "rejected"
    assert service.rolled_back == 1
    assert [each.partition(":")[0] for each in service.events] == ["ReportIgnored"]
    assert "rollout-report.vision.broken is ignored" in service.events[0]
    assert len(service.events[0]) < 1200
    service.look(f"{URL}2", "rejected")
    assert len(service.events) == 1  # told once
