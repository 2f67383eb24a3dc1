"""Monitoring of a cluster, as its spec asks for it."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from avactl.contracts.foreign_keys import key_owner
from avactl.spec.schema.base import Model, SecretKey
from avactl.spec.schema.values import Duration, PositiveDuration, label_key, label_value, value_error


def _check_label(value: str) -> str:
    label_key(value)
    if key_owner(value) == "avactl":
        raise value_error(f"label `{value}` is set by avactl", "remove it")
    return value


_SERVER_PATTERN = r"^https?://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9._-]+)*/?$"


def _check_server(value: str) -> str:
    if len(value) > 253 or not re.fullmatch(_SERVER_PATTERN, value):
        raise value_error(
            f"`{value[:80]}` is not the address of a Prometheus", "write `http://prometheus.monitoring:9090`"
        )
    return value


PrometheusUrl = Annotated[
    str, AfterValidator(_check_server), WithJsonSchema({"type": "string", "pattern": _SERVER_PATTERN, "maxLength": 253})
]


class Monitoring(Model):
    """Objects for Prometheus and Grafana, which the platform runs."""

    prometheus_operator: bool = Field(
        True,
        description="Compile PodMonitors of the Prometheus Operator for avactl's daemons, job masters and model "
        "servers, and let the namespaces in `daemons.metricsFrom` read their metrics.",
    )
    labels: dict[
        Annotated[str, AfterValidator(_check_label), Field(max_length=317)],
        Annotated[str, AfterValidator(label_value), Field(max_length=63)],
    ] = Field(
        default_factory=dict,
        max_length=16,
        description="Labels by which Prometheus and Alertmanager select these objects, such as `release: prometheus`.",
    )
    interval: PositiveDuration = Field("30s", description="How often metrics are read.")
    prometheus: PrometheusUrl | None = Field(
        None,
        description="Address of Prometheus inside of the cluster, where KEDA reads the metrics of services, and the "
        "serving daemon compares versions.",
    )
    notifications: bool = Field(
        False,
        description="Let specs notify by the platform's Alertmanager (`notify`), which then posts to "
        "URLs that teams choose.",
    )
    dashboards: bool = Field(
        False, description="Compile Grafana dashboards, as ConfigMaps with the label `grafana_dashboard`."
    )


def _check_address(value: str) -> str:
    if len(value) > 254 or not re.fullmatch(_EMAIL_PATTERN, value):
        raise value_error(
            f"`{value[:60]}` is not an e-mail address", "write `name@example.com`, without a display name"
        )
    return value


_EMAIL_PATTERN = r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+"
Address = Annotated[
    str,
    AfterValidator(_check_address),
    WithJsonSchema({"type": "string", "pattern": f"^{_EMAIL_PATTERN}$", "maxLength": 254}),
]
Event = Literal["failed", "succeeded", "queued", "unavailable"]


class Notify(Model):
    """Receivers of a job's or service's state, told by the platform's Alertmanager."""

    events: Annotated[list[Event], Field(min_length=1)] | None = Field(
        None,
        description="`failed` and `succeeded` jobs, jobs that are `queued` for long, `unavailable` services. "
        "Default: all but `succeeded`.",
    )
    queued_for: Duration = Field("1h", description="How long no pod of a job has a machine before that is told.")
    webhook: SecretKey | None = Field(
        None, description="Secret and key with the URL that Alertmanager posts to; URLs often contain credentials."
    )
    email: Annotated[list[Address], Field(max_length=16)] = Field(
        default_factory=list, description="Addresses. The mail server is that of the platform's Alertmanager."
    )

    @model_validator(mode="after")
    def _receiver(self) -> Self:
        if self.webhook is None and not self.email:
            raise value_error("nobody is told", "add `webhook: {name: …, key: …}`, or `email: [name@example.com]`")
        return self
