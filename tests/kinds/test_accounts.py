"""Escalation: what each account of avactl's daemons and pods must not do, on a real API server.

Every account makes the same attempts, and its own: those that its Role would allow, and an admission policy refuses.
Then it uses each right that it has to get more, and makes all attempts again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.definitions import define_groups, define_monitoring, define_pools, define_routes
from tests.kinds.compiling import DIGEST, apply, compiled
from tests.kinds.escalations import (
    ACCOUNTS,
    CACHE,
    GATES,
    PLATFORM,
    POD_GROUPS,
    SYSTEM,
    TEAM,
    Attempt,
    common,
    create,
    delete,
    own_attempts,
    pod,
    widen,
)
from tests.kinds.test_cluster import BUILTIN, EVERY_DAEMON, GROUPS, POOLS, WRITE_TIER, machine
from tools.controlplane import ControlPlane, KubeClient
from tools.waiting import patience, wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("accounts")]

SPECS = (
    EVERY_DAEMON.replace("images: {", f"images: {{kubectl: registry.example.com/kubectl{DIGEST}, ")
    + "  delivery: {secret: specs}\n  storageClasses:\n"
    + "    {checkpoint: shared, classes: [{name: shared, provisioner: nfs.csi.k8s.io}]}\n"
    + "  namespaces: [{name: monitoring, podSecurity: privileged}]\n"
    + BUILTIN
    + GROUPS
    + POOLS
    + WRITE_TIER
    + machine("H100")
    + f"""
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{users: [ann]}}, serviceAccounts: [{{name: loader}}]}}
---
kind: Team
metadata: {{name: fabric}}
spec: {{namespaces: [{{name: fabric, hostNetwork: true}}]}}
---
kind: ServingDeployment
metadata: {{name: detect, team: vision}}
spec:
  model: {{name: m, version: "1"}}
  runtime: {{name: custom, image: "registry.example.com/m{DIGEST}", port: 8080}}
  probe: {{path: /health}}
  rollout: {{blueGreen: {{}}}}
---
kind: TrainingJob
metadata: {{name: ps, team: vision}}
spec:
  framework: tensorflow
  strategy: parameterServer
  consistency: asp
  image: registry.example.com/vision/train{DIGEST}
  command: [python, train.py]
  servers: {{replicas: 1, cpu: "1", memory: 1Gi}}
  workers: {{replicas: 2, gpus: 1, gpu: H100, cpu: "4", memory: 16Gi}}
  checkpoint: {{volume: 1Gi}}
