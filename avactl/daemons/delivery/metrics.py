"""Prometheus metrics of the delivery daemon."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry()
LEADER = Gauge("avactl_delivery_leader", "1 on the replica that acts.", registry=REGISTRY)
PIPELINES = Gauge("avactl_delivery_pipelines", "Pipelines, by phase.", ["phase"], registry=REGISTRY)
RUNS = Counter("avactl_delivery_runs_total", "Ended runs, by reason.", ["reason"], registry=REGISTRY)
ERRORS = Counter("avactl_delivery_errors_total", "Failed passes over a pipeline or a service.", registry=REGISTRY)
GIT_ERRORS = Counter("avactl_delivery_git_errors_total", "Failed reads of the branch.", registry=REGISTRY)
ROLLBACKS = Counter(
    "avactl_delivery_rollbacks_total", "Roll-backs of services committed or proposed in git.", registry=REGISTRY
)
PROMOTIONS = Counter("avactl_delivery_promotions_total", "Promotions committed or proposed in git.", registry=REGISTRY)
