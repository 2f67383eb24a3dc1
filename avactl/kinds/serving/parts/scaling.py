"""Targets of the autoscaler of a service: metrics of its server, and queries of its own."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Count, Name, PositiveDuration, value_error

Target = Annotated[float, Field(ge=0.001, le=1e12, allow_inf_nan=False)]
"""A target of the autoscaler, which KEDA rounds to thousandths: smaller ones would be 0."""


class ScalingQuery(Model):
    """A target by PromQL, for servers of any kind. Set one of `averageValue` and `value`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["averageValue"]}, {"required": ["value"]}]})

    name: Name = Field(description="Name, for messages.")
    promql: Annotated[str, Field(min_length=1, max_length=2000)] = Field(
        description="Query whose result is one number. `{{namespace}}` stands for the namespace, `{{pods}}` for a "
        "regular expression of the service's pods: "
        '`sum(rate(requests_total{namespace="{{namespace}}",pod=~"{{pods}}"}[2m]))`. No result is an error, and the '
        "number of pods does not fall: write `or vector(0)` only if it means no load."
    )
    average_value: Target | None = Field(
        None, description="Target of each pod, if the result is the load of the whole service."
    )
    value: Target | None = Field(
        None,
        description="Target of the result itself, such as a latency or a utilization, which falls with more pods. Not "
        "with `canary` and `blueGreen`, whose two versions would both count.",
    )

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.average_value is None) == (self.value is None):
            message = f"query `{self.name}` has either `averageValue` or `value`"
            raise value_error(message, "write `averageValue: …`, the target of each pod")
        return self


class ServerMetrics(Model):
    """Targets of the autoscaler. It starts pods as soon as one is exceeded."""

    queue: Count | None = Field(None, description="Requests that wait in each pod.")
    running: Count | None = Field(None, description="Requests that each pod works on.")
    tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Tokens that each pod generates in a second."
    )
    first_token: PositiveDuration | None = Field(None, description="Time to the first token, of 95% of the requests.")
    per_token: PositiveDuration | None = Field(None, description="Time for each further token, of 95% of the requests.")
    query: Annotated[list[ScalingQuery], Field(max_length=8)] = Field(
        default_factory=list, description="Own targets, for any runtime."
    )
