"""Prometheus metrics of the serving daemon."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry()
LEADER = Gauge("avactl_serving_leader", "1 on the replica that acts.", registry=REGISTRY)
ROLLOUTS = Gauge("avactl_serving_rollouts", "Services, by phase of their rollout.", ["phase"], registry=REGISTRY)
WAITING = Gauge("avactl_serving_waiting", "Rollouts that wait, by reason.", ["reason"], registry=REGISTRY)
ENDED = Counter(
    "avactl_serving_ended_total", "Ended rollouts, by outcome: promoted, rolledBack.", ["outcome"], registry=REGISTRY
)
ERRORS = Counter("avactl_serving_errors_total", "Failed passes over a service.", registry=REGISTRY)
