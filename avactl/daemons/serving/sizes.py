"""Numbers of pods of the two versions during a rollout. Pure."""

from __future__ import annotations

from math import ceil, floor
from typing import NamedTuple


class Sizes(NamedTuple):
    """Pods of the stable and the new version."""

    stable: int
    canary: int


def step_sizes(total: int, percent: int, *, by_replicas: bool, in_place: bool) -> Sizes:
    """Return the sizes of a step. By replicas, or in place, the new version's pods replace stable ones; otherwise the
    stable version keeps all of its pods. The new version has at least one pod, also of a service without pods."""
    if not total:
        return Sizes(0, 1)
    canary = max(1, floor(total * percent / 100 + 0.5)) if by_replicas else max(1, ceil(total * percent / 100))
    # In place, the last stable pod stops only once it gets no requests, when the new version takes over.
    if total > 1 and (percent < 100 if by_replicas else in_place):
        canary = min(canary, total - 1)
    return Sizes(total - canary if by_replicas or in_place else total, canary)


def next_sizes(
    now: Sizes, ready: Sizes, unready: Sizes, goal: Sizes, *, limit: int, floor: int, stable_first: bool
) -> Sizes:
    """Return the next sizes on the way to `goal`.

    `ready`, `unready`: pods that are known to be so; of a size that was just changed nothing is known. `limit`: most
    pods of both; `floor`: ready pods that remain when others stop. Pods that are not ready stop without regard to it.
    `stable_first`: the stable version grows first, on the way back.
    """
    sizes = dict(zip(("stable", "canary"), now, strict=True))
    aims, down = goal._asdict(), unready._asdict()
    room = limit - sum(sizes.values())
    for name in ("stable", "canary") if stable_first else ("canary", "stable"):
        grown = min(max(0, aims[name] - sizes[name]), max(0, room))
        sizes[name] += grown
        room -= grown
    spare = sum(ready) - floor
    for name in ("canary", "stable") if stable_first else ("stable", "canary"):
        excess = max(0, now._asdict()[name] - aims[name])
        late = min(excess, down[name])
        stopped = min(excess - late, max(0, spare))
        sizes[name] -= late + stopped
        spare -= stopped
    return Sizes(sizes["stable"], sizes["canary"])
