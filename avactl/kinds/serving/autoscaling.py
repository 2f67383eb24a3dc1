"""Replicas with bounds → a HorizontalPodAutoscaler on CPU, or KEDA's ScaledObject on metrics of the server.

A service with `min: 0` has pods while one of the triggers is above 0, and for `idle` after that. Without pods, requests
are counted by the gateway, or by the endpoint picker that queues them.

Sources: `pkg/scalers/prometheus_scaler.go` and `pkg/scaling/executor/scale_scaledobjects.go` of KEDA 2.21.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from avactl.base.promql import (
    QueryProblem,
    confinement_problem,
    fill_placeholders,
    is_per_pod,
    is_scalar,
    syntax_problem,
)
from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.serving.groups import scale_target
from avactl.kinds.serving.llm import machines_per_replica
from avactl.kinds.serving.parts.scaling import ScalingQuery
from avactl.kinds.serving.picker import endpoint_picker
from avactl.kinds.serving.probes import declared_checks
from avactl.kinds.serving.queries import query_diagnostic
from avactl.kinds.serving.rollout.lower import chosen_strategy, key_of
from avactl.kinds.serving.runtime import runtime_of, server
from avactl.kinds.serving.spec import Replicas, ServingDeploymentSpec
from avactl.program.ineffective_keys import without_effect
from avactl.program.lowering import k8s
from avactl.program.lowering.exposure import fill_in
from avactl.program.lowering.monitoring import is_monitored
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.schema.values import duration_seconds

IDLE = "15m"
POLL = 10
"""Seconds between two polls of the triggers of a service without pods."""
WAKE_ONLY = "1000000"
"""Requests per pod: a threshold so high that the trigger starts only the first pod."""
LONGEST_WAIT = 300
"""Seconds for which clients are assumed to retry a request that no pod answers."""


_LATENCY_KEYS = {"first_token": "firstToken", "per_token": "perToken"}


def metric_targets(spec: ServingDeploymentSpec) -> dict[str, float]:
    """Return the targets of the server's metrics of a spec, in requests, tokens a second, or seconds."""
    if isinstance(spec.replicas, int) or spec.replicas.metrics is None:
        return {}
    found = {}
    for name in type(spec.replicas.metrics).model_fields:
        value = getattr(spec.replicas.metrics, name)
        if value is not None and name != "query":
            found[name] = float(duration_seconds(value)) if isinstance(value, str) else float(value)
    return found


def scaling_queries(spec: ServingDeploymentSpec) -> list[ScalingQuery]:
    """Return the queries of a spec by which its service is scaled."""
    return [] if isinstance(spec.replicas, int) or spec.replicas.metrics is None else spec.replicas.metrics.query


def _is_scaled_by_metrics(spec: ServingDeploymentSpec) -> bool:
    return bool(metric_targets(spec) or scaling_queries(spec))


def can_scale_to_zero(spec: ServingDeploymentSpec) -> bool:
    """Return True if a service may have no pods."""
    return not isinstance(spec.replicas, int) and spec.replicas.min == 0


def build_autoscaler(item: Item[ServingDeploymentSpec], program: Program, component: str) -> list[Manifest]:
    """Return the autoscaler of a service; none for a fixed number of replicas."""
    replicas = item.spec.replicas
    if isinstance(replicas, int):
        return []
    target = scale_target(item.spec, item.name)
    if _is_scaled_by_metrics(item.spec) or can_scale_to_zero(item.spec):
        spec: Body = {
            "scaleTargetRef": target,
            **(_build_idle_scaling(replicas) if can_scale_to_zero(item.spec) else {}),
            "minReplicaCount": replicas.min,
            "maxReplicaCount": replicas.max,
            "triggers": list(_build_triggers(item, program, replicas)),
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
        k8s.build_manifest(
            item, item.cluster, version, kind, item.name, namespace=item.ns, component=component, spec=spec
        )
    ]


def _build_idle_scaling(replicas: Replicas) -> Body:
    idle = ceil(duration_seconds(replicas.idle or IDLE))
    # A new service keeps its first pod as long, so that its model is loaded before the first request.
    return {"pollingInterval": POLL, "cooldownPeriod": idle, "initialCooldownPeriod": idle}


def _wake_queries(item: Item[ServingDeploymentSpec], program: Program) -> dict[str, str]:
    """Return the queries for requests that are counted without pods, by key of the Cluster."""
    exposure = program.cluster_spec(item.cluster).exposure
    if item.spec.expose is None or exposure is None:
        return {}
    queued = (
        exposure.gateway.queued if exposure.gateway is not None and endpoint_picker(item.spec) is not None else None
    )
    found = {"requests": exposure.requests, "queued": queued}
    return {key: fill_in(query, item.ns, item.name) for key, query in found.items() if query is not None}


