"""The domains (racks, blocks, …) in which members of a gang are placed, in the order in which they are tried."""

from __future__ import annotations

import numpy as np

from avactl.hardware.placement.allocation import AllocationState
from avactl.hardware.placement.masks import Mask
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup


def gang_domains(state: AllocationState, unit: QueuedPodGroup, single_domains: bool = False) -> list[Mask | None]:
    """Return the node masks to try in order; None stands for all nodes.

    If members are running, their own domains come first, narrowest level first, then all nodes. A gang that requires
    one domain and has no running members is tried on all nodes, or with `single_domains` in each domain of its level.
    """
    slots = [
        state.slots[node]
        for pod in unit.pods.values()
        if (node := pod.node or pod.assumed) in state.slots and not pod.ended
    ]
    widest = state.levels.index(unit.within) if unit.within else 0
    if not slots:
        if unit.within and single_domains:
            return _by_free_gpus(state, widest)
        # Of a PodGroup, pods run on nodes with the label only; other gangs may start on one node without it.
        return [state.domains[:, widest] >= 0] if unit.within and unit.pod_group is not None else [None]
    masks: list[Mask | None] = []
    for level in range(len(state.levels) - 1, widest - 1, -1):
        domains = state.domains[:, level]
        wanted = np.unique(domains[slots])
        masks.append(np.isin(domains, wanted[wanted >= 0]))
    return masks if unit.within else [*masks, None]


def _by_free_gpus(state: AllocationState, level: int) -> list[Mask | None]:
    """The domains of a level, those with most free GPUs last."""
    domains = state.domains[:, level]
    free = {domain: int(state.gpu_total[domains == domain].sum()) for domain in np.unique(domains[domains >= 0])}
    return [domains == domain for domain in sorted(free, key=lambda domain: free[domain])]
