"""Tables of the cluster cache: nodes, pods, the placement state, and the change events that its parts listen to.

`ClusterCache` writes the tables. Its parts (`requests`, `claim_bookings`, `team_usage`, `volume_binding`,
`volume_limits`) read them, count their own changes in `change_epoch`, and do not depend on the cache. Constraints read
them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from avactl.contracts import names
from avactl.contracts.scheduling import GangKind
from avactl.hardware.placement.allocation import AllocationState
from avactl.hardware.placement.masks import Mask, intersect_masks, preferred_masks_first
from avactl.hardware.placement.score import Objective, Scorer
from avactl.scheduler.cache.failed_pods import SUSPECT_JOBS, FailedPods
from avactl.scheduler.cache.pod_group_table import PodGroupTable
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.gang_kinds import GangNeeds
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.pod_groups import PodGroup
from avactl.scheduler.objects.pod_info import PodInfo

BASE_RESOURCES = ("cpu", "memory", "pods", "ephemeral-storage")


class ChangeListener:
    """Receiver of change events. Each method does nothing unless a listener overrides it."""

    def pod_added(self, pod: PodInfo, node: str) -> None:
        """Handle a pod that now holds resources of a node."""

    def pod_removed(self, pod: PodInfo, node: str) -> None:
        """Handle a pod that no longer holds resources of a node."""

    def pod_hidden(self, pod: PodInfo, node: str) -> None:
        """Handle a pod whose eviction is being tried: it holds its resources, but does not count until `pod_shown`."""

    def pod_shown(self, pod: PodInfo, node: str) -> None:
        """Handle a pod that counts again."""

    def pod_updated(self, pod: PodInfo) -> None:
        """Handle a pod that the API server has added, changed or removed, on a node or not."""

    def pods_left(self, pods: Sequence[PodInfo]) -> None:
        """Handle pods whose PodGroup is about to change their gang: `gang` and its size are those of before."""

    def pods_joined(self, pods: Sequence[PodInfo]) -> None:
        """Handle pods whose gang is now that of their changed PodGroup, or none."""

    def pod_relabelled(self, pod: PodInfo, labels: Mapping[str, str], deleting: bool) -> None:
        """Handle changed labels or deletion of a pod on a node; the arguments are the previous values."""

    def nodes_changed(self) -> None:
        """Handle nodes that were added, removed or relabelled, or that have other slots."""

    def namespace_changed(self, name: str, before: Mapping[str, str]) -> None:
        """Handle changed labels of a namespace; the arguments are the previous ones."""

    def claim_changed(self, claim: str) -> None:
        """Handle a ResourceClaim, by `namespace/name`, whose devices changed or that lost a user."""

    def state_cleared(self) -> None:
        """Handle a placement state that is about to be rebuilt."""


_EVENTS = [name for name in vars(ChangeListener) if not name.startswith("_")]


class EventWaits:
    """Scheduling units that wait for an event, such as a change of an object. A unit waits for one event at a time."""

    def __init__(self) -> None:
        self._units: dict[str, set[str]] = {}
        self._events: dict[str, str] = {}
        self.woken: set[str] = set()
        """Units whose event has occurred, until the reader clears the set."""

    def __len__(self) -> int:
        return len(self._events)

    def wait_for(self, event: str, unit: str) -> None:
        """Register a unit to be retried once the event occurs; empty: cancel its wait."""
        before = self._events.pop(unit, "")
        if before:
            self._units[before].discard(unit)
            if not self._units[before]:
                del self._units[before]
        if event:
            self._events[unit] = event
            self._units.setdefault(event, set()).add(unit)

    def occurred(self, event: str) -> None:
        """Wake the units that wait for an event."""
        for unit in self._units.pop(event, ()):
            del self._events[unit]
            self.woken.add(unit)


class ClusterTables:
    """Nodes and pods by name, and the placement state. The state must not be used while `stale`."""

    def __init__(self, levels: tuple[str, ...], objective: Objective) -> None:
        self.levels = levels
        self.objective: Objective = objective
        self.pools: dict[str, ConfiguredPool] = {}
        self.nodes: dict[str, NodeInfo] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        """Labels by namespace."""
        self.quota_teams: Mapping[str, str] = {}
        """Team by namespace, for namespaces that a quota names."""
        self.pods: dict[str, PodInfo] = {}
        """Pods that hold resources or that avactl schedules, by `namespace/name`."""
        self.pods_by_node: dict[str, dict[str, PodInfo]] = {}
        """Pods that hold resources, by node and UID."""
        self.volume_users: dict[str, dict[str, str]] = {}
        """Node of each pod (by UID) that uses a PersistentVolumeClaim, by the claim's `namespace/name`."""
        self.claim_users: dict[str, dict[str, PodInfo]] = {}
        """Pods (by UID) on nodes that use a ResourceClaim, by the claim's `namespace/name`."""
        self.nominated: set[str] = set()
        """Units with nominated pods that wait, until the preemptor takes them over."""
        self.preemption_marks: set[str] = set()
        """Keys of pods that carry a mark of a preemption: victims and nominated pods."""
        self.gang_kinds: tuple[GangKind, ...] = ()
        """Kinds of other controllers whose pods start together."""
        self.gang_needs: dict[str, GangNeeds] = {}
        """The pods that such an object starts with, by gang (`namespace/Kind/name`)."""
        self.unhealthy_pods: set[str] = set()
        """Keys of pods with a device that their kubelet reports as unhealthy."""
        self.pod_groups = PodGroupTable()
        self.failed = FailedPods()
        self.waits = EventWaits()
        self.stale = True
        """True until the placement state is rebuilt."""
        self.change_epoch = 0
        """Number of changes that may help pods that wait."""
        self.offer_epoch = 0
        """Number of changes of what nodes offer."""
        self.node_epoch = 0
        """Number of times that nodes were added, removed or relabelled, or got other slots."""
        self.state = AllocationState(BASE_RESOURCES, levels)
        self.scorer = Scorer(self.state, objective=objective)
        self._handlers: dict[str, list[Callable[..., None]]] = {event: [] for event in _EVENTS}

    def reset_state(self, resources: tuple[str, ...]) -> None:
        """Replace the placement state by an empty one of these resources."""
        self.state = AllocationState(resources, self.levels)
        for handle in self._handlers["state_cleared"]:
            handle()

    def reset_scorer(self, keep_workload: bool) -> None:
        """Replace the scorer by one for the current state; keep or reset the learned workload."""
        workload = self.scorer.workload
        self.scorer = Scorer(self.state, objective=self.objective)
        if keep_workload:
            self.scorer.workload = workload

    # -- reading ----------------------------------------------------------------------------------------------------

    def mask(self, nodes: Iterable[str]) -> Mask:
        """Return the mask of these nodes; nodes without a slot are skipped."""
        result = np.zeros(len(self.state.free), np.bool_)
        result[[slot for name in nodes if (slot := self.state.slots.get(name)) is not None]] = True
        return result

    def team_of(self, namespace: str) -> str:
        """Return the team of a namespace by quota or label, otherwise the namespace itself."""
        labels = self.namespaces.get(namespace, {})
        return self.quota_teams.get(namespace) or labels.get(names.TEAM_LABEL) or namespace

    def suspects_for(self, pod: PodInfo) -> list[str]:
        """Return the nodes that have failed pods of several jobs: of several teams, or of the team of this pod.

        A team alone, which can make pods that fail, makes only itself avoid a node.
        """
        suspects = self.failed.suspects()
        team = self.team_of(pod.namespace) if suspects else ""
        result = []
        for node, failed in suspects.items():
            teams = [self.team_of(each.namespace) for each in failed]
            if len(set(teams)) >= SUSPECT_JOBS or teams.count(team) >= SUSPECT_JOBS:
                result.append(node)
        return result

    def trusted_first(self, pod: PodInfo, masks: Sequence[Mask | None]) -> list[Mask | None]:
        """Return the masks without the nodes on which pods have failed, then the masks as they are.

        Nodes that failed pods of several jobs are tried again before those that failed a pod of this pod's job, and of
        these first those that failed fewest.
        """
        suspects = self.suspects_for(pod)
        result = preferred_masks_first(~self.mask(suspects) if suspects else None, masks)
        others = list(result)
        for nodes in (self.failed.worst_nodes_of(pod.owner), self.failed.nodes_of(pod.owner)):
            if nodes:
                sound = ~self.mask(nodes)
                result = [*(intersect_masks(mask, sound) for mask in others), *result]
        return result

    def pool_of(self, info: NodeInfo) -> ConfiguredPool | None:
        """Return the pool of a node."""
        return self.pools.get(info.labels.get(names.POOL_LABEL, ""))

    def model_of(self, node: str) -> str:
        """Return the GPU model of a node by its label or its pool; empty if it is unknown."""
        info = self.nodes[node]
        pool = self.pool_of(info)
        return info.labels.get(names.GPU_LABEL) or (pool.machine.gpu if pool else "")

    # -- changes ----------------------------------------------------------------------------------------------------

    def subscribe(self, listener: ChangeListener) -> None:
        """Send all further change events that a listener handles to it too."""
        for event, handlers in self._handlers.items():
            if getattr(type(listener), event) is not getattr(ChangeListener, event):
                handlers.append(getattr(listener, event))

    def add_pod(self, pod: PodInfo, node: str) -> None:
        """Add a pod to a node."""
        self.pods_by_node.setdefault(node, {})[pod.uid] = pod
        for name in pod.volumes:
            self.volume_users.setdefault(f"{pod.namespace}/{name}", {})[pod.uid] = node
        for _, name in pod.claims:
            self.claim_users.setdefault(f"{pod.namespace}/{name}", {})[pod.uid] = pod
        for handle in self._handlers["pod_added"]:
            handle(pod, node)

    def remove_pod(self, pod: PodInfo, node: str) -> bool:
        """Remove a pod from a node; return whether it was there."""
        here = self.pods_by_node.get(node)
        if here is None or here.pop(pod.uid, None) is None:
            return False
        if not here:
            del self.pods_by_node[node]
        for name in pod.volumes:
            key = f"{pod.namespace}/{name}"
            nodes = self.volume_users.get(key, {})
            nodes.pop(pod.uid, None)
            if not nodes:
                self.volume_users.pop(key, None)
        for handle in self._handlers["pod_removed"]:
            handle(pod, node)
        for _, name in pod.claims:
            key = f"{pod.namespace}/{name}"
            users = self.claim_users.get(key, {})
            if users.pop(pod.uid, None) is not None:
                if not users:
                    del self.claim_users[key]
                self.claim_changed(key)
        return True

    def hide_pod(self, pod: PodInfo, node: str) -> None:
        """Announce a pod whose eviction is being tried."""
        for handle in self._handlers["pod_hidden"]:
            handle(pod, node)

    def show_pod(self, pod: PodInfo, node: str) -> None:
        """Announce a pod whose eviction is no longer being tried."""
        for handle in self._handlers["pod_shown"]:
            handle(pod, node)

    def update_pod(self, pod: PodInfo) -> None:
        """Announce a pod that was added, changed or removed."""
        for handle in self._handlers["pod_updated"]:
            handle(pod)

    def join_pods(self, pods: Sequence[PodInfo], group: PodGroup | None) -> None:
        """Let pods take over what their PodGroup asks for now, and announce those whose gang changes by it."""
        changed = [pod for pod in pods if pod.would_change(group)]
        for handle in self._handlers["pods_left"]:
            handle(changed)
        for pod in pods:
            pod.join(group)
        for handle in self._handlers["pods_joined"]:
            handle(changed)

    def relabel_pod(self, pod: PodInfo, labels: Mapping[str, str], deleting: bool) -> None:
        """Announce changed labels or deletion of a pod on a node; the arguments are the previous values."""
        for handle in self._handlers["pod_relabelled"]:
            handle(pod, labels, deleting)

    def put_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Add, change or (None) remove a namespace."""
        before = self.namespaces.get(name)
        if labels is None:
            self.namespaces.pop(name, None)
        else:
            self.namespaces[name] = labels
        if before != labels:
            for handle in self._handlers["namespace_changed"]:
                handle(name, before or {})

    def claim_changed(self, claim: str) -> None:
        """Announce a ResourceClaim, by `namespace/name`, whose devices changed or that lost a user."""
        for handle in self._handlers["claim_changed"]:
            handle(claim)

    def nodes_changed(self) -> None:
        """Announce nodes that were added, removed or relabelled."""
        for handle in self._handlers["nodes_changed"]:
            handle()