def _build_triggers(item: Item[ServingDeploymentSpec], program: Program, replicas: Replicas) -> Iterator[Body]:
    zero, monitoring = can_scale_to_zero(item.spec), program.cluster_spec(item.cluster).monitoring
    prometheus = monitoring.prometheus if monitoring is not None else None
    for name, query in _wake_queries(item, program).items() if zero else ():
        # A series that does not exist is one without requests so far.
        metadata = {"serverAddress": prometheus, "query": query, "threshold": WAKE_ONLY}
        yield {"type": "prometheus", "name": name, "metricType": "AverageValue", "metadata": metadata}
    # As PodMonitors label the series: by namespace, and by the label of the pods that names the service.
    selector = f'{{namespace="{item.ns}",app_kubernetes_io_instance="{item.name}"}}'
    for name, target in metric_targets(item.spec).items():
        metric = runtime_of(item.spec).metrics[name]
        query, kind = metric.fill_in(selector, target, _replicas_query(item)), "AverageValue"
        if metric.is_ratio and chosen_strategy(item.spec) is None:
            # Within its tolerance of an average, Kubernetes adopts `status.replicas`, which has the surge of a rolling
            # update; of a value it keeps the replicas, and multiplies by all ready pods otherwise.
            query, kind = f"({query}) / count(up{selector} == 1)", "Value"
        yield _build_trigger(_LATENCY_KEYS.get(name, name), kind, prometheus, query, metric.threshold(target))
    for own in scaling_queries(item.spec):
        # A Value is multiplied by the ready pods, as it is for rolling services.
        threshold, kind = (own.value, "Value") if own.average_value is None else (own.average_value, "AverageValue")
        assert threshold is not None
        yield _build_trigger(f"query-{own.name}", kind, prometheus, _fill_in_query(item, own), threshold)
    by_cpu = zero and not _is_scaled_by_metrics(item.spec) and replicas.max > 1
    if by_cpu or "cpu_utilization" in replicas.model_fields_set:
        yield {"type": "cpu", "metricType": "Utilization", "metadata": {"value": str(replicas.cpu_utilization)}}


def _build_trigger(name: str, kind: str, prometheus: str | None, query: str, threshold: float) -> Body:
    return {
        "type": "prometheus",
        "name": name,
        "metricType": kind,
        "metadata": {
            "serverAddress": prometheus,
            "query": query,
            "threshold": _format_number(threshold),
            # Lost scrape targets have no series: with the default, that would be no load.
            "ignoreNullValues": "false",
        },
    }


def _format_number(value: float) -> str:
    """Return a number without an exponent, which KEDA passes on as a Kubernetes quantity."""
    return f"{value:.12f}".rstrip("0").rstrip(".")


def _fill_in_query(item: Item[ServingDeploymentSpec], own: ScalingQuery) -> str:
    return fill_placeholders(own.promql, item.ns, _pods_pattern(item), 0)


def _pods_pattern(item: Item[ServingDeploymentSpec]) -> str:
    """Return a regular expression of the names of the pods that answer requests: of all versions, or of leaders."""
    return f"{item.name}-[0-9]+" if machines_per_replica(item.spec) > 1 else f"{item.name}-[a-z0-9]+-[a-z0-9]+"


