"""`spec.rollout` of a ServingDeployment: how a new version takes over."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from avactl.spec.schema.base import Env, Model
from avactl.spec.schema.values import Bytes as Memory
from avactl.spec.schema.values import Duration, Image, Name, PodCpu, PositiveDuration, value_error

PODS = "{{pods}}"
"""Placeholder of a query: regular expression of the names of one version's pods."""
Share = Annotated[int, Field(ge=1, le=100)]
"""Percent of the requests, from 1 to 100."""


def _any_of(*keys: str) -> JsonDict:
    return {"anyOf": [{"required": [key]} for key in keys]}


class Step(Model):
    """One step of a canary."""

    percent: Share = Field(description="Percent of the requests that the new version gets.")
    pause: Duration = Field("5m", description="How long the step lasts; with `analysis`, at least one interval.")


class Query(Model):
    """A measurement of both versions by PromQL."""

    model_config = ConfigDict(json_schema_extra=_any_of("max", "min", "maxRatio"))

    name: Name = Field(description="Name, for messages.")
    promql: Annotated[str, Field(min_length=1, max_length=2000, json_schema_extra={"pattern": r"\{\{pods\}\}"})] = (
        Field(
            description="Query whose result is one number. `{{pods}}` stands for a regular expression of a version's "
            "pods, `{{namespace}}` for their namespace, `{{interval}}` for the interval: "
            '`sum(rate(errors_total{namespace="{{namespace}}",pod=~"{{pods}}"}[{{interval}}]))`.'
        )
    )
    max: float | None = Field(None, description="Highest value of the new version.")
    min: float | None = Field(None, description="Lowest value of the new version.")
    max_ratio: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Highest value of the new version, as a multiple of the stable version's."
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if PODS not in self.promql:
            raise value_error(
                f"query `{self.name}` does not select a version's pods", 'add `pod=~"{{pods}}"` to its selectors'
            )
        if self.max is None and self.min is None and self.max_ratio is None:
            raise value_error(f"query `{self.name}` has no bound", "add `max`, `min` or `maxRatio`")
        if self.max is not None and self.min is not None and self.min > self.max:
            message = f"query `{self.name}`: no value is from `min` {self.min:g} to `max` {self.max:g}"
            raise value_error(message, "exchange them, or remove one")
        return self


class ValidationJob(Model):
    """A Job that tests the new version before it gets requests. Exit code 0 passes.

    Its variables AVACTL_NEW_URL and AVACTL_STABLE_URL are the HTTP addresses of the two versions.
    """

    image: Image = Field(description="Its image.")
    command: list[str] = Field(default_factory=list, description="Command. Default: the image's.")
    args: list[str] = Field(default_factory=list, description="Arguments.")
    env: Env = Field(default_factory=dict)
    timeout: PositiveDuration = Field("10m", description="Time after which it has failed.")
    cpu: PodCpu = Field("1", description="CPU cores.")
    memory: Memory = Field("1Gi", description="Memory, in bytes.")


class Analysis(Model):
    """Comparison of the new version with the stable one. A failed measurement rolls back."""

    model_config = ConfigDict(json_schema_extra=_any_of("errorRate", "latency", "query", "job"))

    interval: PositiveDuration = Field("1m", description="Time between two measurements, and the range of each.")
    error_rate: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="Most failed requests, in percentage points above the stable version's."
    )
    latency: Annotated[float, Field(ge=1, le=1000)] | None = Field(
        None,
        description="Highest latency, as a multiple of the stable version's: p99, or the mean where the runtime "
        "has no histogram.",
    )
    query: Annotated[list[Query], Field(max_length=8)] = Field(default_factory=list, description="Own measurements.")
    failures: Annotated[int, Field(ge=1, le=10)] = Field(
        1, description="Failed measurements in a row that roll the version back."
    )
    job: ValidationJob | None = Field(None, description="Job that tests the new version before it gets requests.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.error_rate is None and self.latency is None and not self.query and self.job is None:
            raise value_error("`analysis` measures nothing", "add `errorRate`, `latency`, `query` or `job`")
        return self


class Rolling(Model):
    """Kubernetes' rolling update: pods are replaced as soon as new ones are ready."""


class Canary(Model):
    """The new version gets a rising share of the requests, and is rolled back if it is worse."""

    steps: Annotated[list[Step], Field(min_length=1, max_length=20)] = Field(
        description="Steps with rising percentages. After the last one, the new version takes over."
    )
    traffic: Literal["gateway", "replicas"] | None = Field(
        None,
        description="`gateway`: by weights of the HTTPRoute and GRPCRoute; the stable version keeps all of its pods. "
        "`replicas`: by the number of pods. Default: `gateway` if the service is exposed through a gateway.",
    )
    analysis: Analysis | None = Field(None, description="Comparison with the stable version. Default: only readiness.")
    in_place: bool = Field(
        False, description="Without room for more pods, stop an old pod for each new one. Default: wait for room."
    )


class BlueGreen(Model):
    """All pods of the new version start beside the old ones, and all requests move at once."""

    keep: Duration = Field(
        "30m", description="How long the old version stays after the switch, ready for a switch back."
    )
    analysis: Analysis | None = Field(
        None, description="Comparison with the old version: the Job before the switch, measurements during `keep`."
    )


class Rollout(Model):
    """How a new version of a service takes over from the old one."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    rolling: Rolling | None = Field(None, description="Kubernetes' rolling update. The default.")
    canary: Canary | None = Field(None, description="Rising shares of the requests.")
    blue_green: BlueGreen | None = Field(None, description="A switch of all requests at once.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name, key in _STRATEGY_KEYS.items() if getattr(self, key) is not None]
        if len(given) > 1:
            raise value_error(f"`{given[0]}` and `{given[1]}` exclude each other", "keep one of them")
        if not given:
            raise value_error(
                "`rollout` has no strategy", "write `rolling: {}`, `canary: {steps: …}` or `blueGreen: {}`"
            )
        return self


_STRATEGY_KEYS = {"rolling": "rolling", "canary": "canary", "blueGreen": "blue_green"}
