"""CPU, memory and taints of pods with further containers, for quotas and capacity."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol, TypeVar, cast

from avactl.base.quantity import parse_quantity
from avactl.contracts.names import CAPACITY, SPOT_ONLY
from avactl.spec.schema.pod_affinity import NODE_TAINTS
from avactl.spec.schema.pod_settings import Container, PodSettings


class _Compute(Protocol):
    """Requests of one pod: a `Compute`, or a spec with the same fields."""

    @property
    def cpu(self) -> str | None: ...
    @property
    def memory(self) -> str | None: ...
    @property
    def tolerates(self) -> Sequence[str]: ...


C = TypeVar("C", bound=_Compute)


def with_other_containers(settings: PodSettings | None, key: str, main: str) -> Fraction:
    """Return the cores or bytes that a pod requests, given those of its main container.

    Sidecars run beside the init containers, which run one after the other, and beside the main container.
    Source: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """
    own = parse_quantity(main)
    if settings is None:
        return own

    def of(container: Container) -> Fraction:
        return parse_quantity(getattr(container, key))

    before = max(map(of, settings.init_containers), default=Fraction(0))
    return sum(map(of, settings.sidecars), max(own, before))


class PodCompute:
    """The compute of a role with the requests and tolerations of its pod settings."""

    def __init__(self, compute: _Compute, settings: PodSettings) -> None:
        self.compute = compute
        self.cpu = (
            None if compute.cpu is None else f"{int(with_other_containers(settings, 'cpu', compute.cpu) * 1000)}m"
        )
        self.memory = (
            None if compute.memory is None else str(int(with_other_containers(settings, "memory", compute.memory)))
        )
        keys = [
            each.key
            for each in settings.tolerations
            if each.effect != "PreferNoSchedule" and each.key not in NODE_TAINTS
        ]
        self.tolerates = list(dict.fromkeys([*compute.tolerates, *keys]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compute, name)


class SpotCompute:
    """The compute of a role whose pods may run on spot machines."""

    def __init__(self, compute: _Compute, use: str) -> None:
        self._of = compute
        self.compute = getattr(compute, "compute", compute)
        self.tolerates = [*compute.tolerates, SPOT_ONLY if use == "require" else CAPACITY]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def on_spot(compute: C, use: str) -> C:
    """Return a compute with the use of spot machines: `never`, `allow` or `require`."""
    return compute if use == "never" else cast("C", SpotCompute(compute, use))


def with_pod(compute: C, settings: PodSettings | None) -> C:
    """Return a compute whose `cpu`, `memory` and `tolerates` are those of the whole pod."""
    if settings is None or not (settings.sidecars or settings.init_containers or settings.tolerations):
        return compute
    return cast("C", PodCompute(compute, settings))