def _query_problems(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield queries that KEDA would refuse, that read metrics of other teams, or that a rollout would falsify."""
    path = ("spec", "replicas", "metrics", "query")
    yield from check_duplicates(item, path, (each.name for each in scaling_queries(item.spec)), "query")
    for index, own in enumerate(scaling_queries(item.spec)):
        promql = _fill_in_query(item, own)
        problem = confinement_problem(promql, item.ns) or syntax_problem(promql, _pods_pattern(item))
        if problem is None and "{{interval}}" in own.promql:
            problem = QueryProblem("`{{interval}}` is that of an analysis", "write a range, such as `[2m]`", False)
        if problem is None and is_per_pod(promql):
            why = "it has a result for each pod, and an autoscaler takes one number"
            problem = QueryProblem(why, "aggregate them: `sum(…)`, `avg(…)` or `max(…)`", False)
        if problem is None and is_scalar(promql):
            problem = QueryProblem("its result is a number without a series", "write `vector(…)` around it", False)
        if problem is not None:
            yield query_diagnostic(item, own.name, problem, (*path, index, "promql"))
        rollout = chosen_strategy(item.spec)
        if own.value is not None and rollout is not None:
            yield Diagnostic(
                "conflicting-keys",
                f"`value` is multiplied by the ready pods, which are those of both versions with `{key_of(rollout)}`",
                item.span(*path, index, "value", key=True),
                hint="query the load of the whole service, and write `averageValue: …`, the target of each pod",
                notes=(Note(item.span("spec", "rollout", key_of(rollout), key=True), "the rollout"),),
            )


def _replicas_query(item: Item[ServingDeploymentSpec]) -> str:
    """Return a query for the replicas in the spec of the scaled object, of any kind, by kube-state-metrics: those of
    both versions of a rollout count once."""
    metric, name = "kube_horizontalpodautoscaler_status_current_replicas", f"keda-hpa-{item.name}"
    return f'max({metric}{{namespace="{item.ns}",horizontalpodautoscaler="{name}"}})'


def metric_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield metrics that the server does not have, and a cluster without the Prometheus that has them."""
    spec, path = item.spec, ("spec", "replicas", "metrics")
    known = runtime_of(spec).metrics
    for name in metric_targets(spec):
        if name in known:
            continue
        key, others = _LATENCY_KEYS.get(name, name), [_LATENCY_KEYS.get(each, each) for each in known]
        yield Diagnostic(
            "runtime-cannot",
            f"{runtime_of(spec).title} has no metric for `{key}`",
            item.span(*path, key, key=True),
            hint=f"write {' or '.join(f'`{each}`' for each in others)}, or a `query` of your own"
            if others
            else "write a `query` of your own, or `cpuUtilization: 70`",
            notes=(Note(item.span("spec", "runtime", "name"), "the runtime"),),
        )
    yield from _query_problems(item)
    if not _is_scaled_by_metrics(spec):
        return
    monitoring = program.cluster_spec(item.cluster).monitoring
    if (
        monitoring is None
        or monitoring.prometheus is None
        or (metric_targets(spec) and not is_monitored(program, item.cluster))
    ):
        cluster = program.cluster(item.cluster)
        yield Diagnostic(
            "missing-monitoring",
            f"{item} is scaled by metrics, but cluster {item.cluster} declares no Prometheus that has them",
            item.span(*path, key=True),
            hint='add `monitoring: {prometheus: "http://prometheus.monitoring:9090"}` '
            f"to Cluster {item.cluster}, or write `cpuUtilization: 70`",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )


def zero_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield reasons why a service with `min: 0` would never start its first pod, or start it too late for clients."""
    spec, path = item.spec, ("spec", "replicas", "min")
    if not can_scale_to_zero(spec):
        if not isinstance(spec.replicas, int) and spec.replicas.idle is not None:
            yield without_effect(item, ("spec", "replicas", "idle"), f"`min` is {spec.replicas.min}")
        return
    if spec.expose is None:
        yield Diagnostic(
            "missing-key",
            "`min: 0` needs `expose`: only requests through the gateway can start the first pod",
            item.span(*path),
            hint="add `expose: {host: …}`, or write `min: 1`",
        )
        return
    if spec.balance == "headless":
        yield Diagnostic(
            "conflicting-keys",
            "with `balance: headless`, clients bypass the gateway, whose requests start the first pod",
            item.span("spec", "balance"),
            hint="write `balance: gateway`, or `min: 1`",
            notes=(Note(item.span(*path), "the service may have no pods"),),
        )
    cluster, offered = program.cluster(item.cluster), program.cluster_spec(item.cluster)
    if offered.exposure is None:
        return  # reported with `expose`
    found = _wake_queries(item, program)
    if not found:
        held = endpoint_picker(spec) is not None
        yield Diagnostic(
            "missing-monitoring",
            f"{item} may have no pods, and cluster {cluster.name} declares no query for the requests that start the "
            "first one",
            item.span(*path),
            hint=f"add `requests: …` to `exposure`{', or `queued: …` to its `gateway`,' if held else ''} of Cluster "
            f"{cluster.name}, or write `min: 1`",
            notes=(Note(cluster.span("spec", "exposure", key=True), "the cluster's exposure"),),
        )
    if not _is_scaled_by_metrics(spec) and (offered.monitoring is None or offered.monitoring.prometheus is None):
        yield Diagnostic(
            "missing-monitoring",
            f"{item} is scaled by the gateway's metrics, but cluster {cluster.name} declares no Prometheus that has "
            "them",
            item.span(*path),
            hint='add `monitoring: {prometheus: "http://prometheus.monitoring:9090"}` '
            f"to Cluster {cluster.name}, or write `min: 1`",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )
    limit = _startup_seconds(spec)
    if limit > LONGEST_WAIT and "queued" not in found:
        yield Diagnostic(
            "slow-start",
            f"without pods, the gateway refuses requests until one is ready, which may take {ceil(limit / 60)}m",
            item.span(*path),
            severity="warning",
            hint=f"if it is ready within {LONGEST_WAIT // 60}m, lower the limit: {_slow_start_reason(spec)}; "
            "else write `min: 1`",
        )


def _slow_start_reason(spec: ServingDeploymentSpec) -> str:
    """Return what says that the server starts within LONGEST_WAIT, with the path that is asked anyway."""
    if spec.probes is not None:
        return "fewer `failures` of `probes.startup`"
    own = "…" if spec.model is None or runtime_of(spec).is_generic else server(spec).ready
    path = spec.probe.path if spec.probe is not None else own
    return f"`probe: {{path: {path}, startup: {LONGEST_WAIT // 60}m}}`"


def _startup_seconds(spec: ServingDeploymentSpec) -> int:
    """Seconds that the server may take to start; also of a spec that cannot be lowered."""
    if spec.probe is not None:
        return ceil(duration_seconds(spec.probe.startup))
    own = dict(declared_checks(spec)).get("startup")
    if own is not None and own.failures is not None:
        return max(1, ceil(duration_seconds(own.period))) * own.failures
    return runtime_of(spec).startup
