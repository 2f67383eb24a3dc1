"""Null, zero and empty values, which the API server drops, keeps or replaces by defaults, are no endless difference."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.apply.reconcile.reporting.report import as_text
from tests.reconcile.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]


def test_empty_values_are_at_rest(world: World) -> None:
    name, ns = world.name, f"{world.name}-vision"
    container = {
        "name": "web",
        "image": "registry.example.com/web:1",
        "command": [],
        "args": None,
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, {"name": "EMPTY", "value": ""}, {"name": "NONE"}],
        "envFrom": [],
        "ports": None,
        "resources": {"limits": {"cpu": 0}, "requests": {}},
        "livenessProbe": None,
        "lifecycle": {},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": [], "drop": ["ALL"]}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp", "subPath": "", "readOnly": False}],
        "stdin": False,
        "workingDir": "",
    }
    pod = {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "initContainers": [],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": ""}}],
        "nodeSelector": {},
        "affinity": {},
        "tolerations": [],
        "imagePullSecrets": None,
        "hostname": "",
    }
    template = {"metadata": {"labels": {"app": name}, "annotations": {}, "creationTimestamp": None}, "spec": pod}
    selector = {"matchLabels": {"app": name}, "matchExpressions": []}
    bodies: list[dict[str, Any]] = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "spec": {"replicas": 0, "minReadySeconds": 0, "selector": selector, "template": template, "strategy": {}},
            "status": {},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "spec": {"selector": {}, "ports": [{"name": "", "port": 80, "targetPort": 0}], "externalIPs": []},
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "data": {"empty": ""}, "binaryData": None, "immutable": None},
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"minAvailable": 0, "selector": {}}},
    ]
    bodies = [
        {**each, "metadata": {"name": name, "namespace": ns, "labels": {"empty": ""}, "annotations": None}}
        for each in bodies
    ]
    world.commit_objects(bodies)
    first = world.once(wait=False)
    assert first.complete, as_text(first, False)
    second = world.once(wait=False)
    assert second.complete
    assert not second.changed, as_text(second, False)
    world.want_state_of_git("lab")
