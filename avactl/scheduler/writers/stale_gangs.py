"""Partial gangs: complete them, or release their GPUs."""

from __future__ import annotations

from time import monotonic

from avactl.kube import logs
from avactl.scheduler.objects.pod_info import PARTIAL
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup, SchedulingQueue, is_partial
from avactl.scheduler.writers.pod_reporter import PodReporter
from avactl.scheduler.writers.pod_stopper import PodStopper

SETTLING_TIME_S = 2.0
"""Time after the last pod of a gang was created until missing pods are reported."""


class StaleGangs:
    """Handles gangs left partial by a crash, a lost node or a deleted pod."""

    def __init__(self, stopper: PodStopper, queue: SchedulingQueue, reporter: PodReporter, grace: float) -> None:
        self._stopper, self._queue, self._reporter, self._grace = stopper, queue, reporter, grace

    def tick(self) -> None:
        """Track partial gangs, and evict those that have been partial for too long."""
        now = monotonic()
        for unit in self._queue:
            if not unit.gang:
                continue
            self._report_incomplete(unit, now)
            started = unit.pod_group is not None and unit.pod_group.started
            if unit.owned or started or not is_partial(unit):
                # A PodGroup that has started is never restarted, and gets no turn before others.
                unit.partial = None
            elif unit.partial is None:
                unit.partial = now
                if unit.waiting:
                    self._queue.push(unit)
            elif now - unit.partial > self._grace and not (unit.pod_group is not None and unit.pod_group.started):
                # `minCount` of a PodGroup stops no pods: it counts for those that start.
                self._restart_gang(unit)

    def _report_incomplete(self, unit: QueuedPodGroup, now: float) -> None:
        """Report gangs with pods that do not exist, unless they are still being created."""
        if now - unit.changed < SETTLING_TIME_S:
            return
        for waiting, there, size in unit.incomplete():
            for pod in waiting:
                message = f"waits for the other pods of its gang: {there} of {size} exist"
                self._reporter.unschedulable(pod, message, WaitReason.GANG)

    def _restart_gang(self, unit: QueuedPodGroup) -> None:
        running = [pod for pod in unit.pods.values() if pod.node and not (pod.ended or pod.deleting)]
        note = f"{len(running)} of {unit.size} pods of the gang run and the others do not fit: the gang is restarted"
        if running:
            logs.warn("partial gang stopped", gang=unit.key, running=len(running), size=unit.size)
            self._stopper.stop(running, PARTIAL, note, "partial-gang")
        unit.partial = None
