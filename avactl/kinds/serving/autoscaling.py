"""Replicas with bounds → a HorizontalPodAutoscaler on CPU, or KEDA's ScaledObject on metrics of the server.

Sources: `pkg/scalers/prometheus_scaler.go` of KEDA 2.21; metrics of vLLM 0.33.0 (`vllm/v1/metrics/loggers.py`), SGLang
0.5.23 (`sglang/srt/observability/metrics_collector.py`) and Triton 2.59 (`docs/user_guide/metrics.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.fields.values import seconds
from avactl.kinds.lowering import k8s
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.monitoring.lower import is_monitored
from avactl.kinds.program import Item, Program
from avactl.kinds.serving.groups import scale_target
from avactl.kinds.serving.runtimes import RUNTIMES


class Metric(NamedTuple):
    """A metric of a server, in the language of Prometheus; `{}` stands for the selector of the service's pods."""

    query: str
    average: bool
    """The target is that of one pod, and the query the sum of all; else both are of the service."""


def _sum(name: str) -> Metric:
    return Metric(f"sum({name}{{}})", True)


def _rate(name: str) -> Metric:
    return Metric(f"sum(rate({name}{{}}[2m]))", True)


def _latency(name: str) -> Metric:
    # Without requests the quantile is NaN, which KEDA takes as a failure of the query.
    return Metric(f"(histogram_quantile(0.95, sum by (le) (rate({name}_bucket{{}}[2m]))) > 0) or vector(0)", False)


METRICS: dict[str, dict[str, Metric]] = {
    "vllm": {
        "queue": _sum("vllm:num_requests_waiting"),
        "running": _sum("vllm:num_requests_running"),
        "tokens": _rate("vllm:generation_tokens_total"),
        "first_token": _latency("vllm:time_to_first_token_seconds"),
        "per_token": _latency("vllm:request_time_per_output_token_seconds"),
    },
    "sglang": {
        "queue": _sum("sglang:num_queue_reqs"),
        "running": _sum("sglang:num_running_reqs"),
        "tokens": _rate("sglang:generation_tokens_total"),
        "first_token": _latency("sglang:time_to_first_token_seconds"),
        "per_token": _latency("sglang:inter_token_latency_seconds"),
    },
    "triton": {"queue": _sum("nv_inference_pending_request_count")},
}
"""Metrics by runtime, and by field of `ServerMetrics`."""
_KEYS = {"first_token": "firstToken", "per_token": "perToken"}


def targets(spec: Any) -> dict[str, float]:
    """Return the targets of the metrics of a spec, in requests, tokens a second, or seconds."""
    if isinstance(spec.replicas, int) or spec.replicas.metrics is None:
        return {}
    found = {}
    for name in type(spec.replicas.metrics).model_fields:
        value = getattr(spec.replicas.metrics, name)
        if value is not None:
            found[name] = float(seconds(value)) if isinstance(value, str) else float(value)
    return found


def autoscaler(item: Item, program: Program, component: str) -> list[Manifest]:
    """Return the autoscaler of a service; none for a fixed number of replicas."""
    replicas = item.spec.replicas
    if isinstance(replicas, int):
        return []
    target = scale_target(item.spec, item.name)
    if targets(item.spec):
        spec: Body = {
            "scaleTargetRef": target,
            "minReplicaCount": replicas.min,
            "maxReplicaCount": replicas.max,
            "triggers": list(_triggers(item, program)),
        }
        version, kind = "keda.sh/v1alpha1", "ScaledObject"
    else:
        cpu = {"type": "Utilization", "averageUtilization": replicas.cpu_utilization}
        spec = {
            "scaleTargetRef": target,
            "minReplicas": replicas.min,
            "maxReplicas": replicas.max,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": cpu}}],
        }
        version, kind = "autoscaling/v2", "HorizontalPodAutoscaler"
    return [
        k8s.manifest(item, item.cluster, version, kind, item.name, namespace=item.ns, component=component, spec=spec)
    ]


def _triggers(item: Item, program: Program) -> Iterator[Body]:
    # As PodMonitors label the series: by namespace, and by the label of the pods that names the service.
    selector = f'{{namespace="{item.ns}",app_kubernetes_io_instance="{item.name}"}}'
    for name, target in targets(item.spec).items():
        metric = METRICS[item.spec.runtime.name][name]
        yield {
            "type": "prometheus",
            "name": _KEYS.get(name, name),
            "metricType": "AverageValue" if metric.average else "Value",
            "metadata": {
                "serverAddress": program.cluster_spec(item.cluster).monitoring.prometheus,
                "query": metric.query.replace("{}", selector),
                "threshold": f"{target:g}",
            },
        }
    replicas = item.spec.replicas
    if "cpu_utilization" in replicas.model_fields_set:
        yield {"type": "cpu", "metricType": "Utilization", "metadata": {"value": str(replicas.cpu_utilization)}}


def metric_problems(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Yield metrics that the server does not have, and a cluster without the Prometheus that has them."""
    spec, path = item.spec, ("spec", "replicas", "metrics")
    known = METRICS.get(spec.runtime.name, {})
    for name in targets(spec):
        if name in known:
            continue
        key, others = _KEYS.get(name, name), [_KEYS.get(each, each) for each in known]
        yield Diagnostic(
            "runtime-cannot",
            f"{RUNTIMES[spec.runtime.name].title} has no metric for `{key}`",
            item.span(*path, key, key=True),
            hint=f"write {' or '.join(f'`{each}`' for each in others)}" if others else "write `cpuUtilization: 70`",
            notes=(Note(item.span("spec", "runtime", "name"), "the runtime"),),
        )
    if not targets(spec):
        return
    monitoring = program.cluster_spec(item.cluster).monitoring
    if not is_monitored(program, item.cluster) or monitoring is None or monitoring.prometheus is None:
        cluster = program.cluster(item.cluster)
        yield Diagnostic(
            "missing-monitoring",
            f"{item} is scaled by metrics, but cluster {item.cluster} declares no Prometheus that has them",
            item.span(*path, key=True),
            hint="add `monitoring: {prometheus: \"http://prometheus.monitoring:9090\"}` "
            f"to Cluster {item.cluster}, or write `cpuUtilization: 70`",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )  # fmt: skip
