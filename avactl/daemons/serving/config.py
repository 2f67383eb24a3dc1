"""Documents that the daemon reads: rollout, its state, and routes. Everything is bounded before it is used."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

MOST_BYTES = 64 * 1024
"""Longest document that is parsed."""
MOST_PODS = 100_000
_HASH = re.compile(r"[a-z0-9]{1,20}").fullmatch
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?").fullmatch


class ConfigError(Exception):
    """A document is not one that the compiler or the daemon writes."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step: percent of the requests, and its seconds."""

    percent: int
    pause: float


@dataclass(frozen=True, slots=True)
class Query:
    """A measurement and its bounds."""

    name: str
    promql: str
    max: float | None = None
    min: float | None = None
    ratio: float | None = None
    difference: float | None = None

    @property
    def compares(self) -> bool:
        """True if the stable version is measured too."""
        return self.ratio is not None or self.difference is not None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Measurements; `job` is the CronJob with the template of validation Jobs, or empty."""

    interval: float
    failures: int
    queries: tuple[Query, ...]
    job: str


@dataclass(frozen=True, slots=True)
class Route:
    """A route whose backends are the Services of versions, at one port."""

    kind: str
    """`HTTPRoute` or `GRPCRoute`."""
    name: str
    port: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Config:
    """The document of a Deployment's annotation `avactl.dev/rollout`."""

    traffic: str
    """`gateway`, `replicas` or `service`."""
    steps: tuple[Step, ...]
    surge: int
    in_place: bool
    port: int
    ports: tuple[tuple[str, int], ...]
    services: tuple[str, ...]
    routes: tuple[Route, ...]
    analysis: Analysis | None


def parse_config(text: str) -> Config:
    """Parse the document of a rollout. Raises ConfigError."""
    data = _mapping(text)
    try:
        steps = tuple(Step(_integer(each["percent"], 1, 100), _number(each["pause"])) for each in data["steps"])
        ports = tuple((_name(name), _integer(port, 1, 65535)) for name, port in data["ports"].items())
        config = Config(
            str(data["traffic"]), steps, _integer(data["surge"], 0, MOST_PODS), data["inPlace"] is True,
            _integer(data["port"], 1, 65535), ports, tuple(_name(each) for each in data.get("services", ())),
            _routes(data, dict(ports)), _analysis(data.get("analysis")),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"invalid rollout: {type(error).__name__} {str(error)[:100]}") from None
    rising = all(a.percent < b.percent for a, b in itertools.pairwise(steps))
    if not 1 <= len(steps) <= 20 or not rising or config.traffic not in ("gateway", "replicas", "service"):
        raise ConfigError("invalid rollout: its steps or traffic")
    if len(ports) > 4 or len(config.services) > 4 or (config.traffic == "gateway") != bool(config.routes):
        raise ConfigError("invalid rollout: its ports, services or routes")
    return config


def _routes(data: dict[str, Any], ports: dict[str, int]) -> tuple[Route, ...]:
    found = []
    if "route" in data:
        found.append(Route("HTTPRoute", _name(data["route"]), _integer(data["port"], 1, 65535)))
    if "grpcRoute" in data:
        found.append(Route("GRPCRoute", _name(data["grpcRoute"]), ports["grpc"]))
    return tuple(found)


_BOUNDS = ("max", "min", "ratio", "difference")


def _analysis(data: Any) -> Analysis | None:
    if data is None:
        return None
    queries = tuple(
        Query(
            _name(each["name"]), _text(each["promql"]),
            *(None if each.get(key) is None else _number(each[key], -1e18) for key in _BOUNDS),
        )
        for each in data["queries"]
    )  # fmt: skip
    if len(queries) > 10:
        raise ValueError("too many queries")
    job = _name(data["job"]) if "job" in data else ""
    return Analysis(max(1.0, _number(data["interval"])), _integer(data["failures"], 1, 10), queries, job)


@dataclass(frozen=True, slots=True)
class State:
    """The document of a Deployment's annotation `avactl.dev/rollout-state`. Times in Unix seconds."""

    stable: str = ""
    """Hash of the version that runs. Empty: none yet."""
    canary: str = ""
    """Hash of the version that is being rolled out or removed; empty outside of a rollout."""
    phase: str = "steady"
    """`steady`, `starting`, `stepping`, `promoting` or `aborting`."""
    step: int = 0
    since: float = 0.0
    """When the phase, or the step, began; 0: it begins when the service has pods."""
    reached: float = 0.0
    """When the step had its pods and its share; 0: not yet."""
    weight: int = 0
    """Percent that the route, or the Services, give the new version."""
    weighed: float = 0.0
    """When the weight was set."""
    measured: float = 0.0
    passed: int = 0
    """Passed measurements since the step was reached."""
    failed: int = 0
    """Failed measurements in a row."""
    proven: bool = False
    """The stable version has had ready pods."""
    validated: bool = False
    in_place: bool = False
    reason: str = ""
    """Reason of the condition, in CamelCase."""
    message: str = ""
    outcome: str = ""
    """`promoted` or `rolledBack`: how the last rollout ended."""
    version: str = ""
    """Hash of the version of the last rollout."""
    ended: float = 0.0

    def but(self, **changes: Any) -> State:
        """Return a changed copy."""
        return replace(self, **changes)

    def dump(self) -> str:
        """Return the document."""
        return orjson.dumps({key: value for key, value in asdict(self).items() if value}).decode()


_DEFAULTS = State()
_PHASES = ("steady", "starting", "stepping", "promoting", "aborting")


def parse_state(text: str | None) -> State:
    """Parse a state; a text that the daemon has not written is as good as none."""
    if not text:
        return State()
    try:
        data = _mapping(text)
        state = State(**{key: value for key, value in data.items() if key in State.__dataclass_fields__})
        for key in State.__dataclass_fields__:
            value, default = getattr(state, key), getattr(_DEFAULTS, key)
            if isinstance(default, (bool, str)):
                if type(value) is not type(default) or (isinstance(value, str) and len(value) > 1000):
                    return State()
            elif type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value < 1e11:
                return State()
        if state.phase not in _PHASES or not all(_HASH(each) for each in (state.stable, state.canary) if each):
            return State()
        return state.but(step=int(min(state.step, 19)), weight=int(min(state.weight, 100)))
    except (ConfigError, TypeError):
        return State()


def parse_rules(text: str | None) -> list[dict[str, Any]]:
    """Parse the rules of a route. Raises ConfigError."""
    try:
        rules = orjson.loads(text or "") if text is None or len(text) <= MOST_BYTES else None
    except orjson.JSONDecodeError:
        rules = None
    if not isinstance(rules, list) or not 1 <= len(rules) <= 16 or not all(isinstance(each, dict) for each in rules):
        raise ConfigError("it has no rules in the annotation avactl.dev/rollout-route")
    return rules


def is_hash(text: Any) -> bool:
    """Return True for a hash of a pod template, as this daemon and the Deployment controller write them."""
    return isinstance(text, str) and _HASH(text) is not None


def _mapping(text: str) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        raise ConfigError(f"invalid rollout: over {MOST_BYTES} bytes")
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ConfigError("invalid rollout: not JSON") from None
    if not isinstance(data, dict):
        raise ConfigError("invalid rollout: not a mapping")
    return data


def _integer(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"not an integer from {least} to {most}")
    return value


def _number(value: Any, least: float = 0.0) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= 1e18:
        raise ValueError("not a number")
    return float(value)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME(value):
        raise ValueError("not a name")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 4000:
        raise ValueError("not a query")
    return value
