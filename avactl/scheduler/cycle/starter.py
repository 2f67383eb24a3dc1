"""Start of placed pods: assume them in the cache, and request their bindings."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from avactl.hardware.placement.allocation import Booking
from avactl.scheduler import metrics
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.statement import Statement
from avactl.scheduler.interfaces import BindingSink, BindRequest
from avactl.scheduler.objects.pod_info import PodInfo


class PodStarter:
    """Hands placed pods over to the binder."""

    def __init__(self, cache: ClusterCache, binder: BindingSink) -> None:
        self._cache, self._binder = cache, binder

    def start(self, pods: Sequence[PodInfo], bookings: Sequence[Booking]) -> None:
        """Assume all of the pods, or none, and request their bindings. Raises BookingError."""
        if len(pods) == 1:
            allocations = [self._cache.take(pods[0], bookings[0])]  # nothing to roll back: saves 3% of a decision
        else:
            with Statement(self._cache) as statement:
                allocations = [statement.allocate(pod, booking) for pod, booking in zip(pods, bookings, strict=True)]
                statement.commit()
        now = monotonic()
        for pod, claims in zip(pods, allocations, strict=True):
            metrics.DECISIONS.labels("placed").inc()
            metrics.QUEUE_SECONDS.observe(now - pod.seen)
            volumes = self._cache.volumes.unbound_claims(pod) if pod.volumes else ()
            self._binder.put(BindRequest(pod, pod.assumed, pod.devices or "", now, tuple(claims), volumes))

    def deallocate_claims(self, pods: Sequence[PodInfo]) -> None:
        """Deallocate claims of pending pods: their devices were chosen earlier, and now prevent placement."""
        concerned = [pod for pod in pods if self._cache.claims.concern(pod)]
        for pod, claims in [(pod, self._cache.dra.demand(pod).held) for pod in concerned]:
            self._binder.give_back(pod, claims)
