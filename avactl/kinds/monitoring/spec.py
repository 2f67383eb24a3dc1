"""Monitoring of a cluster, as its spec asks for it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from avactl.kinds.base import Model, foreign_key
from avactl.kinds.fields.values import Duration, bad, label_key, label_value


def _label(value: str) -> str:
    label_key(value)
    if foreign_key(value) == "avactl":
        raise bad(f"label `{value}` is set by avactl", "remove it")
    return value


class Monitoring(Model):
    """Objects for Prometheus and Grafana, which the platform runs."""

    prometheus_operator: bool = Field(
        True,
        description="Compile PodMonitors of the Prometheus Operator for avactl's daemons, job masters and model "
        "servers, and let the namespaces in `daemons.metricsFrom` read their metrics.",
    )
    labels: dict[
        Annotated[str, AfterValidator(_label), Field(max_length=317)],
        Annotated[str, AfterValidator(label_value), Field(max_length=63)],
    ] = Field(
        default_factory=dict,
        max_length=16,
        description="Labels by which Prometheus and Alertmanager select these objects, such as `release: prometheus`.",
    )
    interval: Duration = Field("30s", description="How often metrics are read.")
    dashboards: bool = Field(
        False, description="Compile Grafana dashboards, as ConfigMaps with the label `grafana_dashboard`."
    )
