"""Objects of other controllers whose pods start together: how many pods, by the objects themselves.

Pods whose object is not known, because its kind is not served or it does not say how many there are, are placed one by
one after a moment, in which a watch that is behind can catch up. Their condition says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from avactl.base.object_identity import namespaced_name
from avactl.contracts.scheduling import GangKind, PlacementPolicy
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.constraint import Constraint, Watch
from avactl.scheduler.objects.gang_kinds import read_needs
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import NotYetError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason

UNKNOWN_S = 5.0
"""Seconds for which a pod waits for its object to be seen."""


class OwnedGangs(Constraint):
    """Knows the objects, and lets their pods start once they are known."""

    title = "the object that it belongs to"
    declared = False
    pins_pods = False

    def __init__(self, cache: ClusterCache, policy: PlacementPolicy) -> None:
        super().__init__(cache, policy)
        self._kinds = cache.tables.gang_kinds = policy.gang_kinds
        self._due: dict[str, float] = {}
        """Gangs whose object is not known, and the monotonic time at which their pods are placed one by one."""

    @classmethod
    def enabled(cls, policy: PlacementPolicy) -> bool:
        """Return True if the scheduler's account may read such objects."""
        return bool(policy.gang_kinds)

    def watches(self) -> Iterable[Watch]:
        """Return the objects of all namespaces; API servers without their definitions do not serve them."""
        for kind in self._kinds:
            yield Watch(f"/apis/{kind.api_version}/{kind.resource}", _Objects(self, kind), optional=True)

    def check_ready(self, pod: PodInfo) -> None:
        """Return if the pod's object is known, or will not be. Raises NotYetError."""
        if not pod.owned or pod.gang in self.tables.gang_needs:
            return
        due = pod.seen + UNKNOWN_S
        if monotonic() < due:
            self._due[pod.gang] = max(due, self._due.get(pod.gang, 0.0))
            message = (
                f"waits for {quote(pod.gang)}: the scheduler does not know it, or not how many pods it has; they will "
                "be placed one by one"
            )
            raise NotYetError(message, f"owner {pod.gang}", WaitReason.GANG)

    def tick(self) -> None:
        """Let pods start whose object is still not known."""
        now = monotonic()
        for gang in [gang for gang, due in self._due.items() if now >= due]:
            del self._due[gang]
            self.event_occurred(f"owner {gang}")

    def changed(self, gang: str) -> None:
        """Look at the pods of an object again that has changed."""
        self._due.pop(gang, None)
        self.event_occurred(f"owner {gang}")
        self.tables.waits.woken.add(gang)


class _Objects:
    """The watch store of one kind."""

    def __init__(self, gangs: OwnedGangs, kind: GangKind) -> None:
        self._gangs, self._kind = gangs, kind
        self._known: set[str] = set()

    def put(self, item: Mapping[str, Any]) -> None:
        """Add or update an object."""
        key = namespaced_name(item)
        self._known.add(key)
        gang, needs, all_needs = self._gang(key), read_needs(self._kind, item), self._gangs.tables.gang_needs
        if all_needs.get(gang) == needs:
            return
        if needs is None:
            del all_needs[gang]
        else:
            all_needs[gang] = needs
        self._gangs.changed(gang)

    def remove(self, key: str) -> None:
        """Forget an object."""
        self._known.discard(key)
        if self._gangs.tables.gang_needs.pop(self._gang(key), None) is not None:
            self._gangs.changed(self._gang(key))

    def keys(self) -> set[str]:
        """Return the keys of the known objects."""
        return self._known

    def _gang(self, key: str) -> str:
        namespace, _, name = key.partition("/")
        return f"{namespace}/{self._kind.kind}/{name}"
