"""What the session's plane does is what a cluster does."""

import subprocess
from typing import Any

import pytest

from tools.controlplane import ApiError, ControlPlane, KubeClient, UnknownKindError, build_binaries
from tools.controlplane.build import KUBERNETES_VERSION
from tools.waiting import wait_until


def config_map(namespace: str, name: str = "settings", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(namespace: str, *, privileged: bool = False) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.example.com/main:1", "securityContext": {"privileged": privileged}}
    metadata = {"name": "one", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def enforce(kube: KubeClient, namespace: str, mode: str, level: str) -> None:
    labels = {f"pod-security.kubernetes.io/{mode}": level}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})


def test_second_apply_changes_nothing(kube: KubeClient, namespace: str) -> None:
    first = kube.apply(config_map(namespace, key="value")).body
    second = kube.apply(config_map(namespace, key="value")).body
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert first["metadata"]["managedFields"][0]["manager"] == "avactl-test"


def test_dry_run_leaves_nothing(kube: KubeClient, namespace: str) -> None:
    assert kube.apply(config_map(namespace, key="value"), dry_run=True).body["data"] == {"key": "value"}
    assert kube.find("v1", "ConfigMap", "settings", namespace) is None


def test_field_of_another_manager_is_a_conflict(kube: KubeClient, namespace: str) -> None:
    kube.apply(config_map(namespace, key="mine"), field_manager="one")
    with pytest.raises(ApiError) as refused:
        kube.apply(config_map(namespace, key="yours"), field_manager="two")
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert (
        kube.apply(config_map(namespace, key="yours"), field_manager="two", force=True).body["data"]["key"] == "yours"
    )


def test_unknown_field_is_refused(kube: KubeClient, namespace: str) -> None:
    with pytest.raises(ApiError, match="replica"):
        kube.create({**pod(namespace), "replica": 2})
    with pytest.raises(ApiError, match="field not declared in schema"):
        kube.apply({**pod(namespace), "replica": 2})


def test_unknown_field_can_be_a_warning(kube: KubeClient, namespace: str) -> None:
    reply = kube.create({**config_map(namespace), "extra": "x"}, validation="Warn")
    assert reply.warnings == ['unknown field "extra"']


def test_pod_security_refuses_a_privileged_pod(kube: KubeClient, namespace: str) -> None:
    enforce(kube, namespace, "enforce", "restricted")
    with pytest.raises(ApiError, match="violates PodSecurity") as refused:
        kube.create(pod(namespace, privileged=True))
    assert refused.value.status == 403


def test_pod_security_warns(kube: KubeClient, namespace: str) -> None:
    enforce(kube, namespace, "warn", "baseline")
    reply = kube.create(pod(namespace, privileged=True))
    assert len(reply.warnings) == 1
    assert "would violate PodSecurity" in reply.warnings[0]
    assert '(container "main" must not set' in reply.warnings[0]


def test_every_warning_is_captured(kube: KubeClient, namespace: str) -> None:
    twice = pod(namespace)
    twice["spec"]["containers"][0]["env"] = [{"name": name, "value": "1"} for name in ("A", "A", "B", "B")]
    warnings = kube.create(twice).warnings
    assert len(warnings) == 2
    assert all("hides previous definition" in warning for warning in warnings)


def test_lists_and_patches(kube: KubeClient, namespace: str) -> None:
    for name in ("a", "b"):
        kube.create(config_map(namespace, name, key=name))
    kube.patch({**config_map(namespace, "a"), "data": {"key": None, "other": "x"}})
    found = {item["metadata"]["name"]: item for item in kube.list("v1", "ConfigMap", namespace)}
    assert found["a"]["data"] == {"other": "x"}
    assert found["b"]["data"] == {"key": "b"}
    assert found["b"]["kind"] == "ConfigMap"
    kube.delete("v1", "ConfigMap", "a", namespace)
    kube.wait_gone("v1", "ConfigMap", "a", namespace)


def test_a_watch_shows_changes(kube: KubeClient, namespace: str) -> None:
    version = kube.create(config_map(namespace)).body["metadata"]["resourceVersion"]
    kube.patch(config_map(namespace, key="value"))
    watch = kube.watch(f"/api/v1/namespaces/{namespace}/configmaps", {"resourceVersion": version})
    event = next(event for event in watch if event["object"]["metadata"]["name"] == "settings")
    assert (event["type"], event["object"]["data"]) == ("MODIFIED", {"key": "value"})
    watch.close()


def test_discovery_finds_kinds_that_come_later(kube: KubeClient, namespace: str) -> None:
    with pytest.raises(UnknownKindError, match=r"no Widget in test\.avactl\.dev/v1"):
        kube.get("test.avactl.dev/v1", "Widget", "w", namespace)
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
    definition: dict[str, Any] = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.test.avactl.dev"},
        "spec": {"group": "test.avactl.dev", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    try:
        kube.define(definition)
        metadata = {"name": "w", "namespace": namespace}
        widget = {"apiVersion": "test.avactl.dev/v1", "kind": "Widget", "metadata": metadata, "spec": {"size": 1}}
        assert kube.apply(widget).body["spec"] == {"size": 1}
    finally:
        kube.delete(definition["apiVersion"], definition["kind"], "widgets.test.avactl.dev")


def _may_list(client: KubeClient, namespace: str) -> bool:
    try:
        client.list("v1", "ConfigMap", namespace)
    except ApiError:
        return False
    return True


def test_service_account_has_its_own_rights(control_plane: ControlPlane, kube: KubeClient, namespace: str) -> None:
    token = control_plane.service_account_token(namespace, "default")
    with control_plane.client(token) as client:
        with pytest.raises(ApiError, match=f"system:serviceaccount:{namespace}:default") as refused:
            client.list("v1", "ConfigMap", namespace)
        assert refused.value.reason == "Forbidden"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
        binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "roleRef": role}
        kube.apply({**binding, "metadata": {"name": "view", "namespace": namespace}, "subjects": [subject]})
        # The authorizer learns of a new binding through a watch of its own, a moment later.
        wait_until(lambda: _may_list(client, namespace))


def test_quota_counts(kube: KubeClient, namespace: str) -> None:
    metadata = {"name": "one-map", "namespace": namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata}
    kube.apply({**quota, "spec": {"hard": {"count/secrets": "0"}}})
    kube.wait_for("v1", "ResourceQuota", "one-map", namespace, until=lambda found: "used" in found.get("status", {}))
    with pytest.raises(ApiError, match="exceeded quota: one-map"):
        kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": namespace}})


def test_kubectl_takes_the_kubeconfig(control_plane: ControlPlane) -> None:
    kubectl = build_binaries(["kubectl"])["kubectl"]
    command = [str(kubectl), f"--kubeconfig={control_plane.kubeconfig}", "version", "--output=yaml"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.count(f"gitVersion: {KUBERNETES_VERSION}") == 2
