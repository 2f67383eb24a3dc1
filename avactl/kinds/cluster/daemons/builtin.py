"""The built-in reconciler in its own cluster: a Deployment that follows the specs' branch, and its RBAC."""

from __future__ import annotations

from typing import Any

from avactl.contracts.names import RECONCILER
from avactl.kinds.cluster.daemons import delivery, limits, rbac
from avactl.program.lowering import k8s
from avactl.program.lowering.k8s import drop_none
from avactl.program.lowering.pods import build_resources, container_security, pod_security
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.repository.git_settings import credential_settings, settings_variables

COMPONENT = "reconcile"
_CACHE, _CREDENTIALS = "/cache", "/etc/git-credentials"


def runs_reconciler(item: Item[ClusterSpec]) -> bool:
    """Return True if the cluster runs the reconciler itself."""
    spec = item.spec.reconcile
    return spec.mode == "builtin" and spec.repository is not None


def build_reconciler(item: Item[ClusterSpec], program: Program, priority: str, port: int) -> list[Manifest]:
    """Return the Deployment, its service account and RBAC; nothing if no `repository` is set."""
    if not runs_reconciler(item):
        return []
    system = item.spec.system_namespace
    return [
        _build_object(item, "v1", "ServiceAccount", namespace=system, automountServiceAccountToken=False),
        *_build_rights(item, system),
        *limits.reconciler_policy(item, program, RECONCILER, COMPONENT, delivery.delivery_account(item)),
        _build_object(
            item, "apps/v1", "Deployment", namespace=system, spec=_build_deployment(item, program, priority, port)
        ),
    ]


def _build_object(item: Item[ClusterSpec], api_version: str, kind: str, **fields: Any) -> Manifest:
    return k8s.build_manifest(item, item.name, api_version, kind, RECONCILER, component=COMPONENT, **fields)


def _build_rights(item: Item[ClusterSpec], system: str) -> list[Manifest]:
    version = f"{k8s.RBAC}/v1"
    subjects = [{"kind": "ServiceAccount", "name": RECONCILER, "namespace": system}]
    made = []
    for kind, namespace, rules in (
        ("ClusterRole", None, rbac.reconcile_cluster_rules()),
        ("Role", system, rbac.reconcile_rules(f"{RECONCILER}-{item.name}", f"avactl-inventory-{item.name}")),
    ):
        role = k8s.role_reference(kind, RECONCILER)
        made.append(_build_object(item, version, kind, namespace=namespace, rules=rules))
        made.append(
            _build_object(item, version, f"{kind}Binding", namespace=namespace, roleRef=role, subjects=list(subjects))
        )
    return made


def _build_deployment(item: Item[ClusterSpec], program: Program, priority: str, port: int) -> Body:
    spec, select = item.spec.reconcile, k8s.component_selector(item, COMPONENT)
    env: dict[str, str] = {"HOME": _CACHE, "TMPDIR": _CACHE, "XDG_CACHE_HOME": _CACHE}
    mounts: list[Body] = [{"name": "cache", "mountPath": _CACHE}]
    volumes: list[Body] = [{"name": "cache", "emptyDir": {"sizeLimit": "4Gi"}}]
    if spec.secret:
        env |= settings_variables(credential_settings(_CREDENTIALS, spec.repository or ""))
        mounts.append({"name": "git", "mountPath": _CREDENTIALS, "readOnly": True})
        volumes.append({"name": "git", "secret": {"secretName": spec.secret, "defaultMode": 0o440}})
    container: Body = {
        "name": COMPONENT,
        "image": item.spec.images.avactl,
        "command": ["avactl", "reconcile"],
        "args": [
            "--watch",
            "--repo",
            spec.repository,
            "--branch",
            spec.branch or "main",
            "--cluster",
            item.name,
            "--interval",
            spec.interval or "1m",
            "--listen",
            f":{port}",
            *([spec.path] if spec.path else []),
            *(["--environment", program.environment] if program.environment else []),
        ],
        "env": [
            *({"name": name, "value": value} for name, value in env.items()),
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "ports": [{"name": "http", "containerPort": port}],
        "livenessProbe": {"httpGet": {"path": "/livez", "port": "http"}, "periodSeconds": 10, "failureThreshold": 6},
        # It is ready once it has read the branch: the first read of a large repository takes long.
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 10},
        "resources": build_resources("500m", "1Gi"),
        "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    pod = drop_none(
        serviceAccountName=RECONCILER,
        automountServiceAccountToken=True,
        priorityClassName=priority,
        securityContext=pod_security(),
        enableServiceLinks=False,
        imagePullSecrets=[{"name": secret} for secret in item.spec.pull_secrets] or None,
        containers=[container],
        volumes=volumes,
    )
    return {
        # One replica: the cluster keeps running without it. Any concurrent instance waits for the Lease.
        "replicas": 1,
        "selector": {"matchLabels": dict(select)},
        "template": {"metadata": {"labels": dict(select)}, "spec": pod},
    }
