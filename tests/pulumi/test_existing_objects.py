"""Objects of others are refused before the engine is asked, whatever its provider would do. No engine is needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from avactl.apply.pulumi import engine, existing_objects
from avactl.apply.pulumi.engine import MAX_SHOWN_OBJECTS, EngineOptions, PulumiEngineError, Session, StackName
from avactl.apply.pulumi.resource_plan import manifest_urn
from avactl.apply.pulumi.stack_state import ObjectRef, with_record
from avactl.contracts.names import MANAGED_BY, MANAGER
from avactl.program.manifest import Manifest
from tests.kube.fake_api_server import Handler, serve
from tests.pulumi.repository import compiled

Labels = Mapping[str, str]

COMPILATION = compiled()
VISION = [m for m in COMPILATION.manifests if m.item.team == "vision"]


class Objects:
    """An API server that serves the kinds of the repository, and says that these objects exist."""

    def __init__(self, *existing: str, unserved: str = "", status: int = 404, labels: Labels | None = None) -> None:
        """`existing`: `KIND NAME`, with `labels`; `status`: the answer for all other objects."""
        self.existing, self.unserved, self.status, self.labels = existing, unserved, status, labels or {}
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        assert request.method == "GET"
        kinds = {
            manifest.kind: {
                "kind": manifest.kind,
                "name": manifest.kind.lower(),
                "namespaced": bool(manifest.namespace),
            }
            for manifest in COMPILATION.manifests
            if request.path.endswith(f"/{manifest.body['apiVersion']}") and manifest.kind != self.unserved
        }
        if kinds:
            return web.json_response({"resources": list(kinds.values())})
        *_, kind, name = request.path.split("/")
        self.asked.append(f"{kind} {name}")
        if f"{kind} {name}" in self.existing:
            return web.json_response({"metadata": {"name": name, "labels": self.labels}})
        return web.json_response({"reason": "Denied", "message": "says the test"}, status=self.status)


class FakeStack:
    """Pulumi's stack, as a session uses it."""

    def __init__(self, *known: Manifest, name: StackName, record: list[ObjectRef] | None = None) -> None:
        resources = [
            {
                "urn": manifest_urn(manifest, str(name)),
                "type": manifest_urn(manifest, str(name)).split("::")[2].rpartition("$")[2],
                "custom": True,
                "inputs": manifest.body,
                "outputs": manifest.body,
            }
            for manifest in known
        ]
        self.deployment: dict[str, Any] = {"resources": resources}
        if record is not None:
            self.deployment = with_record(self.deployment, str(name), record)
        self.runs: list[str] = []

    def export_stack(self) -> SimpleNamespace:
        return SimpleNamespace(deployment=self.deployment)

    def import_stack(self, state: SimpleNamespace) -> None:
        self.deployment = state.deployment

    def refresh(self, **_: object) -> None:
        self.runs.append("refresh")

    def preview(self, **_: object) -> None:
        self.runs.append("preview")

    def up(self, **_: object) -> None:
        self.runs.append("up")


def run(
    command: str,
    handler: Handler,
    tmp_path: Path,
    *known: Manifest,
    team: str | None = "vision",
    adopt: bool = False,
    record: list[ObjectRef] | None = None,
) -> list[str]:
    """Run `up` or `preview` of a stack whose state has the known objects, and the record of an unfinished run.

    Return what the engine was asked for.
    """
    name = StackName("main", team)
    fake = FakeStack(*known, name=name, record=record)
    config = tmp_path / "kubeconfig"

    async def run_session() -> None:
        async with serve(handler) as url:
            cluster = {"name": "main", "cluster": {"server": url}}
            context = {"name": "main", "context": {"cluster": "main", "user": "main"}}
            users = [{"name": "main", "user": {}}]
            config.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "users": users}))
            session = Session(COMPILATION, name, EngineOptions(tmp_path, config, {"main": "main"}, adopt=adopt))
            await asyncio.to_thread(getattr(session, command))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "require_engine", lambda: None)
        patch.setattr(Session, "_open", lambda _: fake)
        patch.setattr(existing_objects, "PATIENCE_S", 0.0)
        asyncio.run(run_session())
    return fake.runs


@pytest.mark.parametrize("command", ["preview", "up"])
def test_existing_objects_are_named_and_the_engine_is_not_asked(command: str, tmp_path: Path) -> None:
    objects = Objects("configmap resnet-rendezvous", "service detector")
    with pytest.raises(PulumiEngineError) as caught:
        run(command, objects.answer, tmp_path)
    assert "ConfigMap vision/resnet-rendezvous" in str(caught.value)
    assert "Service vision/detector" in str(caught.value)
    assert str(caught.value).endswith(" already exist")
    assert "--adopt" in caught.value.hint
    assert len(objects.asked) == len(VISION)