"""
)
MIN_ATTEMPTS = 150


class Sender:
    """A client that sends attempts."""

    def __init__(self, plane: ControlPlane, token: str) -> None:
        self._http = httpx.Client(base_url=plane.url, verify=str(plane.ca_file), trust_env=False, timeout=patience())
        self._token = token

    def send(self, attempt: Attempt, *, dry_run: bool = True) -> tuple[int, str]:
        headers = [("Authorization", f"Bearer {self._token}"), ("Content-Type", attempt.content), *attempt.headers]
        query = {"dryRun": "All"} if dry_run and attempt.method != "GET" and "/exec" not in attempt.path else {}
        answer = self._http.request(attempt.method, attempt.path, json=attempt.body, headers=headers, params=query)
        return answer.status_code, answer.text[:400]


@pytest.fixture(scope="module")
def plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    gates = [GATES] if POD_GROUPS else []
    with ControlPlane(controller_manager=True, arguments={"kube-apiserver": gates}) as running:
        yield running


def foreign() -> Iterator[dict[str, Any]]:
    """What others have in the cluster."""
    container = {"name": "main", "image": "registry.example.com/a:1"}
    for namespace, name, scheduler in (
        ("kube-system", "victim", "default-scheduler"),
        ("default", "victim", "default-scheduler"),
        (CACHE, "worker", "avactl"),
    ):
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"schedulerName": scheduler, "containers": [container], "nodeName": "machine"},
        }
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own", "namespace": TEAM}, "spec": pod("avactl-run")}
    for namespace in ("kube-system", "default", SYSTEM, CACHE, PLATFORM):
        yield {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": namespace}}
    for name in ("platform",):
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": TEAM}}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator", "namespace": PLATFORM}}
    workers = {"size": 2, "workerTemplate": {"spec": {"containers": [container]}}}
    yield {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "groups", "namespace": TEAM},
        "spec": {"replicas": 0, "leaderWorkerTemplate": workers},
    }
    yield {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "pool", "namespace": TEAM},
        "spec": {
            "selector": {"matchLabels": {"app": "chat"}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        },
    }
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "dns", "namespace": "kube-system"},
        "spec": {"ports": [{"port": 53}]},
    }
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "dns", "namespace": "kube-system"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}},
        },
    }
    volume: dict[str, Any] = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/data"},
        "storageClassName": "none",
        "persistentVolumeReclaimPolicy": "Retain",
    }
    taken = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "a"}
    for name, more in (("foreign", {}), ("bound", {"claimRef": {**taken, "uid": "0"}}), ("meant", {"claimRef": taken})):
        metadata = {"name": name, "finalizers": ["kubernetes.io/pv-protection"]}
        yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": {**volume, **more}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "w"}
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "spec": claim,
        "metadata": {"name": "home", "namespace": TEAM, "finalizers": ["kubernetes.io/pvc-protection"]},
    }
    exactly = {"deviceClassName": "gpu-h100", "allocationMode": "ExactCount", "count": 1}
    yield {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu", "namespace": TEAM, "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
    }
    if POD_GROUPS:
        yield {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "ranks", "namespace": TEAM},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        }
    for name in ("extension-apiserver-authentication", "foreign"):
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-system"}}
    yield {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "foreign"},
        "provisioner": "x",
    }
    yield {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "web", "namespace": TEAM, "labels": {"app.kubernetes.io/managed-by": "avactl"}},
        "spec": {
            "parentRefs": [{"name": "public"}],
            "hostnames": ["a.example.com"],
            "rules": [{"backendRefs": [{"name": "detect", "port": 80}]}],
        },
    }


@pytest.fixture(scope="module")
def admin(plane: ControlPlane) -> Iterator[KubeClient]:
    with plane.client() as client:
        define_routes(client)
        define_monitoring(client)
        define_groups(client)
        define_pools(client)
        role = "node-role.kubernetes.io/control-plane"
        taint = {"key": role, "effect": "NoSchedule"}
        for name, labels in (("machine", {}), ("control", {role: ""})):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            client.create({**node, "spec": {"taints": [taint]}})
        result = compiled(SPECS)
        apply(client, [each for each in result.manifests if not each.patch])
        for namespace in (TEAM, PLATFORM, CACHE, SYSTEM, "default", "kube-system"):
            client.wait_for("v1", "ServiceAccount", "default", namespace, until=bool)
        for body in foreign():
            if body["kind"] == "Pod" and body["metadata"]["name"] != "own":
                body["spec"]["tolerations"] = [{"operator": "Exists"}]
            client.create(body)
        yield client


def until_enforced(sender: Sender, attempt: Attempt) -> None:
    """Wait until the policies are in force."""

    def refused() -> bool:
        status, text = sender.send(attempt)
        return status == 403 and "ValidatingAdmissionPolicy" in text

    wait_until(refused, f"a policy refuses {attempt.name}", details=lambda: sender.send(attempt))


_PROBES = {
    "reconcile": create("v1", "ConfigMap", "configmaps", "kube-system"),
    "scheduler": delete("v1", "pods", "kube-system", "victim"),
    "serving": delete("v1", "services", TEAM, "detect"),
    "cache": create("v1", "ConfigMap", "configmaps", CACHE),
}


def passed(sender: Sender, name: str, account: tuple[str, str]) -> list[str]:
    """Make all attempts of an account; return those that were not refused."""
    attempts = [*common(account), *own_attempts(name)]
    assert len(attempts) > MIN_ATTEMPTS
    sent = ((each, *sender.send(each)) for each in attempts)
    return [f"{status} {each.name}: {each.method} {each.path}: {text}" for each, status, text in sent if status != 403]


@pytest.mark.parametrize("name", ACCOUNTS)
def test_no_account_escalates(plane: ControlPlane, admin: KubeClient, name: str) -> None:
    account = ACCOUNTS[name]
    admin.wait_for("v1", "ServiceAccount", account[1], account[0], until=bool)
    sender = Sender(plane, plane.service_account_token(*account))
    if name in _PROBES:
        until_enforced(sender, _PROBES[name])
    assert not (found := passed(sender, name, account)), "\n".join(found)
    gained = []
    for each in widen(account):
        status, text = sender.send(each, dry_run=False)
        if status < 300:
            gained.append(each.name)
        else:
            assert status in (403, 404), f"{status} {each.name}: {text}"
    # What they gain is in namespaces of teams: the reconciler everything, the serving daemon Jobs.
    assert {"reconcile", "serving"} >= ({name} if gained else set())
    assert len(gained) > 10 if name == "reconcile" else len(gained) < 3
    assert not (found := passed(sender, name, account)), "\n".join([*gained, *found])


@pytest.mark.parametrize("name", ["pipeline-state.vision.ranker", "promotion-state.vision.detect"])
def test_the_reconciler_grants_the_delivery_daemon_its_states(
    plane: ControlPlane, admin: KubeClient, name: str
) -> None:
    """One ConfigMap each, by a Role of its name; every other right is refused above."""
    sender = Sender(plane, plane.service_account_token(*ACCOUNTS["reconcile"]))
    until_enforced(sender, _PROBES["reconcile"])
    for named, allowed in ((name, True), ("avactl-policy", False)):
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"], "resourceNames": [named]}
        status, text = sender.send(create("rbac.authorization.k8s.io/v1", "Role", "roles", SYSTEM, name, rules=[rule]))
        assert (status == 201) == allowed, text
