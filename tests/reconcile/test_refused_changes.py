"""The diff and the engine agree on what an immutable field's change does: one table decides."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from avactl.apply.reconcile.actions import Action
from avactl.apply.reconcile.reporting.report import as_text
from avactl.change.diff import compare
from avactl.change.diff.text import render_text
from avactl.compiler import compile_tree
from avactl.spec.repository.tree import DirTree
from tests.reconcile.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]


@pytest.mark.parametrize("policy", ["retain", "delete"])
def test_a_volume_with_another_source(world: World, policy: str) -> None:
    name = f"{world.name}-{policy}"
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": ""}
    spec |= {"persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": "csi.example.com", "volumeHandle": "one"}}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    document = {"apiVersion": "avactl.dev/v1", "kind": "KubernetesObjects", "metadata": {"name": "own"}}
    text = yaml.safe_dump({**document, "spec": {"objects": [volume], "deletionPolicy": policy}})
    world.commit({"platform.yaml": world.specs(), "volume.yaml": text})
    assert world.once(wait=False).complete
    before = compile_tree(DirTree(world.repository))
    world.commit({"volume.yaml": text.replace("one", "two")})
    told = render_text(compare(before, compile_tree(DirTree(world.repository))))
    result = world.once(wait=False)
    (step,) = (each for each in result.steps if each.key.name == name)
    handle = world.kube.get("v1", "PersistentVolume", name)["spec"]["csi"]["volumeHandle"]
    if policy == "retain":
        assert "immutable, and the object is protected: the apply stops here" in told
        assert "recreated" not in told
        assert "replacing the object would lose data" in step.error, as_text(result, False)
        assert handle == "one"
    else:
        assert "recreated: immutable; the data is kept" in told
        assert step.action is Action.recreate, as_text(result, False)
        assert handle == "two"


def test_what_cannot_change_is_replaced_as_the_diff_says(world: World) -> None:
    """A storage class and a StatefulSet, of which Kubernetes lets few fields change, hold no data of their own."""
    name, ns = world.name, f"{world.name}-vision"
    storage: dict[str, Any] = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    storage |= {"provisioner": "a.example.com", "parameters": {"replicas": "2"}}
    container = {
        "name": "index",
        "image": "registry.example.com/index:1",
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}}
    claim: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {**pod, "containers": [container]}}
    stateful: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": ns},
    }
    stateful["spec"] = {"replicas": 0, "serviceName": name, "selector": {"matchLabels": {"app": name}}}
    stateful["spec"] |= {"template": template, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}]}
    document = {"apiVersion": "avactl.dev/v1", "kind": "KubernetesObjects", "metadata": {"name": "disks"}}
    disks = yaml.safe_dump({**document, "spec": {"objects": [storage]}})
    world.commit({"disks.yaml": disks})
    world.commit_objects([stateful])
    assert world.once(wait=False).complete
    before = compile_tree(DirTree(world.repository))
    world.commit({"disks.yaml": disks.replace("'2'", "'3'")})
    claim["resources"]["requests"]["storage"] = "2Gi"
    world.commit_objects([stateful])
    told = render_text(compare(before, compile_tree(DirTree(world.repository)))).splitlines()
    result = world.once(wait=False)
    assert result.complete, as_text(result, False)
    for kind in ("StorageClass", "StatefulSet"):
        (line,) = (line for line in told if line.startswith(f"  ~ {kind} "))
        assert "(recreated" in line
        (step,) = (each for each in result.steps if each.key.kind == kind)
        assert step.action is Action.recreate, as_text(result, False)
    assert world.kube.get("storage.k8s.io/v1", "StorageClass", name)["parameters"] == {"replicas": "3"}
    (claims,) = world.kube.get("apps/v1", "StatefulSet", name, ns)["spec"]["volumeClaimTemplates"]
    assert claims["spec"]["resources"]["requests"] == {"storage": "2Gi"}
    assert not world.once(wait=False).changed


def test_a_config_map_that_was_made_immutable_by_hand(world: World) -> None:
    """The API server refuses to take `immutable` back: the object is replaced, as for any other immutable field."""
    metadata = {"name": "settings", "namespace": f"{world.name}-vision"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mode": "fast"}}
    world.commit_objects([body])
    assert world.once(wait=False).complete
    world.kube.patch({**body, "immutable": True}, field_manager="kubectl-edit")
    result = world.once(wait=False)
    (step,) = (each for each in result.steps if each.key.name == "settings")
    assert step.action is Action.recreate, as_text(result, False)
    live = world.kube.get("v1", "ConfigMap", "settings", f"{world.name}-vision")
    assert "immutable" not in live
    assert live["data"] == {"mode": "fast"}
    assert not world.once(wait=False).changed
