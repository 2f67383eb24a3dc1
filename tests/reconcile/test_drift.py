"""Edits by hand are found, told and put back; what controllers write is nobody's drift."""

from __future__ import annotations

import random

import pytest

from avactl.apply.reconcile.actions import Action
from avactl.apply.reconcile.reporting.report import as_text
from tests.proxy import Proxy
from tests.reconcile.edits import by_hand
from tests.reconcile.world import AVA, World, content
from tools.waiting import patience

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]


def empty_to_ava(world: World) -> None:
    """All of examples/ava by one command; a second one writes nothing."""
    world.commit(example=AVA)
    with Proxy(world.plane, world.folder) as proxy:
        world.kubeconfig = proxy.kubeconfig
        first = world.run("--cluster", "train", "--once", "--timeout", f"{patience(60):.0f}s")
        assert first.returncode == 0, first.stdout + first.stderr
        world.want_state_of_git("train", "train")
        proxy.counts.clear()
        second = world.run("--cluster", "train", "--once")
        assert second.returncode == 0, second.stdout + second.stderr
        assert proxy.writes() == 0, proxy.counts
        assert proxy.counts["dry"] == 0, "what is the same is known without asking"
        assert " unchanged" in second.stdout
    world.kubeconfig = world.plane.kubeconfig


def edits(world: World, batches: int, size: int, seed: int = 5) -> None:
    """Batches of edits by hand: after each, one run makes the cluster as it was, and tells just these."""
    chance = random.Random(seed)
    wanted = world.wanted("train")
    touched = [each for each in wanted if not each.manifest.patch and each.key.kind != "Namespace"]
    before = {key: content(body) for key, body in world.owned("train", wanted).items()}
    history: dict[str, list[str]] = {}
    for _ in range(batches):
        done = {str(each): by_hand(world, each, chance) for each in chance.sample(touched, size)}
        for title, edit in done.items():
            history.setdefault(title, []).append(edit)
        result = world.once("train", wait=False)
        assert result.complete, as_text(result, False)
        edited = {title for title, edit in done.items() if edit}
        assert len(edited) > size / 2, done
        # A claim goes with its volume, and is made anew with it, edited or not.
        anew = {step.title for step in result.steps if step.action is Action.recreate}
        told = {step.title for step in result.drift}
        missed = {step.title: (step.action, step.reason) for step in result.steps if step.title in told ^ edited}
        assert told - anew == edited - anew, (missed, {title: history.get(title) for title in missed})
        after = {key: content(body) for key, body in world.owned("train", wanted).items()}
        assert after.keys() == before.keys()
        for key, body in before.items():
            assert after[key] == body, (key, history)


def test_ava_and_random_edits(world: World) -> None:
    empty_to_ava(world)
    edits(world, 1, 20)


@pytest.mark.slow
def test_ava_and_a_thousand_random_edits(world: World) -> None:
    empty_to_ava(world)
    edits(world, 50, 20, seed=11)


SERVICE = """\
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {name: classify, team: vision}
spec:
  model: {name: m, version: "1", url: s3://models/m/1}
  runtime: {name: custom, image: registry.example.com/s@sha256:5fc197963c82353a79543c56348ccfa631c386c5b9c4eb50de4fc9bcca31ceee, command: [serve], port: 8080}
  resources: {cpu: "1", memory: 1Gi}
  replicas: REPLICAS
  probe: {path: /health}
"""  # noqa: E501


def test_replicas_of_an_autoscaler(world: World) -> None:
    """They are the autoscaler's, also when a fixed number becomes a range: no pod is stopped by the change."""
    world.commit({"platform.yaml": world.specs(), "service.yaml": SERVICE.replace("REPLICAS", "5")})
    assert world.once().complete
    namespace = f"{world.name}-vision"

    def replicas() -> int:
        found: int = world.kube.get("apps/v1", "Deployment", "classify", namespace)["spec"]["replicas"]
        return found

    assert replicas() == 5
    world.commit({"service.yaml": SERVICE.replace("REPLICAS", "{min: 1, max: 9, cpuUtilization: 60}")})
    assert world.once(wait=False).complete
    assert replicas() == 5
    path = world.kube.resource("apps/v1", "Deployment").path(namespace, "classify") + "/scale"
    patch = {"spec": {"replicas": 7}}
    world.kube.request("PATCH", path, body=patch, content_type="application/merge-patch+json")
    result = world.once(wait=False)
    assert result.complete
    assert not result.changed, as_text(result, False)
    assert replicas() == 7
    world.commit({"service.yaml": SERVICE.replace("REPLICAS", "2")})
    assert world.once(wait=False).complete
    assert replicas() == 2


def test_drift_is_told_with_who_did_it(world: World) -> None:
    world.commit({"platform.yaml": world.specs()})
    assert world.once().complete
    name, namespace = "avactl-policy", f"{world.name}-system"
    patch = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    world.kube.patch({**patch, "data": {"policy.json": "{}", "more": "by hand"}}, field_manager="kubectl-edit")
    run = world.run("--once", "--no-wait")
    assert run.returncode == 0
    assert f"↺ ConfigMap {namespace}/{name}" in run.stdout
    assert "(by kubectl-edit)" in run.stdout
    data = world.kube.get("v1", "ConfigMap", name, namespace)["data"]
    assert data["policy.json"] != "{}"
    assert "more" not in data
    events = world.kube.list("events.k8s.io/v1", "Event", namespace)
    assert [e["note"] for e in events if e["reason"] == "DriftCorrected"]


def test_what_controllers_add_stays(world: World) -> None:
    world.commit({"platform.yaml": world.specs()})
    assert world.once().complete
    marks = {"annotations": {"example.com/seen": "yes"}, "labels": {"example.com/zone": "a"}}
    metadata = {"name": f"{world.name}-vision", **marks}
    world.kube.patch({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, field_manager="some-operator")
    result = world.once()
    assert not result.changed, as_text(result, False)
    live = world.kube.get("v1", "Namespace", f"{world.name}-vision")
    assert live["metadata"]["annotations"]["example.com/seen"] == "yes"
    assert {step.action for step in result.steps} <= {Action.none, Action.wait}
