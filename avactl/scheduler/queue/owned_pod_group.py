"""The pods of an object of another controller, as a unit of the queue.

They start together, as many of each role as the object needs. After that they are placed one by one, because that
controller, not the scheduler, decides what becomes of a job that has lost a pod: its pods are never deleted to start it
again as a whole, and a pod that replaces another does not wait for more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from avactl.scheduler.objects.gang_kinds import GangNeeds
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup


class OwnedPodGroup(QueuedPodGroup):
    """The existing pods of one object."""

    __slots__ = ("_needs", "resume")

    def __init__(self, key: str, needs: Mapping[str, GangNeeds]) -> None:
        """`needs`: by key of the unit; objects that are not known are not in it."""
        super().__init__(key, gang=True)
        self._needs = needs
        self.resume = 0
        """Number of its batches that the last decision, which took too long, tried in vain: the next begins after."""

    @property
    def owned(self) -> bool:
        """True: another controller makes the pods."""
        return True

    @property
    def known(self) -> bool:
        """True if the object is known, and the number of its pods."""
        return self.key in self._needs

    @property
    def complete(self) -> bool:
        """True if the pods that start next may all exist."""
        needs = self._needs.get(self.key)
        if needs is None:
            return True
        fewest = min(needs.pods.values()) if needs.in_turn else sum(needs.pods.values())
        return len(self.pods) >= fewest or any(map(_has_started, self.pods.values()))

    @property
    def missing(self) -> int:
        """Number of pods that the object needs and that have not started; without a known object, those that wait."""
        needs = self._needs.get(self.key)
        if needs is None:
            return len(self.waiting)
        started = Counter(pod.role for pod in self.pods.values() if _has_started(pod))
        return sum(max(0, number - started[role]) for role, number in needs.pods.items())

    @property
    def surplus(self) -> int:
        """Number of running pods that the object can do without."""
        return len(self.expendable)

    @property
    def expendable(self) -> list[PodInfo]:
        """Running pods beyond those that the object needs, the youngest of each role first."""
        needs = self._needs.get(self.key)
        found: list[PodInfo] = []
        for role, number in needs.pods.items() if needs is not None else ():
            running = [pod for pod in self.pods.values() if pod.role == role and _runs(pod)]
            running.sort(key=lambda pod: (pod.created, pod.name), reverse=True)
            found += running[: max(0, len(running) - number)]
        return found

    def needs_now(self, pod: PodInfo) -> bool:
        """Return True if the object cannot do without a pod that waits; if it is not known, it can do without none."""
        needs = self._needs.get(self.key)
        if needs is None:
            return True
        started = sum(1 for other in self.pods.values() if other.role == pod.role and _has_started(other))
        return started < needs.pods.get(pod.role, 0)

    def batches(self) -> list[list[PodInfo]]:
        """Return the waiting pods that can start now, each list together."""
        waiting = sorted(self.waiting, key=lambda pod: (pod.created, pod.name))
        needs = self._needs.get(self.key)
        if needs is None:
            return [[pod] for pod in waiting]
        result, of_gangs = [], set[str]()
        for roles in self._gangs(needs):
            of_gangs |= roles.keys()
            if self._started(roles):
                result += [[pod] for pod in waiting if pod.role in roles]
                continue
            first = [pod for role, number in roles.items() for pod in _of_role(waiting, role)[:number]]
            if len(first) == sum(roles.values()):
                result.append(first)
        return [*result, *([pod] for pod in waiting if pod.role not in of_gangs)]

    def incomplete(self) -> Iterator[tuple[list[PodInfo], int, int]]:
        """Yield the waiting pods of each gang that lacks pods, how many of those that it needs exist, and its size."""
        needs = self._needs.get(self.key)
        waiting = self.waiting
        for roles in self._gangs(needs) if needs is not None else ():
            mine = [pod for pod in waiting if pod.role in roles]
            there = sum(min(number, len(_of_role(mine, role))) for role, number in roles.items())
            if mine and there < sum(roles.values()) and not self._started(roles):
                yield mine, there, sum(roles.values())

    def _gangs(self, needs: GangNeeds) -> Iterable[Mapping[str, int]]:
        return [{role: number} for role, number in needs.pods.items()] if needs.in_turn else [needs.pods]

    def _started(self, roles: Mapping[str, int]) -> bool:
        return any(pod.role in roles and _has_started(pod) for pod in self.pods.values())


def new_unit(pod: PodInfo, needs: Mapping[str, GangNeeds]) -> QueuedPodGroup:
    """Return an empty unit for a pod: of its gang, or of its own. `needs`: by gang."""
    return OwnedPodGroup(pod.gang, needs) if pod.owned else QueuedPodGroup(pod.gang or pod.uid, bool(pod.gang))


def _of_role(pods: Iterable[PodInfo], role: str) -> list[PodInfo]:
    return [pod for pod in pods if pod.role == role]


def _runs(pod: PodInfo) -> bool:
    """Return True if the pod holds resources, and will go on to."""
    return bool(pod.node or pod.assumed) and not (pod.ended or pod.deleting or pod.evicting)


def _has_started(pod: PodInfo) -> bool:
    """Return True if the pod runs, or has ended by itself: its controller has seen the gang start."""
    return (pod.ended and not pod.deleting) or _runs(pod)
