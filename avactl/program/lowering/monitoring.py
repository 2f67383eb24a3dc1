"""Monitoring → PodMonitors of the Prometheus Operator, and the NetworkPolicies that let Prometheus in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from avactl.program.lowering import k8s
from avactl.program.lowering.networks import admit_namespaces, build_ingress_policy
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.schema.base import GROUP
from avactl.spec.schema.monitoring import Monitoring
from avactl.spec.schema.values import duration_seconds

API = "monitoring.coreos.com/v1"


def is_monitored(program: Program, cluster: str) -> bool:
    """Return True if the Prometheus Operator reads the metrics of a cluster's pods."""
    monitoring = program.cluster_spec(cluster).monitoring
    return monitoring is not None and monitoring.prometheus_operator


def monitoring_of(program: Program, cluster: str) -> Monitoring:
    """Return the monitoring of a cluster that has it. Raises LookupError."""
    monitoring = program.cluster_spec(cluster).monitoring
    if monitoring is None:
        raise LookupError(f"no monitoring of cluster {cluster}")
    return monitoring


def pod_monitor(
    item: Item,
    program: Program,
    cluster: str,
    name: str,
    namespace: str,
    select: Mapping[str, str],
    path: str,
    port: str,
    component: str | None = None,
) -> Manifest:
    """Build a PodMonitor of pods in its namespace; `port` is the name of a container's port."""
    monitoring = monitoring_of(program, cluster)
    endpoint = {"port": port, "path": path, "interval": f"{ceil(duration_seconds(monitoring.interval))}s"}
    return k8s.build_manifest(
        item,
        cluster,
        API,
        "PodMonitor",
        name,
        namespace=namespace,
        component=component,
        extra_labels=monitoring.labels,
        spec={
            "selector": {"matchLabels": dict(select)},
            "podTargetLabels": ["app.kubernetes.io/instance", f"{GROUP}/team"],
            "podMetricsEndpoints": [endpoint],
        },
    )


def metrics_reader_rules(program: Program, cluster: str, port: int) -> Iterator[Body]:
    """Yield the rule of a NetworkPolicy that lets Prometheus read the metrics of a pod; nothing without monitoring."""
    namespaces = program.cluster_spec(cluster).daemons.metrics_from
    # A selector with no values is invalid, and a rule without `from` would admit everyone.
    if is_monitored(program, cluster) and namespaces:
        yield admit_namespaces(namespaces, [port])


def of_component(item: Item, program: Program, component: str, port: int) -> list[Manifest]:
    """Return the PodMonitor of one component of a workload, whose port `http` has the metrics, and the NetworkPolicy
    that lets Prometheus in; nothing without monitoring."""
    if not is_monitored(program, item.cluster):
        return []
    name, select = f"{item.name}-{component}", k8s.component_selector(item, component)
    found = [pod_monitor(item, program, item.cluster, name, item.ns, select, "/metrics", "http", component)]
    if rules := list(metrics_reader_rules(program, item.cluster, port)):
        found.append(build_ingress_policy(item, f"{name}-metrics", item.ns, select, rules, component))
    return found
