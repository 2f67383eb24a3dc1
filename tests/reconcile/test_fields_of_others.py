"""Fields that autoscalers and admission write: they stay, the report says so, and the next run has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from avactl.apply.reconcile.actions import Action
from avactl.apply.reconcile.reporting.report import StepResult, as_json, as_text
from tests.reconcile.test_list_keys import DEPLOYMENT
from tests.reconcile.world import World
from tools.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]

WEB: dict[str, Any] = yaml.safe_load(DEPLOYMENT.replace("NAME", "web").replace("replicas: 0", "replicas: 1"))
AUTOSCALER: dict[str, Any] = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "web"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 3,
        "maxReplicas": 10,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}],
    },
}
AUTOSCALER["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] = 70


def _live(world: World) -> dict[str, Any]:
    return world.kube.get("apps/v1", "Deployment", "web", f"{world.name}-vision")


def _replicas(world: World) -> int:
    found: int = _live(world)["spec"]["replicas"]
    return found


def _reconcile(world: World) -> StepResult:
    result = world.once(wait=False)
    assert result.complete, as_text(result, False)
    return result


def _want_quiet(world: World) -> StepResult:
    result = _reconcile(world)
    assert not result.changed, as_text(result, False)
    return result


def test_replicas_of_a_manifest_belong_to_the_autoscaler_beside_it(world: World) -> None:
    world.commit_objects([WEB, AUTOSCALER])
    _reconcile(world)
    wait_until(lambda: _replicas(world) == 3)
    _want_quiet(world)
    changed = yaml.safe_load(yaml.safe_dump(WEB))
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example.com/web:2"
    world.commit_objects([changed, AUTOSCALER])
    assert _reconcile(world).changed
    assert _replicas(world) == 3
    # Without the autoscaler, the number in git is applied again.
    world.commit_objects([changed])
    assert _reconcile(world).changed
    assert _replicas(world) == 1
    _want_quiet(world)


def test_replicas_stay_under_an_autoscaler_that_git_does_not_have(world: World) -> None:
    world.commit_objects([WEB])
    _reconcile(world)
    scaler = {**AUTOSCALER, "metadata": {"name": "web", "namespace": f"{world.name}-vision"}}
    world.kube.apply(scaler, field_manager="kubectl")
    wait_until(lambda: _replicas(world) == 3)
    result = _want_quiet(world)
    assert "= Deployment" in as_text(result, False)
    assert "spec.replicas is left to kube-controller-manager, which scales it" in as_text(result, False)
    (entry,) = (each for each in as_json(result)["objects"] if each["kind"] == "Deployment")
    assert entry["action"] == "none"
    # Neither does a new image scale it back.
    changed = yaml.safe_load(yaml.safe_dump(WEB))
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example.com/web:2"
    world.commit_objects([changed])
    assert _reconcile(world).changed
    assert _replicas(world) == 3
    world.kube.delete("autoscaling/v2", "HorizontalPodAutoscaler", "web", f"{world.name}-vision")
    assert [step.key.kind for step in _reconcile(world).drift] == ["Deployment"]
    assert _replicas(world) == 1


@pytest.mark.parametrize("declared", [True, False])
def test_zero_replicas_switch_an_autoscaler_off(world: World, declared: bool) -> None:
    scaler = {**AUTOSCALER, "metadata": {"name": "web", "namespace": f"{world.name}-vision"}}
    ours = [AUTOSCALER] if declared else []
    world.commit_objects([WEB, *ours])
    _reconcile(world)
    if not declared:
        world.kube.apply(scaler, field_manager="kubectl")
    wait_until(lambda: _replicas(world) == 3)
    off = {**WEB, "spec": {**WEB["spec"], "replicas": 0}}
    world.commit_objects([off, *ours])
    assert _reconcile(world).changed
    assert _replicas(world) == 0
    _want_quiet(world)


@pytest.mark.parametrize(("manager", "stays"), [("keda", True), ("kubectl", False)])
def test_the_subresource_scale_is_an_autoscalers_or_drift(world: World, manager: str, stays: bool) -> None:
    world.commit_objects([WEB])
    _reconcile(world)
    path = world.kube.path("apps/v1", "Deployment", "web", f"{world.name}-vision") + "/scale"
    query = {"fieldManager": manager}
    patch = {"spec": {"replicas": 4}}
    world.kube.request("PATCH", path, body=patch, content_type="application/merge-patch+json", query=query)
    result = _reconcile(world)
    assert [step.key.kind for step in result.drift] == ([] if stays else ["Deployment"])
    assert _replicas(world) == (4 if stays else 1)


MIRROR = """\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: NAME-mirror}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAME-vision}}
    resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments]}]
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >
          object.spec.template.spec.containers[0].image.startsWith("mirror.local/") ? [] :
          [JSONPatch{op: "replace", path: "/spec/template/spec/containers/0/image",
                     value: "mirror.local/" + object.spec.template.spec.containers[0].image},
           JSONPatch{op: "add", path: "/spec/template/spec/containers/0/resources",
                     value: Object.spec.template.spec.containers.resources{requests: {"cpu": "500m"}}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: NAME-mirror}
spec: {policyName: NAME-mirror}
"""


@pytest.fixture
def _mirror(world: World) -> Iterator[None]:
    policy, binding = yaml.safe_load_all(MIRROR.replace("NAME", world.name))
    for body in (policy, binding):
        world.kube.apply(body, field_manager="test")
    yield
    for body in (binding, policy):
        world.kube.delete(body["apiVersion"], body["kind"], body["metadata"]["name"])


@pytest.mark.usefixtures("_mirror")
def test_a_value_that_admission_rewrites_is_no_drift(world: World) -> None:
    world.commit({"platform.yaml": world.specs()})
    _reconcile(world)
    probe = {**WEB, "metadata": {"name": "probe", "namespace": f"{world.name}-vision"}}

    def rewrites() -> bool:
        answer = world.kube.apply(probe, field_manager="test", dry_run=True).body
        return bool(answer["spec"]["template"]["spec"]["containers"][0]["image"].startswith("mirror.local/"))

    wait_until(rewrites)
    web = yaml.safe_load(yaml.safe_dump(WEB))
    container = web["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": "100m"}}
    world.commit_objects([web])
    _reconcile(world)
    result = _want_quiet(world)
    text = as_text(result, False)
    assert "rewritten by admission" in text
    assert f"{container['image']} → mirror.local/{container['image']}" in text
    assert world.run("--dry-run").returncode == 0
    generation = _live(world)["metadata"]["generation"]
    # What else has changed is reverted.
    live = _live(world)
    live["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "BY_HAND", "value": "1"})
    live["metadata"].pop("resourceVersion")
    path = world.kube.path("apps/v1", "Deployment", "web", f"{world.name}-vision")
    world.kube.request("PUT", path, body=live, query={"fieldManager": "kubectl-edit"})
    assert [step.action for step in _reconcile(world).steps if step.key.name == "web"] == [Action.restore]
    _want_quiet(world)
    assert _live(world)["metadata"]["generation"] == generation + 2
    env = _live(world)["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [each["name"] for each in env] == ["NVIDIA_VISIBLE_DEVICES"]
