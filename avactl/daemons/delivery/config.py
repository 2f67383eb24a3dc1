"""Parse what the compiler has written down of a pipeline, and the state that the daemon keeps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal, NamedTuple

import orjson

from avactl.daemons.delivery.decide import MAX_KNOWN, Config, State
from avactl.daemons.delivery.provenance import is_provenance
from avactl.daemons.delivery.validation import Bound

MOST_BYTES = 1 << 20
"""Longest document: that of a ConfigMap."""
_MOST_TEXT = 4096
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?").fullmatch
TriggerKind = Literal["schedule", "dataset", "commit", "checkpoint"]
_TRIGGERS = ("schedule", "dataset", "commit", "checkpoint")
_PHASES = (
    "idle", "clearing", "training", "staging", "validating", "sealing", "deploying", "rolling", "reverting", "stopping"
)  # fmt: skip


class PlanError(ValueError):
    """The document is not one that the compiler writes."""


class Trigger(NamedTuple):
    """When a run is due."""

    kind: TriggerKind
    cron: str = ""
    zone: str = "Etc/UTC"
    version: str = ""
    """Newest version of the dataset."""
    paths: tuple[str, ...] = ()
    every: int = 0
    """Seconds."""


class Target(NamedTuple):
    """Where a deployment writes, and what it deploys to."""

    namespace: str
    service: str
    """Name of the Deployment, LeaderWorkerSet or DisaggregatedSet."""
    model: str
    file: str
    """YAML file of the service, from the root of the specs."""
    document: str
    """Name of the service in that file."""
    team: str
    url_path: str
    version_path: str


class Service(NamedTuple):
    """The plan of a service with a rollout: the spec that a roll-back in git changes."""

    cluster: str
    namespace: str
    name: str
    """Name of the Deployment."""
    team: str
    file: str
    """YAML file of the service, from the root of the specs."""
    document: str
    """Name of the service in that file."""
    by: Literal["commit", "pullRequest"]


class Pipeline(NamedTuple):
    """The plan of one pipeline."""

    name: str
    team: str
    namespace: str
    trigger: Trigger
    train: tuple[str, ...]
    """Templates of the training's Jobs."""
    running: tuple[str, ...]
    """Running Jobs that train without end, in a pipeline without templates."""
    stage: str
    validate: str
    seal: str
    declared: tuple[str, ...]
    """URLs below its directory that services declare."""
    target: Target | None
    lineage: Mapping[str, Any]
    config: Config

    def __str__(self) -> str:
        return f"{self.team}/{self.name}"


def parse_plan(text: str) -> Pipeline:
    """Parse the document `pipeline.json`. Raises PlanError."""
    data = _mapping(text)
    try:
        deploy = data["deploy"]
        validate = data["validate"]
        return Pipeline(
            _name(data["name"]), _name(data["team"]), _name(data["namespace"]), _trigger(data["trigger"]),
            tuple(map(_name, data["train"]["jobs"])), tuple(map(_name, data["train"].get("runningJobs", ()))),
            _name(data["stage"]), _name(validate["job"]), _name(data["seal"]),
            tuple(map(_text, data["publish"]["declared"])),
            None if deploy is None else _target(deploy, _name(data["team"])), dict(data["lineage"]), _config(data),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"invalid plan: {type(error).__name__} {str(error)[:200]}") from None


def parse_service(text: str) -> Service:
    """Parse the document `service.json`. Raises PlanError."""
    data = _mapping(text)
    try:
        if data["by"] not in ("commit", "pullRequest"):
            raise ValueError("unknown word")
        return Service(
            _name(data["cluster"]), _name(data["namespace"]), _name(data["name"]), _name(data["team"]),
            _text(data["file"]), _text(data["document"]), data["by"],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"invalid plan: {type(error).__name__} {str(error)[:200]}") from None


def _config(data: Mapping[str, Any]) -> Config:
    deploy, timeout = data["deploy"] or {}, data["timeout"]
    by, concurrency = deploy.get("by", ""), data["concurrency"]
    if by not in ("", "commit", "pullRequest") or concurrency not in ("forbid", "replace", "queue"):
        raise ValueError("unknown word")
    return Config(
        to=_text(data["publish"]["to"]),
        trains=bool(data["train"]["jobs"]),
        bounds=tuple(map(_bound, data["validate"]["metrics"])),
        deploys=by,
        rollout=deploy.get("rollout") is True,
        concurrency=concurrency,
        timeout=None if timeout is None else _number(timeout),
        suspended=data["suspended"] is True,
        validation=_text(data["validate"].get("digest", "-")),
    )


def _bound(data: Mapping[str, Any]) -> Bound:
    given = {key: None if data.get(key) is None else _number(data[key]) for key in ("min", "max", "atLeast", "atMost")}
    return Bound(_text(data["name"]), given["min"], given["max"], given["atLeast"], given["atMost"])


def _trigger(data: Mapping[str, Any]) -> Trigger:
    if data["kind"] not in _TRIGGERS:
        raise ValueError("unknown trigger")
    return Trigger(
        data["kind"], _text(data.get("cron", "-")), _text(data.get("timeZone") or "Etc/UTC"),
        _text(data.get("version", "-")), tuple(map(_text, data.get("paths", ()))), int(_number(data.get("every", 0))),
    )  # fmt: skip


def _target(data: Mapping[str, Any], team: str) -> Target:
    return Target(
        _name(data["namespace"]), _name(data["service"]), _text(data["model"]), _text(data["file"]),
        _text(data["document"]), team, _text(data["paths"]["url"]), _text(data["paths"]["version"]),
    )  # fmt: skip


# -- state -----------------------------------------------------------------------------------------------------------


def dump_state(state: State) -> str:
    """Return the document of a state, without what is as in a new one."""
    known = asdict(state)
    return orjson.dumps({key: value for key, value in known.items() if value}, option=orjson.OPT_SORT_KEYS).decode()


def parse_state(text: str | None) -> State:
    """Parse a state. Raises PlanError: a pipeline whose state was damaged does not begin anew by itself."""
    if not text:
        return State()
    data, default = _mapping(text), State()
    found: dict[str, Any] = {}
    for each in fields(State):
        if each.name not in data:
            continue
        value, like = data[each.name], getattr(default, each.name)
        if isinstance(like, bool):
            good = isinstance(value, bool)
        elif isinstance(like, str):
            good = isinstance(value, str) and len(value) <= _MOST_TEXT
        elif isinstance(like, int | float):
            good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e11
        else:
            good = isinstance(value, dict)
        if not good:
            raise PlanError(f"invalid state: {each.name}")
        found[each.name] = value
    state = State(**found)
    if not is_provenance(state.ran):
        raise PlanError("invalid state: ran")
    if state.phase not in _PHASES or len(state.known) > MAX_KNOWN or not all(map(_numbers, state.known.values())):
        raise PlanError("invalid state")
    return state


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(type(each) in (int, float) for each in value.values())


def _mapping(text: str) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        raise PlanError(f"over {MOST_BYTES} bytes")
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise PlanError("not JSON") from None
    if not isinstance(data, dict):
        raise PlanError("not a mapping")
    return data


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME(value):
        raise ValueError("not a name")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_TEXT:
        raise ValueError("not a text")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)
