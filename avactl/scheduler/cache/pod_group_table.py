"""PodGroups of Kubernetes and their pods, of which either may be known first."""

from __future__ import annotations

from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.pod_groups import PodGroup
from avactl.scheduler.objects.pod_info import PodInfo


class GroupMembers:
    """A PodGroup and its pods."""

    __slots__ = ("group", "odd", "pods", "ran")

    def __init__(self) -> None:
        self.group: PodGroup | None = None
        self.pods: dict[str, PodInfo] = {}
        """Pods by UID: those that wait, and those that hold resources."""
        self.odd: dict[str, str] = {}
        """Disagreements of pods, by UID, with the PodGroup: it is scheduled only if there are none."""
        self.ran = False
        """True once one of its pods had a node."""

    def add(self, pod: PodInfo) -> None:
        """Add a pod."""
        self.pods[pod.uid] = pod
        self._compare(pod)

    def remove(self, pod: PodInfo) -> bool:
        """Remove a pod; return True if now all agree."""
        self.pods.pop(pod.uid, None)
        return self.odd.pop(pod.uid, None) is not None and not self.odd

    def replace(self, group: PodGroup | None) -> None:
        """Set the PodGroup, or None if it does not exist."""
        self.group = group
        for pod in self.pods.values():
            self._compare(pod)

    def _compare(self, pod: PodInfo) -> None:
        why = _disagreement(self.group, pod) if self.group is not None else ""
        if why:
            self.odd[pod.uid] = why
        else:
            self.odd.pop(pod.uid, None)


def _disagreement(group: PodGroup, pod: PodInfo) -> str:
    """Return what a pod has otherwise than its PodGroup: `validatePodGroup` of kube-scheduler."""
    name = quote(pod.name)
    if not pod.managed:
        return f"the pod {name} of another scheduler"
    if pod.priority != group.priority:
        return f"the priority {group.priority}, and its pod {name} {pod.priority}"
    policy = "Never" if pod.never_preempts else "PreemptLowerPriority"
    if group.preemption_policy not in ("", policy):
        return f"the preemption policy {group.preemption_policy}, and its pod {name} {policy}"
    return ""


class PodGroupTable:
    """PodGroups and their pods, by `namespace/name`."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupMembers] = {}
        self.changed: set[str] = set()
        """Keys of the PodGroups that have changed, or whose pods have, until the reader removes them."""

    def __getitem__(self, key: str) -> GroupMembers | None:
        """Return a PodGroup and its pods; None if nothing is known of it."""
        return self._groups.get(key)

    def put(self, key: str, group: PodGroup | None) -> list[PodInfo]:
        """Add, update or (None) remove a PodGroup; return its pods."""
        members = self._groups.setdefault(key, GroupMembers())
        members.replace(group)
        self.changed.add(key)
        self._clean(key, members)
        return list(members.pods.values())

    def add(self, pod: PodInfo) -> PodGroup | None:
        """Add a pod to its PodGroup; return the PodGroup if it is known."""
        members = self._groups.setdefault(pod.pod_group_key, GroupMembers())
        members.add(pod)
        return members.group

    def remove(self, pod: PodInfo) -> bool:
        """Remove a pod; return True if the others agree with their PodGroup now, as this one did not."""
        members = self._groups.get(pod.pod_group_key)
        if members is None:
            return False
        agree = members.remove(pod)
        self.changed.add(pod.pod_group_key)
        self._clean(pod.pod_group_key, members)
        return agree

    def note(self, pod: PodInfo) -> None:
        """Note a changed pod."""
        members = self._groups.get(pod.pod_group_key)
        if members is not None:
            members.ran = members.ran or bool(pod.node)
            self.changed.add(pod.pod_group_key)

    def _clean(self, key: str, members: GroupMembers) -> None:
        if members.group is None and not members.pods:
            del self._groups[key]
            self.changed.discard(key)

    def known(self) -> list[str]:
        """Return the keys of the PodGroups that exist."""
        return [key for key, members in self._groups.items() if members.group is not None]