def test_where_nothing_exists_the_engine_runs(tmp_path: Path) -> None:
    assert run("up", Objects().answer, tmp_path) == ["up"]


def test_objects_of_the_state_are_not_asked_for(tmp_path: Path) -> None:
    (known,) = (m for m in VISION if (m.kind, m.name) == ("Service", "detector"))
    objects = Objects("service detector")
    assert run("up", objects.answer, tmp_path, known) == ["up"]
    assert "service detector" not in objects.asked


def test_adopted_objects_are_not_asked_for(tmp_path: Path) -> None:
    objects = Objects("service detector")
    assert run("up", objects.answer, tmp_path, adopt=True) == ["up"]
    assert objects.asked == []


def test_patched_objects_exist_without_the_stack(tmp_path: Path) -> None:
    nodes = [m for m in COMPILATION.manifests if m.patch]
    assert nodes
    objects = Objects(*(f"{m.kind.lower()} {m.name}" for m in nodes))
    assert run("up", objects.answer, tmp_path, team=None) == ["up"]


def test_a_kind_that_is_not_served_has_no_objects(tmp_path: Path) -> None:
    """Its definition may be part of the stack."""
    objects = Objects("service detector", unserved="Service")
    assert run("up", objects.answer, tmp_path) == ["up"]
    assert "service detector" not in objects.asked


def test_a_refusal_names_a_bounded_number_of_objects(tmp_path: Path) -> None:
    objects = Objects(*(f"{m.kind.lower()} {m.name}" for m in VISION))
    with pytest.raises(PulumiEngineError) as caught:
        run("up", objects.answer, tmp_path)
    assert str(caught.value).count(", ") == MAX_SHOWN_OBJECTS
    assert f", {len(VISION) - MAX_SHOWN_OBJECTS} more already exist" in str(caught.value)


@pytest.mark.parametrize("command", ["preview", "up"])
def test_who_may_not_read_is_refused(command: str, tmp_path: Path) -> None:
    with pytest.raises(PulumiEngineError, match="cannot find out which objects exist already: 403 Denied") as caught:
        run(command, Objects(status=403).answer, tmp_path)
    assert "--adopt" in caught.value.hint


def test_without_an_answer_only_a_preview_goes_on(tmp_path: Path) -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    with pytest.raises(PulumiEngineError) as caught:
        run("up", hang_up, tmp_path)
    assert "is the cluster up" in caught.value.hint
    assert run("preview", hang_up, tmp_path) == ["preview"]


DETECTOR = next(ObjectRef.of(m.body) for m in VISION if (m.kind, m.name) == ("Service", "detector"))
OURS = {MANAGED_BY: MANAGER}


def test_objects_of_an_unfinished_run_are_taken_over(tmp_path: Path) -> None:
    objects = Objects("service detector", labels=OURS)
    assert run("up", objects.answer, tmp_path, record=[DETECTOR]) == ["up"]
    (known,) = (m for m in VISION if (m.kind, m.name) == ("Service", "detector-headless"))
    assert run("up", objects.answer, tmp_path, known, record=[DETECTOR]) == ["refresh", "up"]


@pytest.mark.parametrize(
    ("record", "labels"), [([DETECTOR], {MANAGED_BY: "helm"}), ([DETECTOR._replace(name="other")], OURS), (None, OURS)]
)
def test_an_object_that_the_unfinished_run_did_not_create_is_refused(
    record: list[ObjectRef] | None, labels: Labels, tmp_path: Path
) -> None:
    with pytest.raises(PulumiEngineError, match="Service vision/detector already exists"):
        run("up", Objects("service detector", labels=labels).answer, tmp_path, record=record)


def test_an_object_of_an_unfinished_run_that_nobody_declares_any_more_is_refused(tmp_path: Path) -> None:
    former = DETECTOR._replace(name="former")
    with pytest.raises(PulumiEngineError, match="created Service vision/former, which no spec declares") as caught:
        run("up", Objects("service former", labels=OURS).answer, tmp_path, record=[former])
    assert MANAGED_BY in caught.value.hint
    assert run("up", Objects("service former").answer, tmp_path, record=[former]) == ["up"]
    assert run("up", Objects().answer, tmp_path, record=[former]) == ["up"]
