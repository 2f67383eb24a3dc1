"""Prometheus metrics. Names follow Kubernetes' own where they say the same."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)

LEADER = Gauge("avactl_scheduler_leader", "1 on the replica that schedules.", registry=REGISTRY)
PENDING = Gauge(
    "avactl_scheduler_pending_pods", "Pods without a node: those to be tried next, and those that wait.",
    ["queue"], registry=REGISTRY,
)  # fmt: skip
DECISIONS = Counter(
    "avactl_scheduler_decisions_total", "Decisions on pods, by result: placed, unschedulable, failed.",
    ["result"], registry=REGISTRY,
)  # fmt: skip
BINDINGS = Counter("avactl_scheduler_bindings_total", "Bindings sent, by result.", ["result"], registry=REGISTRY)
DECISION_SECONDS = Histogram(
    "avactl_scheduler_decision_seconds", "Time of one decision: a pod, or a whole gang.",
    buckets=_SECONDS, registry=REGISTRY,
)  # fmt: skip
BINDING_SECONDS = Histogram(
    "avactl_scheduler_binding_seconds", "From the decision to the API server's answer.",
    buckets=_SECONDS, registry=REGISTRY,
)  # fmt: skip
QUEUE_SECONDS = Histogram(
    "avactl_scheduler_queue_seconds", "From seeing a pod to its decision.", buckets=_SECONDS, registry=REGISTRY
)
EVENTS = Counter("avactl_scheduler_events_total", "Events written, by result.", ["result"], registry=REGISTRY)
EVICTIONS = Counter("avactl_scheduler_evictions_total", "Pods stopped, by reason.", ["reason"], registry=REGISTRY)
WATCH_ERRORS = Counter("avactl_scheduler_watch_errors_total", "Watches that broke.", ["kind"], registry=REGISTRY)
GPUS = Gauge("avactl_scheduler_gpus", "GPUs of the cluster, by model.", ["model"], registry=REGISTRY)
GPUS_ALLOCATED = Gauge(
    "avactl_scheduler_gpus_allocated", "GPUs that pods hold, by model; shares count as parts.",
    ["model"], registry=REGISTRY,
)  # fmt: skip
_POOL, _TEAM = ["pool", "model"], ["team", "model"]
POOL_GPUS = Gauge("avactl_scheduler_pool_gpus", "GPUs of a pool, of all its machines.", _POOL, registry=REGISTRY)
POOL_ALLOCATED = Gauge(
    "avactl_scheduler_pool_gpus_allocated", "GPUs of a pool that pods hold.", _POOL, registry=REGISTRY
)
POOL_FRAGMENTED = Gauge(
    "avactl_scheduler_pool_gpus_fragmented",
    "Free GPUs that the next pod of the expected workload for this model cannot use, on average (FGD's measure).",
    _POOL, registry=REGISTRY,
)  # fmt: skip
POOL_WHOLE = Gauge(
    "avactl_scheduler_pool_machines_whole", "Machines that take pods and all of whose GPUs are free.",
    _POOL, registry=REGISTRY,
)  # fmt: skip
TEAM_GPUS = Gauge("avactl_scheduler_team_gpus", "GPUs that a team holds.", _TEAM, registry=REGISTRY)
TEAM_GUARANTEED = Gauge(
    "avactl_scheduler_team_gpus_guaranteed", "What its quota guarantees, whole machines included.",
    _TEAM, registry=REGISTRY,
)  # fmt: skip
TEAM_BORROWED = Gauge(
    "avactl_scheduler_team_gpus_borrowed", "Those that it holds beyond its guarantee.", _TEAM, registry=REGISTRY
)
TEAM_RECLAIMABLE = Gauge(
    "avactl_scheduler_team_gpus_reclaimable", "Those of the borrowed ones whose pods may be stopped.",
    _TEAM, registry=REGISTRY,
)  # fmt: skip
TEAM_WAITING = Gauge(
    "avactl_scheduler_team_gpus_waiting", "GPUs that pods of the team wait for; without a model: any will do.",
    _TEAM, registry=REGISTRY,
)  # fmt: skip
