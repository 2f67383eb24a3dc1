"""The topology daemon, which compares GPU machines with their type and reports their faults.

It is a DaemonSet per pool, with its RBAC.
"""

from __future__ import annotations

from typing import Any

from avactl.contracts import names
from avactl.kinds.cluster.daemons import rbac
from avactl.program.lowering import k8s
from avactl.program.lowering.gpu_request import nvidia_pools
from avactl.program.lowering.pods import build_resources, container_security, pod_security
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.platform.node_pool import NodePoolSpec

NAME = "avactl-topology"
COMPONENT = "topology"
EVENTS_NAMESPACE = "default"
"""Namespace of events on cluster-scoped objects, such as nodes."""
_UNCHANGED_FIELDS = ("metadata.labels", "metadata.annotations", "metadata.finalizers", "metadata.ownerReferences")
_KEPT_STATUS = (
    "capacity",
    "allocatable",
    "phase",
    "addresses",
    "daemonEndpoints",
    "nodeInfo",
    "images",
    "volumesInUse",
    "volumesAttached",
    "config",
    "runtimeHandlers",
    "features",
    "declaredFeatures",
)
"""Fields of a node's status besides its conditions. Source: k8s.io/api/core/v1, NodeStatus."""


def daemon_sets(item: Item[ClusterSpec], program: Program, priority: str) -> list[Manifest]:
    """Return the DaemonSet of each pool, its service account, RBAC, and the admission policy that limits it."""
    made = [_daemon_set(item, program, pool, priority) for pool in nvidia_pools(program, item.name)]
    if not made:
        return []
    system = item.spec.system_namespace
    account = _build_object(item, "v1", "ServiceAccount", namespace=system, automountServiceAccountToken=False)
    return [account, *_build_rights(item, system), *_own_node_only(item, system), *made]


def _build_object(item: Item[ClusterSpec], api_version: str, kind: str, name: str = NAME, **fields: Any) -> Manifest:
    return k8s.build_manifest(item, item.name, api_version, kind, name, component=COMPONENT, **fields)


def _daemon_set(item: Item[ClusterSpec], program: Program, pool: Item[NodePoolSpec], priority: str) -> Manifest:
    """Build the pod. The NVIDIA runtime, which must be the nodes' default, exposes the GPUs; none is allocated."""
    select = {**k8s.component_selector(item, COMPONENT), names.POOL_LABEL: pool.name}
    env = {
        # It inspects all GPUs and computes on none: the driver utilities are enough.
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "utility",
    }
    container: Body = {
        "name": COMPONENT,
        "image": item.spec.images.avactl,
        "command": ["avactl", "topo", "watch"],
        "args": ["--pool", "/etc/avactl/pool.json"],
        "env": [
            *({"name": name, "value": value} for name, value in env.items()),
            *(
                _from_field(name, path)
                for name, path in (("NODE_NAME", "spec.nodeName"), ("POD_NAME", "metadata.name"))
            ),
        ],
        "resources": build_resources("50m", "128Mi"),
        "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
        # Mounted as a directory: the kubelet keeps it up to date when the pool changes.
        "volumeMounts": [{"name": "pool", "mountPath": "/etc/avactl", "readOnly": True}],
    }
    pod: Body = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "priorityClassName": priority,
        "securityContext": pod_security(),
        "enableServiceLinks": False,
        "nodeSelector": {names.POOL_LABEL: pool.name},
        # Cordoned machines are checked too.
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": [{"name": "pool", "configMap": {"name": f"avactl-pool-{pool.name}"}}],
    }
    if item.spec.pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in item.spec.pull_secrets]
    spec = {
        "selector": {"matchLabels": dict(select)},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        "template": {"metadata": {"labels": dict(select)}, "spec": pod},
    }
    return _build_object(
        item, "apps/v1", "DaemonSet", f"{NAME}-{pool.name}", namespace=item.spec.system_namespace, spec=spec
    )


def _from_field(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _build_rights(item: Item[ClusterSpec], system: str) -> list[Manifest]:
    version = f"{k8s.RBAC}/v1"
    subjects = [{"kind": "ServiceAccount", "name": NAME, "namespace": system}]
    made = []
    for kind, namespace, rules in (
        ("ClusterRole", None, rbac.topology_cluster_rules()),
        ("Role", EVENTS_NAMESPACE, rbac.topology_event_rules()),
    ):
        role = k8s.role_reference(kind, NAME)
        made.append(_build_object(item, version, kind, namespace=namespace, rules=rules))
        made.append(
            _build_object(item, version, f"{kind}Binding", namespace=namespace, roleRef=role, subjects=list(subjects))
        )
    return made


def _own_node_only(item: Item[ClusterSpec], system: str) -> list[Manifest]:
    """Return the admission policy that restricts the account to two conditions of its own node, which RBAC cannot do.

    The API server knows the node of a pod from the pod's token (KEP-4193, on by default since Kubernetes 1.30).
    """
    node_name = "authentication.kubernetes.io/node-name"
    same = [
        f"object.{'.?'.join(path.split('.', 1))} == oldObject.{'.?'.join(path.split('.', 1))}"
        for path in _UNCHANGED_FIELDS
    ]
    same += [f"object.status.?{field} == oldObject.status.?{field}" for field in _KEPT_STATUS]
    own = (names.TOPOLOGY_CONDITION, names.GPUS_CONDITION)
    others = f"{{}}.status.?conditions.orValue([]).filter(c, !(c.type in {list(own)}))"
    rules = [
        (
            f"request.userInfo.?extra['{node_name}'].orValue([]).exists(n, n == request.name)",
            f"a pod of {NAME} may only update the node that it runs on",
        ),
        *(
            (expression, f"{NAME} may only write the conditions {' and '.join(own)}")
            for expression in (f"{others.format('object')} == {others.format('oldObject')}", " && ".join(same))
        ),
    ]
    user = f"system:serviceaccount:{system}:{NAME}"
    spec = {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes/status"]}
            ]
        },
        "matchConditions": [{"name": "from-topology", "expression": f"request.userInfo.username == '{user}'"}],
    }
    return k8s.admission_policy(item, item.name, NAME, spec, rules, component=COMPONENT)
