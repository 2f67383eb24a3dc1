"""Prometheus metrics. Names follow those of kube-scheduler for equal metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)

LEADER = Gauge("avactl_scheduler_leader", "1 on the replica that schedules.", registry=REGISTRY)
PENDING = Gauge(
    "avactl_scheduler_pending_pods",
    "Pods without a node: queued for scheduling, or unschedulable.",
    ["queue"],
    registry=REGISTRY,
)
DECISIONS = Counter(
    "avactl_scheduler_decisions_total",
    "Scheduling decisions, by result: placed, unschedulable, failed.",
    ["result"],
    registry=REGISTRY,
)
BINDINGS = Counter("avactl_scheduler_bindings_total", "Bindings sent, by result.", ["result"], registry=REGISTRY)
DECISION_SECONDS = Histogram(
    "avactl_scheduler_decision_seconds",
    "Duration of one decision, for a pod or a whole gang.",
    buckets=_SECONDS,
    registry=REGISTRY,
)
BINDING_SECONDS = Histogram(
    "avactl_scheduler_binding_seconds",
    "Time from the decision to the API server's response.",
    buckets=_SECONDS,
    registry=REGISTRY,
)
QUEUE_SECONDS = Histogram(
    "avactl_scheduler_queue_seconds",
    "Time from observing a pod to its decision.",
    buckets=_SECONDS,
    registry=REGISTRY,
)
EVENTS = Counter("avactl_scheduler_events_total", "Events written, by result.", ["result"], registry=REGISTRY)
EVICTIONS = Counter("avactl_scheduler_evictions_total", "Evicted pods, by reason.", ["reason"], registry=REGISTRY)
WATCH_ERRORS = Counter("avactl_scheduler_watch_errors_total", "Failed watches.", ["kind"], registry=REGISTRY)
GPUS = Gauge("avactl_scheduler_gpus", "GPUs of the cluster, by model.", ["model"], registry=REGISTRY)
GPUS_ALLOCATED = Gauge(
    "avactl_scheduler_gpus_allocated",
    "Allocated GPUs, by model; shared GPUs count as fractions.",
    ["model"],
    registry=REGISTRY,
)
FAILING_JOBS = Gauge(
    "avactl_scheduler_node_failing_jobs",
    "Jobs whose pods failed on a node within an hour before their programs ran; only nodes with two and more.",
    ["node"],
    registry=REGISTRY,
)
FAULTS = Gauge(
    "avactl_scheduler_node_faults",
    "Faults of a node and its GPUs that its conditions report; only nodes with faults.",
    ["node"],
    registry=REGISTRY,
)
UNUSABLE_GPUS = Gauge(
    "avactl_scheduler_node_unusable_gpus",
    "GPUs of a node that pods do not get, because of faults, or as the device plugin withdrew or shares some of them.",
    ["node"],
    registry=REGISTRY,
)
PREEMPTIONS_WAITING = Gauge(
    "avactl_scheduler_preemptions_waiting",
    "Pods and gangs that preempt nobody because a machine for them is on its way.",
    registry=REGISTRY,
)
MACHINES_COMING = Gauge(
    "avactl_scheduler_machines_coming",
    "Machines that an autoscaler has ordered and that are not ready, of pools with `preemptAfter`.",
    ["pool"],
    registry=REGISTRY,
)
_POOL, _TEAM = ["pool", "model"], ["team", "model"]
POOL_GPUS = Gauge("avactl_scheduler_pool_gpus", "GPUs of all nodes of a pool.", _POOL, registry=REGISTRY)
POOL_ALLOCATED = Gauge("avactl_scheduler_pool_gpus_allocated", "Allocated GPUs of a pool.", _POOL, registry=REGISTRY)
POOL_FRAGMENTED = Gauge(
    "avactl_scheduler_pool_gpus_fragmented",
    "Free GPUs that the next pod of the expected workload for this model cannot use, on average (FGD's measure).",
    _POOL,
    registry=REGISTRY,
)
POOL_WHOLE = Gauge(
    "avactl_scheduler_pool_machines_whole",
    "Schedulable nodes whose GPUs are all free.",
    _POOL,
    registry=REGISTRY,
)
TEAM_GPUS = Gauge("avactl_scheduler_team_gpus", "GPUs allocated to a team.", _TEAM, registry=REGISTRY)
TEAM_GUARANTEED = Gauge(
    "avactl_scheduler_team_gpus_guaranteed",
    "GPUs that the team's quota guarantees, including whole machines.",
    _TEAM,
    registry=REGISTRY,
)
TEAM_BORROWED = Gauge(
    "avactl_scheduler_team_gpus_borrowed", "GPUs allocated beyond the guarantee.", _TEAM, registry=REGISTRY
)
TEAM_RECLAIMABLE = Gauge(
    "avactl_scheduler_team_gpus_reclaimable",
    "Borrowed GPUs whose pods can be preempted.",
    _TEAM,
    registry=REGISTRY,
)
TEAM_WAITING = Gauge(
    "avactl_scheduler_team_gpus_waiting",
    "GPUs requested by the team's pending pods; without a model: any model.",
    _TEAM,
    registry=REGISTRY,
)
