"""Event handlers for pods: update the cache and the queue, in the daemon and in plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.tables import ChangeListener
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.owned_pod_group import new_unit
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup, SchedulingQueue


class PodHandler(ChangeListener):
    """Keeps cache and queue in sync with the pods. Calls `forget` with removed pods of this scheduler."""

    def __init__(self, cache: ClusterCache, queue: SchedulingQueue, forget: Callable[[PodInfo], None]) -> None:
        self._cache, self._queue, self._forget = cache, queue, forget
        cache.tables.subscribe(self)

    def pods_left(self, pods: Sequence[PodInfo]) -> None:
        """Remove pods from the gang, or the units of their own, that they were."""
        for pod in pods:
            self._forget_pod(pod)

    def pods_joined(self, pods: Sequence[PodInfo]) -> None:
        """Add pods to their gang, or to units of their own."""
        # Each gang is looked at once, not with each of its pods.
        units = (self._add(pod) for pod in pods if not pod.ended or pod.gang)
        for unit in {unit.key: unit for unit in units if unit is not None}.values():
            self._queue.push(unit)

    def put(self, item: Mapping[str, Any]) -> None:
        """Add or update a pod."""
        metadata = item["metadata"]
        before = self._cache.tables.pods.get(f"{metadata['namespace']}/{metadata['name']}")
        if before is not None and before.uid != metadata["uid"]:
            self._forget_pod(before)
        claims, shape = (before.claims, before.shape) if before is not None else ((), None)
        pod = self._cache.put_pod(item)
        if pod is None or not pod.managed:
            return
        if pod.ended and not pod.gang:
            self._forget_pod(pod)  # the cache sees no deletion event either
        else:
            # A claim is made first, and the pod told its name afterwards: only then can the pod be placed.
            unit = self._add(pod, other=pod.claims != claims or pod.shape is not shape)
            if unit is not None:
                self._queue.push(unit)

    def drop(self, key: str) -> None:
        """Remove a pod, by `namespace/name`."""
        pod = self._cache.drop_pod(key)
        if pod is not None and pod.managed:
            self._forget_pod(pod)

    def returned(self, pod: PodInfo) -> bool:
        """Requeue a pod whose binding failed; return True if it will be retried."""
        unit = self._queue.units.get(pod.gang or pod.uid)
        if unit is None or not pod.waiting:
            return False
        self._queue.push(unit)
        return True

    def _forget_pod(self, pod: PodInfo) -> None:
        unit = self._queue.units.get(pod.gang or pod.uid)
        if unit is not None:
            fewer = unit.remove(pod)
            if not unit.pods:
                self._drop_unit(unit.key)
            elif fewer and unit.waiting:
                self._queue.push(unit)
        self._forget(pod)

    def _drop_unit(self, key: str) -> None:
        self._queue.drop(key)
        self._cache.tables.waits.wait_for("", key)

    def _add(self, pod: PodInfo, other: bool = False) -> QueuedPodGroup | None:
        """Update the unit of a pod; return it if it is to be looked at.

        `other`: its claims have other names now, or it asks for other things.
        """
        key = pod.gang or pod.uid
        unit = self._queue.units.get(key)
        if unit is None:
            if not pod.waiting and not pod.gang:
                return None
            unit = self._queue.units[key] = new_unit(pod, self._cache.tables.gang_needs)
        new = unit.add(pod)
        due: QueuedPodGroup | None = None
        if pod.waiting or (new and pod.gang):
            # A gang of hundreds is not looked at until the last of them is there, be it one that waits or that runs.
            whole = (new or other) and unit.complete
            if whole and (pod.waiting or any(each.waiting for each in unit.pods.values())):
                due = unit
        if pod.waiting:
            return due
        if not pod.gang and not pod.assumed and not pod.gated:
            self._drop_unit(key)
        elif pod.gated:
            # Once the gates are gone it is new.
            unit.remove(pod)
        return due
