"""Objects of a daemon with two replicas: Deployment, service account, roles, disruption budget, metrics access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from avactl.contracts import names
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import container_security, pod_security
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item
from avactl.spec.platform.cluster import ClusterSpec

HTTP_PORT = 8080
"""Port of the daemons' metrics (`/metrics`) and probes (`/livez`, `/readyz`)."""
METRICS_ONLY = "avactl-metrics-only"
"""NetworkPolicy of the daemons' pods."""


class DaemonDeployment(NamedTuple):
    """One daemon: its names and place."""

    item: Item[ClusterSpec]
    component: str
    """Component label, and the command of `avactl`."""
    name: str
    """Name of all its objects and of its Lease."""
    namespace: str

    def object(self, api_version: str, kind: str, **fields: Any) -> Manifest:
        """Build one object in the daemon's namespace; `namespace=None` for one of the cluster."""
        namespace = fields.pop("namespace", self.namespace)
        return k8s.build_manifest(
            self.item,
            self.item.name,
            api_version,
            kind,
            self.name,
            namespace=namespace,
            component=self.component,
            **fields,
        )

    def deployment(
        self,
        args: Sequence[str],
        compute: Body,
        volumes: Mapping[str, tuple[str, Body]],
        annotations: Mapping[str, str] | None = None,
    ) -> list[Manifest]:
        """Return the Deployment with two replicas, its service account and budget: the Lease holder is active, the
        other on standby. `volumes`: name → directory and source; writable only if the source is an `emptyDir`."""
        item = self.item
        select = k8s.component_selector(item, self.component)
        mounts = [
            k8s.drop_none(name=name, mountPath=path, readOnly=None if "emptyDir" in source else True)
            for name, (path, source) in volumes.items()
        ]
        pod: Body = {
            "serviceAccountName": self.name,
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
                    "name": self.component,
                    "image": item.spec.images.avactl,
                    "command": ["avactl", self.component],
                    "args": [*args, "--lease", self.name, "--listen", f":{HTTP_PORT}"],
                    "env": [
                        _from_field("POD_NAME", "metadata.name"),
                        _from_field("POD_NAMESPACE", "metadata.namespace"),
                    ],
                    "ports": [{"name": "http", "containerPort": HTTP_PORT}],
                    "livenessProbe": _build_probe("/livez", 10, 6),
                    "readinessProbe": _build_probe("/readyz", 5, 2),
                    "resources": compute,
                    "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
                    "volumeMounts": mounts,
                }
            ],
            "volumes": [{"name": name, **source} for name, (_, source) in volumes.items()],
        }
        if item.spec.pull_secrets:
            pod["imagePullSecrets"] = [{"name": secret} for secret in item.spec.pull_secrets]
        metadata: Body = k8s.drop_none(labels=dict(select), annotations=dict(annotations) if annotations else None)
        spec = {
            "replicas": 2,
            "selector": {"matchLabels": dict(select)},
            "template": {"metadata": metadata, "spec": pod},
        }
        return [
            self.object("v1", "ServiceAccount", automountServiceAccountToken=False),
            self.object("apps/v1", "Deployment", spec=spec),
            k8s.disruption_budget(
                item, item.name, self.name, self.namespace, select, component=self.component, maxUnavailable=1
            ),
        ]

    def cluster_role(self, rules: list[Body]) -> list[Manifest]:
        """Return the ClusterRole and its binding."""
        return self._role("ClusterRole", None, rules)

    def role(self, rules: list[Body], namespace: str = "") -> list[Manifest]:
        """Return a Role and its binding, by default in the daemon's own namespace."""
        return self._role("Role", namespace or self.namespace, rules)

    def _role(self, kind: str, namespace: str | None, rules: list[Body]) -> list[Manifest]:
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}
        role = k8s.role_reference(kind, self.name)
        return [
            self.object(f"{k8s.RBAC}/v1", kind, namespace=namespace, rules=rules),
            self.object(f"{k8s.RBAC}/v1", f"{kind}Binding", namespace=namespace, roleRef=role, subjects=[subject]),
        ]


def _from_field(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _build_probe(path: str, period: int, failures: int) -> Body:
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "failureThreshold": failures}


def metrics_only(item: Item[ClusterSpec], namespace: str, select: Mapping[str, str]) -> Manifest:
    """Return the NetworkPolicy that lets only monitoring read the metrics of the selected pods of a namespace.

    The kubelet's probes need no rule: a NetworkPolicy never stops the node of a pod.
    """
    match = [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": sorted(item.spec.daemons.metrics_from)}]
    readers = {"namespaceSelector": {"matchExpressions": match}}
    # A selector with no values is invalid, and a rule without `from` would admit everyone.
    ports = [{"port": HTTP_PORT, "protocol": "TCP"}]
    ingress = [{"ports": ports, "from": [readers]}] if item.spec.daemons.metrics_from else []
    pods = {"matchLabels": dict(select)} if select else {}
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}
    return k8s.build_manifest(
        item, item.name, "networking.k8s.io/v1", "NetworkPolicy", METRICS_ONLY, namespace=namespace, spec=spec
    )
