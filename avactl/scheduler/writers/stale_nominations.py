"""Cleanup of abandoned preemptions: disruption marks of pods that stay, and stale nominations.

A crash between marking and deleting, a deleted unit or a failed request can leave running pods marked as victims and
pending pods nominated for a node. Both are cleared here.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from avactl.kube import logs
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.writers.evictor import Evictor

STALE_AFTER_S = 20.0
"""Time in which a mark may precede its nomination: `avactl defrag` marks first, and then nominates."""


class StaleNominations:
    """Clears stale marks and nominations. `wanted` returns whether a unit, by key, has a nomination."""

    def __init__(self, cache: ClusterCache, evictor: Evictor, wanted: Callable[[str], bool]) -> None:
        self._cache, self._evictor, self._wanted = cache, evictor, wanted
        self._since: dict[str, float] = {}

    def tick(self) -> None:
        """Clear stale marks and nominations; call it periodically."""
        now, spared, cleared = monotonic(), list[PodInfo](), list[PodInfo]()
        for key in self._since.keys() - self._cache.tables.preemption_marks:
            del self._since[key]
        for key in list(self._cache.tables.preemption_marks):
            pod = self._cache.tables.pods.get(key)
            marked = pod is not None and pod.has_disruption_mark and bool(pod.node) and not (pod.ended or pod.deleting)
            promised = pod is not None and bool(pod.nominated) and pod.waiting
            if pod is None or not (marked or promised):
                self._cache.tables.preemption_marks.discard(key)
            elif pod.evicting or (promised and self._wanted(pod.gang or pod.uid)):
                self._since.pop(key, None)
            elif now - self._since.setdefault(key, now) > STALE_AFTER_S:
                self._since[key] = now
                (spared if marked else cleared).append(pod)
        if spared:
            logs.info("stale marks removed", pods=len(spared))
            self._evictor.spare(spared)
        if cleared:
            logs.info("stale nominations removed", pods=len(cleared))
            self._evictor.clear(cleared)
