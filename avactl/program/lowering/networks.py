"""NetworkPolicies of workloads: which connections the pods of one spec accept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from avactl.program.lowering import k8s
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item


def build_ingress_policy(
    item: Item,
    name: str,
    namespace: str | None,
    select: Mapping[str, str],
    rules: Iterable[Body],
    component: str | None = None,
) -> Manifest:
    """Build the NetworkPolicy by which the selected pods accept connections. Policies add up."""
    spec = {"podSelector": {"matchLabels": dict(select)}, "policyTypes": ["Ingress"], "ingress": list(rules)}
    return k8s.build_manifest(
        item,
        item.cluster,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        name,
        namespace=namespace,
        component=component,
        spec=spec,
    )


def admit_namespaces(names: Iterable[str], ports: Iterable[int | tuple[int, str]]) -> Body:
    """Return an ingress rule for pods of namespaces, by namespace names, which cannot be spoofed. Ports have a protocol
    unless they are TCP."""
    match = [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": sorted(set(names))}]
    pairs = [port if isinstance(port, tuple) else (port, "TCP") for port in ports]
    return {
        "from": [{"namespaceSelector": {"matchExpressions": match}}],
        "ports": [{"protocol": protocol, "port": number} for number, protocol in pairs],
    }


def admit_pods(select: Mapping[str, str]) -> Body:
    """Return an ingress rule, on all ports, for pods of the policy's own namespace."""
    return {"from": [{"podSelector": {"matchLabels": dict(select)}}]}
