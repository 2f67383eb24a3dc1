"""`avactl status` of an API server with a promotion, a pipeline, rollouts and jobs, and of one that refuses some."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from avactl.cli.app import app
from avactl.contracts.delivery import PROMOTION_KEY, STATE_KEY, PromotionState
from avactl.contracts.document import dump
from avactl.contracts.names import CONFIG_LABEL, PROMOTION_CONFIG, PROMOTION_STATE, ROLLOUT, ROLLOUT_STATE
from avactl.contracts.serving import RolloutState
from tests.cli.test_status import KUBECONFIG
from tests.delivery.test_promotion_history import PLAN
from tests.serving.test_decide import by_replicas

SYSTEM = "/api/v1/namespaces/avactl-system/configmaps"
INVENTORY = {"version": 1, "repository": "r", "cluster": "lab", "commit": "4f2c1a9b", "complete": False, "kinds": []}


def config_map(name: str, kind: str, data: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {CONFIG_LABEL: kind}}, "data": data}


def service(name: str, state: RolloutState) -> dict[str, Any]:
    notes = {ROLLOUT: dump(by_replicas()), ROLLOUT_STATE: dump(state)}
    return {"metadata": {"name": name, "namespace": "search", "annotations": notes}}


def job(name: str, **status: Any) -> dict[str, Any]:
    made = (datetime.now(UTC) - timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "app.kubernetes.io/managed-by": "avactl",
        "app.kubernetes.io/name": "trainingjob",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "worker",
    }
    metadata = {"name": f"{name}-worker", "namespace": "search", "uid": name, "creationTimestamp": made}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "a"}]}}
    spec = {"completions": 1, "parallelism": 1, "template": template}
    return {"metadata": {**metadata, "labels": labels}, "spec": spec, "status": status}


class Server(BaseHTTPRequestHandler):
    """An API server with these collections; paths in `refused` are forbidden."""

    items: dict[str, list[dict[str, Any]]]
    refused: frozenset[str]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path, selector = url.path, parse_qs(url.query).get("labelSelector", [""])[0]
        code = 200
        body: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "items": self.items.get(path, [])}
        if path == SYSTEM:
            reconciled = "name=reconcile" in selector
            body["items"] = [
                item for item in body["items"] if item["metadata"]["name"].startswith("avactl-inv") == reconciled
            ]
        if path in self.refused:
            code, body = 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": f"may not list {path}"}
        elif path.startswith(f"{SYSTEM}/"):
            code, body = 404, {"kind": "Status", "code": 404, "reason": "NotFound"}
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[type[Server]]:
    class Own(Server):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        (tmp_path / "config").write_text(KUBECONFIG.format(port=http.server_port))
        Own.items, Own.refused = _world(), frozenset()
        yield Own
        http.shutdown()


def _world() -> dict[str, list[dict[str, Any]]]:
    now = time.time()
    soaking = PromotionState(phase="soaking", since=now - 720, source="version 2", target="version 1")
    inventory = {"name": "avactl-inventory-lab", "resourceVersion": "1", "uid": "u"}
    return {
        SYSTEM: [
            config_map("promotion.vision.web", PROMOTION_CONFIG, {PROMOTION_KEY: dump(PLAN)}),
            config_map("promotion-state.vision.web", PROMOTION_STATE, {STATE_KEY: dump(soaking)}),
            {"metadata": inventory, "data": {"inventory.json": json.dumps(INVENTORY)}},
        ],
        "/apis/apps/v1/deployments": [
            service("quiet", RolloutState()),
            service("moving", RolloutState(phase="starting", canary="new", since=now - 60, reason="Waiting")),
            service(
                "bad", RolloutState(outcome="rolledBack", ended=now - 60, reason="RolloutRolledBack", message="errors")
            ),
        ],
        "/apis/batch/v1/jobs": [
            job("fresh"),
            job("done", succeeded=1, conditions=[{"type": "Complete", "status": "True"}]),
            job("broken", conditions=[{"type": "Failed", "status": "True", "message": "exit code 1"}]),
        ],
    }


def shown(tmp_path: Path, *arguments: str) -> str:
    command = ("status", "--kubeconfig", str(tmp_path / "config"), *arguments)
    done = CliRunner().invoke(app, command, env={"COLUMNS": "200", "NO_COLOR": "1"}, prog_name="avactl")
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_is_not_at_rest(server: type[Server], tmp_path: Path) -> None:
    lines = shown(tmp_path).splitlines()
    assert lines[1] == "cluster lab: commit 4f2c1a9b is not applied completely; `avactl reconcile --dry-run` says why"
    rows = [tuple(part.strip() for part in line.split("  ") if part) for line in lines[3:-1]]
    assert rows == [
        ("promotion vision/web", "soaking", "12 min of 2 h", "from try on staging: version 1 → version 2"),
        ("rollout search/moving", "starting", "1 min", "Waiting"),
        ("rollout search/bad", "rolled back", "1 min", "RolloutRolledBack errors"),
        ("job search/fresh", "starting", "2 h", "its pods are not created yet"),
        ("job search/broken", "failed", "2 h", "exit code 1"),
    ]
    assert lines[-1] == "1 rollout and 1 job are at rest (`avactl serving status` and `avactl jobs`)"


def test_for_programs(server: type[Server], tmp_path: Path) -> None:
    told = json.loads(shown(tmp_path, "--format", "json"))
    assert told["atRest"] == {"promotion": 0, "pipeline": 0, "rollout": 1, "job": 1}
    assert {row["kind"]: row["command"] for row in told["unsettled"]} == {
        "promotion": "avactl delivery status",
        "rollout": "avactl serving status",
        "job": "avactl jobs",
    }


def test_what_an_account_may_not_read(server: type[Server], tmp_path: Path) -> None:
    """A member of a team sees the namespace of the kubeconfig, and is told what is missing."""
    server.refused = frozenset({SYSTEM, "/apis/apps/v1/deployments", "/apis/batch/v1/jobs"})
    server.items["/apis/apps/v1/namespaces/search/deployments"] = server.items["/apis/apps/v1/deployments"]
    lines = shown(tmp_path, "-n", "search").splitlines()
    assert "promotions and pipelines are not shown: this account may not read them in avactl-system" in lines
    assert any(line.startswith("rollout search/bad") for line in lines)
    lines = shown(tmp_path).splitlines()
    assert "rollouts are not shown: this account may not read them in all namespaces" in lines
    config = tmp_path / "config"
    config.write_text(config.read_text().replace("user: u}}", "user: u, namespace: search}}", 1))
    lines = shown(tmp_path).splitlines()
    assert "only rollouts of namespace search: this account may not read those of all namespaces" in lines


def test_nothing_there(server: type[Server], tmp_path: Path) -> None:
    server.items = {}
    assert shown(tmp_path).splitlines()[1:] == ["no promotions, pipelines, rollouts or jobs"]
