"""Kinds of other projects on a control plane, by their own definitions."""

from __future__ import annotations

from tools.controlplane import KubeClient
from tools.definitions import (
    GATEWAY_API,
    INFERENCE_EXTENSION,
    KEDA,
    LEADER_WORKER_SET,
    PROMETHEUS_OPERATOR,
    Release,
    definitions,
)


def define_routes(kube: KubeClient) -> None:
    """Create HTTPRoute and GRPCRoute of the Gateway API, and wait until the API server serves them."""
    _define(kube, GATEWAY_API, "httproutes", "grpcroutes")


def define_monitoring(kube: KubeClient) -> None:
    """Create the kinds of the Prometheus Operator that avactl compiles to."""
    _define(kube, PROMETHEUS_OPERATOR, "podmonitors", "prometheusrules", "alertmanagerconfigs")


def define_scaling(kube: KubeClient) -> None:
    """Create KEDA's ScaledObject."""
    _define(kube, KEDA, "scaledobjects")


def define_groups(kube: KubeClient) -> None:
    """Create the LeaderWorkerSet and the DisaggregatedSet."""
    _define(kube, LEADER_WORKER_SET, "leaderworkersets", "disaggregatedsets")


def define_pools(kube: KubeClient) -> None:
    """Create the InferencePool."""
    _define(kube, INFERENCE_EXTENSION, "inferencepools")


def _define(kube: KubeClient, release: Release, *plurals: str) -> None:
    for body in definitions(release, *plurals):
        kube.define({key: value for key, value in body.items() if key != "status"})
