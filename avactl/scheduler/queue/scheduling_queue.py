"""Scheduling queue: active pod groups by priority and age, and unschedulable ones that wait for a change.

Units (pods or gangs) with equal requests wait in one group. After resources were freed, only the first of each group is
tried; if it does not fit, neither do the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from time import monotonic

from avactl.scheduler.objects.pod_groups import PodGroup
from avactl.scheduler.objects.pod_info import PodInfo

_Entry = tuple[int, str, int, str]
MAX_STALE_ENTRIES = 1000
"""Stale entries beyond the number of units, above which all stale entries are removed."""


class QueuedPodGroup:
    """A single pod, or the existing pods of a gang."""

    __slots__ = ("changed", "entry", "gang", "group", "key", "partial", "pods", "size", "sizes")

    def __init__(self, key: str, gang: bool) -> None:
        self.key = key
        self.gang = gang
        self.pods: dict[str, PodInfo] = {}
        """Pods by UID; for a gang, including running and ended ones."""
        self.group: Hashable = None
        """Group of unschedulable units that it is in or was taken from."""
        self.partial: float | None = None
        """Monotonic time since which only a part of the gang has been running."""
        self.size = 1
        """Pods that must run together: as many as any of them says."""
        self.sizes: Counter[int] = Counter()
        """Number of pods by what they say."""
        self.changed = 0.0
        """Monotonic time at which the last pod was added."""
        self.entry = 0
        """Number of its valid entry in the queue; 0 for none."""

    def add(self, pod: PodInfo) -> bool:
        """Add a pod; return True if it is new."""
        if pod.uid in self.pods:
            return False
        self.pods[pod.uid] = pod
        self.sizes[pod.gang_size] += 1
        self.size, self.changed = max(self.size, pod.gang_size), monotonic()
        return True

    def remove(self, pod: PodInfo) -> bool:
        """Remove a pod; return True if the remaining pods declare a smaller gang size."""
        known = self.pods.pop(pod.uid, None)
        if known is None:
            return False
        self.sizes[known.gang_size] -= 1
        if self.sizes[known.gang_size]:
            return False
        del self.sizes[known.gang_size]
        before, self.size = self.size, max((1, *self.sizes))
        return self.size < before

    @property
    def owned(self) -> bool:
        """True if it is the gang of an object of another controller (`OwnedPodGroup`)."""
        return False

    @property
    def complete(self) -> bool:
        """True if the pods that start next may all exist."""
        return len(self.pods) >= self.size

    @property
    def namespace(self) -> str:
        """Namespace of its pods; empty if there are none."""
        return next((pod.namespace for pod in self.pods.values()), "")

    @property
    def waiting(self) -> list[PodInfo]:
        """Pods to be placed."""
        return [pod for pod in self.pods.values() if pod.waiting]

    @property
    def within(self) -> str:
        """Topology level of which one domain must hold all pods; empty for none."""
        return next((pod.within for pod in self.pods.values() if pod.within), "")

    @property
    def pod_group(self) -> PodGroup | None:
        """The PodGroup that makes its pods a gang; None if a label does, or if it is a single pod."""
        return next((pod.group for pod in self.pods.values()), None)

    @property
    def missing(self) -> int:
        """Number of required pods that are not running; negative if more than the required pods run.

        Surplus pods do not replace the first one of a role.
        """
        return max(self.size - self._held_pods, self._missing_first_pods)

    @property
    def surplus(self) -> int:
        """Number of running pods that it can do without."""
        if self.pod_group is not None and self.pod_group.together:
            return 0
        return max(0, self._held_pods + self._missing_first_pods - self.size)

    @property
    def expendable(self) -> list[PodInfo]:
        """Running pods that are given up first, in this order; empty: those with the highest index."""
        return []

    def incomplete(self) -> Iterator[tuple[list[PodInfo], int, int]]:
        """Yield the waiting pods of each gang that lacks pods, how many of those that it needs exist, and its size."""
        waiting, need = self.waiting, self.missing
        if waiting and need > len(waiting):
            yield waiting, self.size - need + len(waiting), self.size

    @property
    def _held_pods(self) -> int:
        running = done = 0
        for pod in self.pods.values():
            if pod.phase == "Succeeded":
                done += 1
            elif (pod.node or pod.assumed) and not (pod.ended or pod.deleting or pod.evicting):
                running += 1
        if done and self.pod_group is not None and sum(pod.phase != "Failed" for pod in self.pods.values()) > self.size:
            # The Job makes as many pods at a time as `minCount` says, and more once they have succeeded: those are
            # the next gang.
            return running
        return running + done

    @property
    def _missing_first_pods(self) -> int:
        return sum(1 for pod in self.pods.values() if pod.first and pod.waiting)


def is_partial(unit: QueuedPodGroup) -> bool:
    """Return True if some members of a gang hold resources while required members do not."""
    holding = any(pod.node and not (pod.ended or pod.deleting or pod.evicting) for pod in unit.pods.values())
    return holding and unit.missing > 0 and not any(pod.assumed for pod in unit.pods.values())


class SchedulingQueue:
    """Units by key: `active` units are tried next, the others wait in groups."""

    def __init__(self) -> None:
        self.units: dict[str, QueuedPodGroup] = {}
        self._active: list[_Entry] = []
        self._deferred: dict[str, list[_Entry]] = {}
        """Units that come after the active ones, by namespace."""
        self._groups: dict[Hashable, list[_Entry]] = {}
        self._numbers = count(1)
        self._entries = 0
        """Upper bound of the number of entries, stale ones included."""
        self._turns: set[str] = set()
        """Units that were active after the last `retry` and have not been tried since."""
        self._owed: dict[str, set[Hashable]] = {}
        """Groups that are to be retried once the deferred units of a namespace have been tried."""
        self.retried = -1
        """Change epoch of the last `retry`."""

    def _new_entry(self, unit: QueuedPodGroup) -> _Entry:
        pods = unit.pods.values()
        first = min(pods, key=lambda pod: pod.created)
        # A partial gang holds GPUs without making progress, so it comes first.
        urgent = 1 << 40 if unit.partial is not None else 0
        priority = max(pod.priority for pod in pods) + urgent
        if unit.gang and unit.missing <= 0:
            # It only grows: units that have not started yet come first.
            priority -= 1 << 40
        unit.entry = next(self._numbers)
        return -priority, first.created, unit.entry, unit.key

    def _add_entry(self, entries: list[_Entry], unit: QueuedPodGroup) -> None:
        """Add an entry for a unit, which invalidates its earlier ones: they stay until there are too many of them."""
        heappush(entries, self._new_entry(unit))
        self._entries += 1
        if self._entries > 2 * len(self.units) + MAX_STALE_ENTRIES:
            heaps = (self._active, *self._deferred.values(), *self._groups.values())
            for heap in heaps:
                heap[:] = filter(self._unit_of_valid_entry, heap)
                heapify(heap)
            self._groups = {group: heap for group, heap in self._groups.items() if heap}
            self._deferred = {namespace: heap for namespace, heap in self._deferred.items() if heap}
            self._entries = sum(map(len, heaps))

    def _unit_of_valid_entry(self, entry: _Entry) -> QueuedPodGroup | None:
        unit = self.units.get(entry[3])
        return unit if unit is not None and unit.entry == entry[2] else None

    def push(self, unit: QueuedPodGroup) -> None:
        """Make a unit active."""
        unit.group = None
        self.units[unit.key] = unit
        self._add_entry(self._active, unit)

    def pop(self) -> QueuedPodGroup | None:
        """Return the first active unit; it stays in the queue's index."""
        if self._owed and not self._turns:
            self._retry_owed()
        while self._active:
            unit = self._unit_of_valid_entry(heappop(self._active))
            if unit is not None:
                unit.entry = 0
                self._turns.discard(unit.key)
                return unit
        return None

    def defer(self, unit: QueuedPodGroup) -> None:
        """Defer a unit until no other namespace has active units, or until its namespace is readmitted."""
        self._add_entry(self._deferred.setdefault(unit.namespace, []), unit)

    @property
    def deferred(self) -> list[str]:
        """Namespaces with deferred units."""
        return list(self._deferred)

    def readmit(self, namespace: str) -> None:
        """Activate the deferred units of a namespace."""
        for entry in self._deferred.pop(namespace, ()):
            unit = self._unit_of_valid_entry(entry)
            if unit is not None:
                heappush(self._active, entry)
                self._turns.add(unit.key)

    def pop_deferred(self) -> QueuedPodGroup | None:
        """Return the first deferred unit, or None."""
        while self._deferred:
            namespace = min(self._deferred, key=lambda name: self._deferred[name][0])
            entries = self._deferred[namespace]
            unit = self._unit_of_valid_entry(heappop(entries))
            if not entries:
                del self._deferred[namespace]
            if unit is not None:
                unit.entry = 0
                return unit
        return None

    def mark_unschedulable(self, unit: QueuedPodGroup, group: Hashable) -> None:
        """Mark a unit as unschedulable."""
        unit.group = group
        self._turns.discard(unit.key)
        self._add_entry(self._groups.setdefault(group, []), unit)

    def suspend(self, unit: QueuedPodGroup) -> None:
        """Suspend a unit that waits for its own change, such as more pods."""
        unit.entry = 0
        unit.group = None
        self._turns.discard(unit.key)

    def activate_next(self, group: Hashable) -> QueuedPodGroup | None:
        """Activate and return the next unit of a group after one of them fitted."""
        unit = self._first_of(group)
        if unit is not None:
            heappop(self._groups[group])
            self._add_entry(self._active, unit)
            self._first_of(group)  # drop an empty group
        return unit

    def _first_of(self, group: Hashable) -> QueuedPodGroup | None:
        """Return the first unit of a group."""
        entries = self._groups.get(group)
        while entries:
            unit = self._unit_of_valid_entry(entries[0])
            if unit is not None:
                return unit
            heappop(entries)
        self._groups.pop(group, None)
        return None

    @property
    def retrying(self) -> bool:
        """True while units that were active after the last `retry` have not been tried, except deferred ones."""
        return bool(self._turns)

    def retry(self, freed: int) -> None:
        """Activate the first unit of each group after resources were freed.

        Call it while nothing is `retrying`, so that units that come later than those of the groups get a turn, too.
        For the same reason the groups of a namespace that has deferred units wait until these have been tried.
        """
        self.retried = freed
        self._turns = {unit.key for entry in self._active if (unit := self._unit_of_valid_entry(entry)) is not None}
        for group in list(self._groups):
            unit = self._first_of(group)
            if unit is None:
                continue
            if unit.namespace in self._deferred:
                self._owed.setdefault(unit.namespace, set()).add(group)
            else:
                self._retry_group(group)

    def _retry_group(self, group: Hashable) -> None:
        unit = self.activate_next(group)
        if unit is not None:
            self._turns.add(unit.key)

    def _retry_owed(self) -> None:
        """Activate the first unit of each group that `retry` has left out, where no unit is deferred any more."""
        for namespace in self._owed.keys() - self._deferred.keys():
            for group in self._owed.pop(namespace):
                self._retry_group(group)

    def drop(self, key: str) -> None:
        """Remove a unit."""
        self.units.pop(key, None)
        self._turns.discard(key)

    def __iter__(self) -> Iterator[QueuedPodGroup]:
        return iter(list(self.units.values()))

    def lengths(self) -> tuple[int, int]:
        """Return the number of active pods and of waiting pods."""
        entries = (entry for heap in (self._active, *self._deferred.values()) for entry in heap)
        active = sum(len(unit.waiting) for entry in entries if (unit := self._unit_of_valid_entry(entry)))
        return active, sum(len(unit.waiting) for unit in self.units.values()) - active
