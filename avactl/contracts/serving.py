"""Configuration of the serving daemon for rollouts and pools, and the state that the daemon keeps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from avactl.contracts.document import (
    Amount,
    Contract,
    ContractPart,
    Count,
    DocumentError,
    JsonObject,
    Label,
    RootContract,
    UnixTime,
    absent,
    load,
)

MAX_ADDRESSES = 10_000
"""Addresses in one ConfigMap of weights, which may have 1 MiB. Clients give those beyond it the average weight."""
MAX_MESSAGE = 1000
_WRITTEN_MESSAGE = 900
"""Characters of a message that is written."""
"""Characters of the texts in the state of a rollout."""
_MAX_BYTES = 64 * 1024
GROUPS_HOLD = 2**31 - 1
"""`partition` of a LeaderWorkerSet with which its controller replaces no group."""
Traffic = Literal["gateway", "replicas", "service"]
"""How requests are divided between versions."""
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")]
_Port = Annotated[int, Field(ge=1, le=65535)]
_Bound = Annotated[float, Field(ge=-1e18, le=1e18)]
_Hash = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{0,20}\Z")]
_Message = Annotated[str, Field(max_length=MAX_MESSAGE)]


class RolloutStep(ContractPart):
    """A step: percent of the requests, and its seconds."""

    percent: Annotated[int, Field(ge=1, le=100)]
    pause: Amount


class RolloutQuery(ContractPart):
    """A measurement and its bounds."""

    name: _Name
    promql: Annotated[str, Field(min_length=1, max_length=4000)]
    max: _Bound | None = absent(None)
    min: _Bound | None = absent(None)
    ratio: _Bound | None = absent(None)
    difference: _Bound | None = absent(None)

    @property
    def compares(self) -> bool:
        """True if the stable version is measured too."""
        return self.ratio is not None or self.difference is not None


class RolloutAnalysis(ContractPart):
    """Measurements of a rollout."""

    interval: Amount
    failures: Annotated[int, Field(ge=1, le=10)]
    queries: Annotated[tuple[RolloutQuery, ...], Field(max_length=10)]
    job: _Name | None = absent(None)
    """CronJob with the template of validation Jobs."""

    @property
    def interval_s(self) -> float:
        """Seconds between two measurements."""
        return max(1.0, self.interval)


class RolloutRoute(NamedTuple):
    """A route whose backends are the Services of versions, at one port."""

    kind: str
    """`HTTPRoute` or `GRPCRoute`."""
    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class RolloutConfig(Contract):
    """Annotation `ROLLOUT` of a Deployment or LeaderWorkerSet: a canary or blue-green rollout. Durations are in
    seconds."""

    MAX_BYTES = _MAX_BYTES
    traffic: Traffic
    steps: Annotated[tuple[RolloutStep, ...], Field(min_length=1, max_length=20)]
    surge: Annotated[int, Field(ge=0, le=100_000)]
    in_place: bool
    port: _Port
    ports: Annotated[Mapping[_Name, _Port], Field(max_length=4)]
    services: Annotated[tuple[_Name, ...], Field(max_length=4)] = absent(())
    """Services of the service itself, which the daemon directs to one version, with `traffic: service`."""
    route: _Name | None = absent(None)
    """HTTPRoute, with `traffic: gateway`."""
    grpc_route: _Name | None = absent(None)
    pools: Annotated[tuple[_Name, ...], Field(max_length=2)] = absent(())
    """Two InferencePools that are the backends of `route` instead of the Services of versions: each has an endpoint
    picker of its own, and selects one version at a time."""
    roles: Annotated[tuple[_Name, ...], Field(max_length=2)] = absent(())
    """LeaderWorkerSets of the other roles of the service, which are rolled out together with the annotated one. The
    pods of all of them have the label `SERVICE_VERSION`."""
    start: Amount | None = absent(None)
    """Seconds in which pods must be ready once their images are pulled and their files copied. Default: `deadline`."""
    deadline: Amount | None = absent(None)
    """Seconds in which pods must be ready, from their creation on. Default: `progressDeadlineSeconds` of the
    Deployment. A LeaderWorkerSet has no such field."""
    analysis: RolloutAnalysis | None = absent(None)

    @model_validator(mode="after")
    def _validate_traffic(self) -> RolloutConfig:
        if not all(a.percent < b.percent for a, b in itertools.pairwise(self.steps)):
            raise ValueError("has `steps` that do not rise")
        if (self.traffic == "gateway") != (self.route is not None or self.grpc_route is not None):
            raise ValueError("must have `route` or `grpcRoute` if its traffic is `gateway`, and only then")
        if self.grpc_route is not None and "grpc" not in self.ports:
            raise ValueError("has `grpcRoute` and no port `grpc`")
        if self.pools and (len(set(self.pools)) != 2 or self.route is None or self.grpc_route is not None):
            raise ValueError("must have two `pools`, with `route` and without `grpcRoute`, or none")
        return self

    @property
    def routes(self) -> tuple[RolloutRoute, ...]:
        """Routes in which the daemon sets the backends."""
        named = (("HTTPRoute", self.route, "http"), ("GRPCRoute", self.grpc_route, "grpc"))
        return tuple(
            RolloutRoute(kind, name, self.port if port == "http" else self.ports[port])
            for kind, name, port in named
            if name is not None
        )


class RolloutState(Contract):
    """Annotation `ROLLOUT_STATE` of a Deployment or LeaderWorkerSet, which the serving daemon writes. Times are Unix
    seconds."""

    model_config = ConfigDict(alias_generator=None)
    MAX_BYTES = _MAX_BYTES
    stable: _Hash = absent("")
    """Hash of the version that runs. Empty: none yet."""
    canary: _Hash = absent("")
    """Hash of the version that is being rolled out or removed; empty outside of a rollout."""
    phase: Literal["steady", "starting", "stepping", "promoting", "aborting"] = absent("steady")
    step: Annotated[int, Field(ge=0, lt=20)] = absent(0)
    since: UnixTime = absent(0.0)
    """When the phase, or the step, began; 0: it begins when the service has pods."""
    reached: UnixTime = absent(0.0)
    """When the step had its pods and its share; 0: not yet."""
    weight: Annotated[int, Field(ge=0, le=100)] = absent(0)
    """Percent that the route, or the Services, give the new version."""
    weighed: UnixTime = absent(0.0)
    """When the weight was set."""
    measured: UnixTime = absent(0.0)
    passed: Count = absent(0)
    """Passed measurements since the step was reached."""
    failed: Count = absent(0)
    """Failed measurements in a row."""
    prepared: UnixTime = absent(0.0)
    """When pods of the new version had their images and files, as far as it was seen: the status of a container that
    crashes again and again has no longer its first start."""
    proven: bool = absent(False)
    """The stable version has had ready pods."""
    validated: bool = absent(False)
    in_place: bool = absent(False)
    rejected: _Hash = absent("")
    """Hash of a version of groups that was rolled back and is not tried again; a ReplicaSet has an annotation."""
    groups: Count = absent(0)
    """Most groups of the new version that were ready: the next ones have the time of a start from then on."""
    reason: _Message = absent("")
    """Reason of the condition, in CamelCase."""
    message: _Message = absent("")
    outcome: _Message = absent("")
    """`promoted` or `rolledBack`: how the last rollout ended."""
    version: _Message = absent("")
    """Hash of the version of the last rollout."""
    ended: UnixTime = absent(0.0)

    def replace(self, **changes: object) -> Self:
        """Return a changed copy; a message that is too long is cut."""
        if isinstance(message := changes.get("message"), str):
            changes["message"] = message[:_WRITTEN_MESSAGE]
        return super().replace(**changes)

    @classmethod
    def read(cls, text: object) -> RolloutState:
        """Parse a state; a text that the daemon has not written is as good as none."""
        try:
            return load(cls, text)
        except DocumentError:
            return cls()


class RouteRules(RootContract[Annotated[tuple[JsonObject, ...], Field(min_length=1, max_length=16)]]):
    """Annotation `ROLLOUT_ROUTE` of a route: its rules, in which the serving daemon sets the backends."""

    MAX_BYTES = _MAX_BYTES


class PoolSpeeds(RootContract[Annotated[Mapping[Label, Annotated[float, Field(ge=1e-3, le=1e3)]], Field()]]):
    """Annotation `WEIGHTS` of a headless Service: relative speed of pools whose speed is not 1."""


class AddressWeights(RootContract[Annotated[Mapping[Label, Amount], Field(max_length=MAX_ADDRESSES)]]):
    """`weights.json`: speed of the machine behind each address, for clients that balance themselves.

    The client library reads it, which is a distribution of its own.
    """

    MAX_BYTES = 1 << 20


class ModelUrls(RootContract[Mapping[Label, Annotated[str, Field(max_length=4096)]]]):
    """Annotation `MODEL_URLS` of a Deployment: the URL of each model that has one."""
