"""The part of the NVIDIA DRA driver's ComputeDomain that avactl uses: its API is not Kubernetes' own."""

from __future__ import annotations

from typing import Any

from tools.controlplane import KubeClient

_DOMAIN = {
    "type": "object",
    "required": ["numNodes", "channel"],
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}],
    "properties": {
        "numNodes": {"type": "integer", "minimum": 0},
        "channel": {
            "type": "object",
            "required": ["resourceClaimTemplate"],
            "properties": {
                "allocationMode": {"type": "string", "enum": ["All", "Single"]},
                "resourceClaimTemplate": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
            },
        },
    },
}
COMPUTE_DOMAINS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "computedomains.resource.nvidia.com"},
    "spec": {
        "group": "resource.nvidia.com",
        "scope": "Namespaced",
        "names": {"kind": "ComputeDomain", "plural": "computedomains", "singular": "computedomain"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _DOMAIN}}},
            }
        ],
    },
}


def define_compute_domains(kube: KubeClient) -> None:
    """Create the definition, and wait until the API server serves it."""
    kube.define(COMPUTE_DOMAINS)
