"""Configuration that the compiler writes for the scheduler: policy, pools and quotas, as ConfigMaps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import orjson

from avactl.hardware.machine import Machine
from avactl.hardware.placement.allocation import MAX_GPUS
from avactl.hardware.placement.objective import Objective
from avactl.hardware.placement.quota import Limit, Quota, Shape


@dataclass(frozen=True, slots=True)
class Policy:
    """`policy.json`, the daemon's own configuration."""

    cluster: str
    system_namespace: str
    levels: tuple[str, ...]
    """Node labels of the topology levels, widest first."""
    gpu_driver: str
    objective: Objective = "pack"
    cache_daemon: bool = False
    """True if the cluster runs the cache daemon, which reports the progress of datasets."""
    jobs: bool = False
    """True if the account may read Jobs, for pods that start after them."""

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read a policy file. Raises OSError, and ValueError if it is not a policy."""
        try:
            return cls.parse(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: not a placement policy: {error}") from None

    @classmethod
    def parse(cls, text: str | bytes) -> Policy:
        """Parse the JSON document. Raises ValueError if it is invalid."""
        data = orjson.loads(text)
        if not isinstance(data, dict):
            raise ValueError("not an object")
        for name in ("cluster", "systemNamespace", "gpuDriver"):
            if not isinstance(data.get(name), str) or not data[name]:
                raise ValueError(f"`{name}` is not a string" if name in data else f"`{name}` is missing")
        levels = data.get("levels")
        if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
            raise ValueError("`levels` is not a list of node labels")
        objective = data.get("objective", "pack")
        if objective not in get_args(Objective):
            raise ValueError(f"objective `{objective}` is not one of {', '.join(get_args(Objective))}")
        return cls(
            cluster=data["cluster"],
            system_namespace=data["systemNamespace"],
            levels=tuple(reversed(levels)),
            gpu_driver=data["gpuDriver"],
            objective=objective,
            cache_daemon=data.get("cacheDaemon") is True,
            jobs=data.get("jobs") is True,
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """One `pool.json`."""

    name: str
    method: str
    """`devicePlugin` or `dra`."""
    resource: str
    """The extended resource of device-plugin pools."""
    rdma_resource: str
    driver: str
    machine: Machine

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Pool:
        """Parse the JSON document. Raises ValueError if it is invalid."""
        _check(data, _POOL)
        way, gpus = data["allocation"], data["machine"]["gpus"]["count"]
        if way["method"] not in ("dra", "devicePlugin"):
            raise ValueError(f"allocation.method: `{way['method']}` is neither dra nor devicePlugin")
        under = sorted(gpu for switch in data["machine"]["switches"] for gpu in switch["gpus"])
        if not 0 < gpus <= MAX_GPUS or under != list(range(gpus)):
            raise ValueError(f"machine: it must have 1 to {MAX_GPUS} GPUs, each under exactly one switch")
        pairs = (data["machine"].get("nvlink") or {}).get("pairs", ())
        if any(len(pair) != 3 or max(pair[:2]) >= gpus for pair in pairs):
            raise ValueError(f"machine.nvlink.pairs: each entry must be two of the {gpus} GPUs and a number of links")
        try:
            machine = Machine.from_dict(data["machine"])
        except KeyError as error:
            raise ValueError(f"machine: {error} is missing") from None
        return cls(
            name=data["pool"],
            method=way["method"],
            resource=way.get("resource", ""),
            rdma_resource=way.get("rdmaResource", ""),
            driver=way.get("driver", ""),
            machine=machine,
        )


@dataclass(frozen=True, slots=True)
class TeamQuota:
    """One `quota.json`: a team, its namespaces, its quota. Amounts are CPU milli and memory bytes."""

    team: str
    namespaces: tuple[str, ...]
    quota: Quota

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> TeamQuota:
        """Parse the JSON document. Raises ValueError if it is invalid."""
        _check(data, _QUOTA)
        if any(each["weight"] < 1 for each in data["gpus"]):
            raise ValueError("gpus: `weight` must be at least 1")
        cpu, memory = data.get("cpu"), data.get("memoryBytes")
        quota = Quota(
            name=data["team"],
            limits={each["gpu"]: Limit(each["guaranteed"], each["borrow"], each["weight"]) for each in data["gpus"]},
            shapes=tuple(Shape(each["machines"], each["gpus"], each["gpu"]) for each in data["shapes"]),
            amounts=(None if cpu is None else round(cpu * 1000), memory),
        )
        return cls(data["team"], tuple(data["namespaces"]), quota)


class _Or(NamedTuple):
    """Optional or null value."""

    form: Any


_GPUS = {"gpu": str, "guaranteed": int, "borrow": int, "weight": int}
_WHOLE = {"machines": int, "gpus": int, "gpu": str}
_QUOTA = {
    "team": str,
    "namespaces": [str],
    "gpus": [_GPUS],
    "shapes": [_WHOLE],
    "cpu": _Or(float),
    "memoryBytes": _Or(int),
}
_LINKS = {"linkGBps": float, "pairs": [[int]], "switchLinks": int, "domain": _Or(int)}
_MACHINE = {
    "gpus": {"model": str, "count": int, "memoryBytes": int},
    "cpu": float,
    "memoryBytes": int,
    "switches": [{"socket": int, "gpus": [int], "nics": [str]}],
    "nvlink": _Or(_LINKS),
    "nics": [{"name": str, "socket": int, "gbitPerSecond": float, "rdma": bool}],
    "bandwidth": {"crossSocketGBps": float, "sameSocketGBps": float, "pcieSwitchGBps": float},
}
_WAY = {"method": str, "resource": _Or(str), "rdmaResource": _Or(str), "driver": _Or(str)}
_POOL = {"pool": str, "allocation": _WAY, "machine": _MACHINE}


def _check(data: Any, form: Any, place: str = "") -> None:
    """Check JSON against a schema: users edit ConfigMaps, and one wrong type must not stop scheduling.

    Numbers must not be negative. Raises ValueError with the path.
    """
    if isinstance(form, _Or):
        if data is not None:
            _check(data, form.form, place)
    elif isinstance(form, dict):
        if not isinstance(data, dict):
            raise ValueError(f"{place or 'it'} is not an object")
        for name, each in form.items():
            _check(data.get(name), each, f"{place}.{name}" if place else name)
    elif isinstance(form, list):
        if not isinstance(data, list):
            raise ValueError(f"{place} is not a list")
        for number, each in enumerate(data):
            _check(each, form[0], f"{place}[{number}]")
    elif form in (int, float):
        if isinstance(data, bool) or not isinstance(data, (int, form)) or not 0 <= data < math.inf:
            raise ValueError(f"{place} is not {'an integer' if form is int else 'a number'}")
    elif not isinstance(data, form):
        raise ValueError(f"{place} is not {'a string' if form is str else 'true or false'}")
