"""What the compiler tells the scheduler: policy, pools and quotas, as ConfigMaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import orjson

from avactl.hardware.machine import Machine
from avactl.placement.objective import Objective
from avactl.placement.quota import Limit, Quota, Shape


@dataclass(frozen=True, slots=True)
class Policy:
    """`policy.json`, the daemon's own configuration."""

    cluster: str
    system_namespace: str
    levels: tuple[str, ...]
    """Node labels, widest first."""
    gpu_driver: str
    objective: Objective = "pack"

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Raises OSError, and ValueError where it is not a policy."""
        try:
            return cls.parse(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: not a placement policy: {error}") from None

    @classmethod
    def parse(cls, text: str | bytes) -> Policy:
        """Raises ValueError where it is not one."""
        data = orjson.loads(text)
        if not isinstance(data, dict):
            raise ValueError("not an object")
        for name in ("cluster", "systemNamespace", "gpuDriver"):
            if not isinstance(data.get(name), str) or not data[name]:
                raise ValueError(f"`{name}` is no text" if name in data else f"`{name}` is missing")
        levels = data.get("levels")
        if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
            raise ValueError("`levels` is no list of node labels")
        objective = data.get("objective", "pack")
        if objective not in get_args(Objective):
            raise ValueError(f"objective `{objective}` is none of {', '.join(get_args(Objective))}")
        return cls(
            cluster=data["cluster"],
            system_namespace=data["systemNamespace"],
            levels=tuple(reversed(levels)),
            gpu_driver=data["gpuDriver"],
            objective=objective,
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
        """Raises KeyError or TypeError where it is not one."""
        way = data["allocation"]
        return cls(
            name=data["pool"],
            method=way["method"],
            resource=way.get("resource", ""),
            rdma_resource=way.get("rdmaResource", ""),
            driver=way.get("driver", ""),
            machine=Machine.from_dict(data["machine"]),
        )


@dataclass(frozen=True, slots=True)
class Leaf:
    """One `quota.json`: a team, its namespaces, its quota. Amounts are CPU milli and memory bytes."""

    team: str
    namespaces: tuple[str, ...]
    quota: Quota

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Leaf:
        """Raises KeyError or TypeError where it is not one."""
        cpu, memory = data.get("cpu"), data.get("memoryBytes")
        quota = Quota(
            name=data["team"],
            limits={each["gpu"]: Limit(each["guaranteed"], each["borrow"], each["weight"]) for each in data["gpus"]},
            shapes=tuple(Shape(each["machines"], each["gpus"], each["gpu"]) for each in data["shapes"]),
            amounts=(None if cpu is None else round(cpu * 1000), memory),
        )
        return cls(data["team"], tuple(data["namespaces"]), quota)
