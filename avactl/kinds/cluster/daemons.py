"""The daemons of a cluster: Deployment, service account, RBAC, disruption budget."""

from __future__ import annotations

from typing import Any

from avactl import names
from avactl.kinds.base import GROUP
from avactl.kinds.cluster import builtin, rbac, topology
from avactl.kinds.lowering import k8s
from avactl.kinds.lowering.pods import container_security, pod_security, resources
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.program import Item, Program

POLICY = "avactl-policy"
"""ConfigMap in the system namespace with the placement policy, which the daemons read."""
HTTP_PORT = 8080
"""Port of the daemons' metrics (`/metrics`) and probes (`/livez`, `/readyz`)."""


def policy(item: Item) -> Manifest:
    """Return the ConfigMap with the placement policy."""
    spec = item.spec
    data = {
        "cluster": item.name,
        "gpuDriver": spec.gpu_driver,
        "levels": spec.placement.levels,
        "objective": spec.placement.objective,
        "reconcile": spec.reconcile.mode,
        "schedulerName": names.SCHEDULER_NAME,
        "systemNamespace": spec.system_namespace,
    }
    return k8s.config_map(item, item.name, POLICY, spec.system_namespace, {"policy.json": k8s.json_text(data)})


def daemons(item: Item, program: Program, config: Manifest) -> list[Manifest]:
    """Return the objects of the enabled daemons; `config` is the ConfigMap that they read."""
    system = item.spec.system_namespace
    result: list[Manifest] = []
    on = item.spec.daemons
    if on.scheduler:
        name = "avactl-scheduler"
        result += _daemon(item, "scheduler", name, config, resources("1", "1Gi"))
        result += _cluster_role(item, name, rbac.scheduler_cluster_rules())
        result += _role(item, name, "scheduler", system, [*rbac.leader_rules(name), rbac.config_rule()])
    if on.topology:
        result += topology.daemon_sets(item, program, names.SYSTEM_PRIORITY)
    result += builtin.reconciler(item, names.SYSTEM_PRIORITY, HTTP_PORT)
    if result:
        result.append(_ingress(item))
    return result


def _object(item: Item, api_version: str, kind: str, name: str, component: str, **fields: Any) -> Manifest:
    namespace = fields.pop("namespace", item.spec.system_namespace)
    return k8s.manifest(
        item, item.name, api_version, kind, name, namespace=namespace, component=component, **fields
    )  # fmt: skip


def _daemon(item: Item, component: str, name: str, config: Manifest, compute: Body) -> list[Manifest]:
    """Return a daemon with two replicas: the Lease holder is active, the other on standby."""
    select = k8s.selector(item, component)
    pod: Body = {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "priorityClassName": names.SYSTEM_PRIORITY,
        "securityContext": pod_security(),
        "enableServiceLinks": False,
        "affinity": {
            "podAntiAffinity": {
                # Preferred, not required: on a single-node cluster both replicas must start.
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": dict(select)},
                        },
                    }
                ]
            }
        },
        "containers": [
            {
                "name": component,
                "image": item.spec.images.avactl,
                "command": ["avactl", component],
                "args": ["--config", "/etc/avactl/policy.json", "--lease", name, "--listen", f":{HTTP_PORT}"],
                "env": [_from_field("POD_NAME", "metadata.name"), _from_field("POD_NAMESPACE", "metadata.namespace")],
                "ports": [{"name": "http", "containerPort": HTTP_PORT}],
                "livenessProbe": _probe("/livez", 10, 6),
                "readinessProbe": _probe("/readyz", 5, 2),
                "resources": compute,
                "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/avactl", "readOnly": True}],
            }
        ],
        "volumes": [{"name": "config", "configMap": {"name": config.name}}],
    }
    if item.spec.pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in item.spec.pull_secrets]
    template = {
        "metadata": {
            "labels": dict(select),
            # The daemons read their configuration at startup: a changed digest restarts them.
            "annotations": {f"{GROUP}/config": k8s.digest(config.body["data"])},
        },
        "spec": pod,
    }
    spec = {"replicas": 2, "selector": {"matchLabels": dict(select)}, "template": template}
    system = item.spec.system_namespace
    return [
        _object(item, "v1", "ServiceAccount", name, component, automountServiceAccountToken=False),
        _object(item, "apps/v1", "Deployment", name, component, spec=spec),
        k8s.disruption_budget(item, item.name, name, system, select, component=component, maxUnavailable=1),
    ]


def _from_field(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, period: int, failures: int) -> Body:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "failureThreshold": failures}


def _subject(item: Item, name: str) -> list[Body]:
    return [{"kind": "ServiceAccount", "name": name, "namespace": item.spec.system_namespace}]


def _cluster_role(item: Item, name: str, rules: list[Body]) -> list[Manifest]:
    rbac_v1 = "rbac.authorization.k8s.io/v1"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    return [
        _object(item, rbac_v1, "ClusterRole", name, "scheduler", namespace=None, rules=rules),
        _object(
            item, rbac_v1, "ClusterRoleBinding", name, "scheduler",
            namespace=None, roleRef=role, subjects=_subject(item, name),
        ),
    ]  # fmt: skip


def _role(item: Item, name: str, component: str, namespace: str, rules: list[Body]) -> list[Manifest]:
    rbac_v1 = "rbac.authorization.k8s.io/v1"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return [
        _object(item, rbac_v1, "Role", name, component, namespace=namespace, rules=rules),
        _object(
            item, rbac_v1, "RoleBinding", name, component,
            namespace=namespace, roleRef=role, subjects=_subject(item, name),
        ),
    ]  # fmt: skip


def _ingress(item: Item) -> Manifest:
    """Return the NetworkPolicy that lets only monitoring read the daemons' metrics.

    The kubelet's probes need no rule: a NetworkPolicy never stops the node of a pod.
    """
    match = [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": sorted(item.spec.daemons.metrics_from)}]
    readers = {"namespaceSelector": {"matchExpressions": match}}
    # A selector with no values is invalid, and a rule without `from` would admit everyone.
    ports = [{"port": HTTP_PORT, "protocol": "TCP"}]
    ingress = [{"ports": ports, "from": [readers]}] if item.spec.daemons.metrics_from else []
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress}
    return k8s.manifest(
        item, item.name, "networking.k8s.io/v1", "NetworkPolicy", "avactl-metrics-only",
        namespace=item.spec.system_namespace, spec=spec,
    )  # fmt: skip
