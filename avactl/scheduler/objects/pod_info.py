"""Pods as the scheduler caches them: only the fields it needs, because there are tens of thousands."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from sys import intern
from time import monotonic
from typing import Any, NamedTuple

from avactl.base.object_identity import controller_of, namespaced_name
from avactl.contracts import names
from avactl.contracts.pod_annotations import (
    DEVICES,
    GANG_SIZE,
    JOB_INDEX,
    PREEMPTIBLE,
    PREEMPTION,
    SPOT_FROM,
    STOP_WHEN_DONE,
    TIMEOUT,
    USER,
    WITHIN,
)
from avactl.kube import logs
from avactl.kube.timestamps import unix_time_or
from avactl.scheduler.objects.gang_kinds import OwnedGang
from avactl.scheduler.objects.gangs import gang_of, owner_of
from avactl.scheduler.objects.limits import CONSTRAINT_ANNOTATIONS, bounded, quote, stripped
from avactl.scheduler.objects.pod_groups import NO_GANG, PodGroup
from avactl.scheduler.objects.pod_requirements import PodRequirements, as_it_runs, gang_size, requirements_of
from avactl.scheduler.objects.wait_reasons import WaitReason

DISRUPTED, PREEMPTED = "DisruptionTarget", "PreemptionByScheduler"
"""Condition of evicted pods, and its reason for preemption, as in kube-scheduler."""
BY_OTHERS = "?"
"""Preemption of a pod that another scheduler has marked."""
PARTIAL = "PartialGang"
"""Reason of the condition if a partial gang is restarted."""
FAULT = "NodeFault"
"""Reason of the condition if its node, or a GPU of it, has a fault."""
_ENDED = ("Succeeded", "Failed")
NO_ENTRIES: Mapping[str, str] = {}


class ExtendedClaim(NamedTuple):
    """The ResourceClaim that holds the devices behind a pod's extended resources."""

    name: str
    resources: frozenset[str]
    """Extended resources whose devices it holds: device plugins provide the others."""


class PodInfo:
    """One pod."""

    __slots__ = (
        "annotations",
        "assumed",
        "claims",
        "created",
        "deleting",
        "devices",
        "done_at",
        "done_seen",
        "ends",
        "ephemeral_claims",
        "evicting",
        "extended",
        "gang",
        "gang_size",
        "gated",
        "grace",
        "group",
        "has_disruption_mark",
        "index",
        "key",
        "labels",
        "managed",
        "member",
        "message",
        "name",
        "namespace",
        "never_preempts",
        "node",
        "nominated",
        "owned",
        "owner",
        "pending_message",
        "pending_reason",
        "phase",
        "pod_group",
        "preempted_for",
        "preemptible",
        "preemption",
        "priority",
        "reclaim_only",
        "reported",
        "role",
        "seen",
        "serving",
        "shape",
        "started",
        "stops_with",
        "timed_out",
        "timeout",
        "told_extended",
        "uid",
        "unhealthy_device",
        "volumes",
        "wait_reason",
        "within",
    )

    def __init__(self, item: Mapping[str, Any], seen: float, refused: str = "") -> None:
        """`item` is within the limits of `limits`; `refused`: the reason if it was truncated and is not placed."""
        metadata, spec = item["metadata"], item["spec"]
        notes = metadata.get("annotations") or NO_ENTRIES
        self.namespace = intern(metadata["namespace"])
        self.name: str = metadata["name"]
        self.key = f"{self.namespace}/{self.name}"
        self.uid: str = metadata["uid"]
        self.managed: bool = spec.get("schedulerName") == names.SCHEDULER_NAME
        self.created: str = metadata["creationTimestamp"]
        self.priority: int = spec.get("priority") or 0
        self.member = intern(notes.get(USER.name, ""))
        """Member of the team for whom it runs, whose limit it counts for; empty: for the team."""
        self.seen = seen
        """Monotonic time at which the scheduler first saw the pod."""
        self.shape: PodRequirements = self.asks(item, refused)
        self.assumed = ""
        """Node of a binding in flight."""
        self.message, self.wait_reason = "", ""
        """Message and reason of its PodScheduled condition while it is pending."""
        self.reported = 0.0
        """Monotonic time at which that message was written."""
        self.pending_message, self.pending_reason = "", WaitReason.UNSCHEDULABLE
        """Next message and reason to write."""
        self.owner = owner_of(metadata)
        """Its gang, Job or controller: nodes that fail one of its pods are avoided by the others."""
        self.pod_group: str = (spec.get("schedulingGroup") or NO_ENTRIES).get("podGroupName") or ""
        """Its PodGroup of scheduling.k8s.io, in its namespace."""
        self.group: PodGroup | None = None
        """Its PodGroup, if that makes it a member of a gang."""
        self.gang, self.gang_size, self.within = "", 0, ""
        self.owned, self.role = False, ""
        """True if its gang is that of an object of another controller, and its role there."""
        self.index = -1
        """Index in its indexed Job, -1 if it has none."""
        self.claims: tuple[tuple[str, str], ...] = ()
        """Name in the pod (empty for that of its extended resources), and name of the ResourceClaim (empty until it is
        created)."""
        self.extended: ExtendedClaim | None = None
        """The claim of its extended resources, once it is placed on a node where they need one."""
        self.told_extended = False
        """True if the pod's status names such a claim, which it cannot cease to do."""
        self.volumes, self.ephemeral_claims = _volume_claims(spec, self.name)
        """PersistentVolumeClaims by name, and those of generic ephemeral volumes."""
        self.preemptible = notes.get(PREEMPTIBLE.name) != "false"
        self.reclaim_only = spec.get("priorityClassName") == names.WORKSPACE_PRIORITY and PREEMPTIBLE.name not in notes
        """True if only other teams may preempt it, to reclaim borrowed GPUs: somebody works in it."""
        self.serving: bool = spec.get("priorityClassName") == names.SERVING_PRIORITY
        self.never_preempts: bool = spec.get("preemptionPolicy") == "Never"
        """True for preemptionPolicy Never."""
        self.grace: int = spec.get("terminationGracePeriodSeconds", 30)
        """Termination grace period, seconds."""
        self.evicting = False
        """True while this scheduler is evicting it."""
        self.nominated = ""
        """Nominated node."""
        self.preemption = ""
        """The preemption that it is part of, as victim or as preemptor (annotation `PREEMPTION`)."""
        self.preempted_for = ""
        """The preemption of which it is a victim, `BY_OTHERS` for another scheduler's; empty if it is no victim."""
        self.has_disruption_mark = False
        """True if this scheduler has set its DisruptionTarget condition."""
        seconds = notes.get(TIMEOUT.name, "")
        self.timeout = int(seconds) if self.managed and len(seconds) < 10 and seconds.isdecimal() else 0
        """Seconds that it may run; 0: for ever."""
        self.timed_out = False
        self.stops_with: str = notes.get(STOP_WHEN_DONE.name, "") if self.managed and _is_first(metadata) else ""
        """Container of a workspace that is stopped once it has ended with exit code 0."""
        self.done_at = _clean_exit(item.get("status") or NO_ENTRIES, self.stops_with) if self.stops_with else ""
        """Time at which that container last ended with exit code 0; empty if it failed since, or never ended."""
        self.done_seen = -inf
        """Monotonic time at which the scheduler saw it end; minus infinity if it had ended before."""
        self.unhealthy_device = ""
        """A device of it that its kubelet reports as unhealthy; empty if there is none."""
        self.started = ""
        """Time of its binding, according to the API server."""
        self.ends = 0.0
        """End of its termination grace period, Unix time; 0: it is not being deleted."""
        self.annotations: Mapping[str, str] = NO_ENTRIES
        """Annotations that constraints read (`CONSTRAINT_ANNOTATIONS`)."""
        if self.managed and not CONSTRAINT_ANNOTATIONS.isdisjoint(notes):
            self.annotations = {name: notes[name] for name in CONSTRAINT_ANNOTATIONS & notes.keys()}
        self.labels: Mapping[str, str] = NO_ENTRIES
        self.node = ""
        self.devices: str | None = None
        if self.managed:
            self._read_gang(metadata.get("labels") or NO_ENTRIES, notes)
        self.update(item)

    def _read_gang(self, labels: Mapping[str, str], notes: Mapping[str, str]) -> None:
        gang, size = gang_of(labels, notes)
        if not gang and not self.pod_group:
            return
        index = notes.get(JOB_INDEX.name, "")
        self.index = int(index) if len(index) < 10 and index.isdecimal() else -1
        if not gang:
            return
        self.gang = f"{self.namespace}/{gang}"
        self.gang_size = gang_size(size) or 1
        self.within = notes.get(WITHIN.name, "")

    def join_owner(self, gang: OwnedGang, within: str) -> None:
        """Make it a member of the gang of an object of another controller. `within`: as annotated."""
        self.gang = intern(f"{self.namespace}/{gang.name}")
        self.gang_size, self.within, self.owned, self.role = 1, within, True, intern(gang.role)
        self.index = 0 if gang.leads else -1

    @property
    def pod_group_key(self) -> str:
        """Its PodGroup, `namespace/name`."""
        return f"{self.namespace}/{self.pod_group}"

    def set_extended(self, extended: ExtendedClaim | None) -> None:
        """Set or (None) remove the claim of its extended resources."""
        self.extended = extended
        own = tuple(each for each in self.claims if each[0])
        self.claims = own if extended is None else (*own, ("", extended.name))

    def would_change(self, group: PodGroup | None) -> bool:
        """Return True if its gang is another one by what its PodGroup, or None, asks for.

        A gang label has precedence, so that avactl's own gangs are what they are with any PodGroup.
        """
        if not self.managed or (self.gang and self.group is None):
            return False
        return (self.group.gang if self.group is not None else NO_GANG) != (
            group.gang if group is not None else NO_GANG
        )

    def join(self, group: PodGroup | None) -> None:
        """Take over what its PodGroup asks for, None for nothing."""
        if not self.would_change(group):
            self.group = self.group and group
            return
        self.group = group if group is not None and group.size else None
        self.gang, self.gang_size, self.within = "", 0, ""
        if self.group is not None:
            # Names of other gangs have no slash.
            self.gang = f"{self.namespace}/podgroup/{self.pod_group}"
            self.gang_size, self.within, _ = self.group.gang

    def asks(self, item: Mapping[str, Any], refused: str = "") -> PodRequirements:
        """Return its requirements. Pods can be resized, given tolerations, and, while gated, constrained further.

        Pods of generation 1 are unchanged since creation; old API servers do not set it.
        """
        metadata, spec = item["metadata"], item["spec"]
        if metadata.get("generation") != 1:
            spec = as_it_runs(spec, item.get("status") or NO_ENTRIES)
        notes, labels = metadata.get("annotations") or NO_ENTRIES, metadata.get("labels") or NO_ENTRIES
        if GANG_SIZE.name in labels:
            notes = {GANG_SIZE.name: labels[GANG_SIZE.name], **notes}
        if SPOT_FROM.name in notes and _small_number(notes.get(JOB_INDEX.name, "")) < _small_number(
            notes[SPOT_FROM.name]
        ):
            # All pods of a Job have one template, so the tolerations for spot nodes are removed here.
            kept = [each for each in spec.get("tolerations") or () if each.get("key") != names.CAPACITY]
            spec = {**spec, "tolerations": kept}
        return requirements_of(spec, notes, refused)

    def update(self, item: Mapping[str, Any]) -> None:
        """Update the mutable fields except the pod requirements."""
        metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
        labels = metadata.get("labels")
        if labels and labels != self.labels:
            self.labels = {intern(key): intern(value) for key, value in labels.items()}
        elif not labels:
            self.labels = NO_ENTRIES
        node = spec.get("nodeName")
        if node:
            # A binding is final. The watch may still lag behind the response to the binding request.
            self.node = intern(node)
        self.phase: str = intern(status.get("phase") or "")
        self.deleting = "deletionTimestamp" in metadata
        if self.deleting and not self.ends:
            # A grace period has 64 bits.
            self.ends = unix_time_or(inf, metadata["deletionTimestamp"])
        self.gated = bool(spec.get("schedulingGates"))
        if node or not (self.assumed or self.node):
            notes = metadata.get("annotations")
            self.devices = notes.get(DEVICES.name) if notes else None
        if spec.get("resourceClaims"):
            made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()}
            # A status without a claim's name means that the pod needs none (resource.k8s.io, PodResourceClaimStatus).
            self.claims = tuple(
                (each["name"], each.get("resourceClaimName") or made.get(each["name"]) or "")
                for each in spec["resourceClaims"]
                if each.get("resourceClaimName") or made.get(each["name"], "") is not None
            )
            if self.extended is not None:
                self.set_extended(self.extended)
        told = status.get("extendedResourceClaimStatus")
        if told:
            self.told_extended = True
            if node or not self.assumed:
                resources = frozenset(each["resourceName"] for each in told["requestMappings"])
                self.set_extended(ExtendedClaim(told["resourceClaimName"], resources))
        if self.stops_with:
            done_at = _clean_exit(status, self.stops_with)
            if done_at != self.done_at:
                self.done_at, self.done_seen = done_at, monotonic()
        if self.managed:
            self._read_status(status, (metadata.get("annotations") or NO_ENTRIES).get(PREEMPTION.name, ""))

    def _read_status(self, status: Mapping[str, Any], preemption: str) -> None:
        self.nominated, self.preemption = intern(status.get("nominatedNodeName") or ""), preemption
        self.preempted_for, self.has_disruption_mark = "", False
        self.unhealthy_device = _find_unhealthy_device(status)
        for condition in status.get("conditions") or ():
            if condition["type"] == "PodScheduled" and not self.node:
                self.message, self.wait_reason = condition.get("message") or "", intern(condition.get("reason") or "")
            elif condition["type"] == "PodScheduled":
                self.started = intern(condition.get("lastTransitionTime") or "")
            elif condition["type"] == names.TIMED_OUT:
                self.timed_out = True
            elif condition["type"] == DISRUPTED and condition["status"] == "True":
                if condition.get("reason") == PREEMPTED:
                    self.preempted_for = preemption or BY_OTHERS
                    self.has_disruption_mark = bool(preemption)
                else:
                    self.has_disruption_mark = condition.get("reason") in (PARTIAL, FAULT)

    @property
    def rank(self) -> tuple[bool, int]:
        """Rank within the team; higher ranks are scheduled first."""
        return self.serving, self.priority

    @property
    def first(self) -> bool:
        """True for the first pod of an indexed Job: a leader, or a role of its own, which no gang can do without."""
        return self.index == 0

    @property
    def ended(self) -> bool:
        """True once the pod has succeeded or failed."""
        return self.phase in _ENDED

    @property
    def waiting(self) -> bool:
        """True if this scheduler has to place it."""
        return self.managed and not (self.node or self.assumed or self.deleting or self.gated or self.ended)

    def __repr__(self) -> str:
        return f"Pod({self.key})"


def _is_first(metadata: Mapping[str, Any]) -> bool:
    """Return True for the first pod of a StatefulSet, whose name no other pod can have.

    Whoever creates pods writes their owners and annotations, too: a pod must not speak for a set that it is not of.
    """
    owner = controller_of(metadata)
    stateful = owner.get("kind") == "StatefulSet" and str(owner.get("apiVersion", "")).startswith("apps/")
    return stateful and metadata["name"] == f"{owner.get('name')}-0"


def _clean_exit(status: Mapping[str, Any], container: str) -> str:
    """Return the time of a container's last end, if that was with exit code 0; else empty."""
    for each in status.get("containerStatuses") or ():
        if each.get("name") == container:
            states: list[Mapping[str, Any]] = [each.get("state") or {}, each.get("lastState") or {}]
            ended: Mapping[str, Any] = next((state["terminated"] for state in states if state.get("terminated")), {})
            return (ended.get("finishedAt") or "") if ended.get("exitCode") == 0 else ""
    return ""


def _small_number(text: str) -> int:
    """Return a small whole number; 0 for anything else."""
    return int(text) if len(text) < 10 and text.isdecimal() else 0


def read_pod(item: Mapping[str, Any], seen: float) -> PodInfo:
    """Parse a pod of the API server. An invalid pod is never placed, but its resources are counted."""
    within, refused = bounded(item)
    try:
        return PodInfo(within, seen, refused)
    except Exception as error:
        logs.error("invalid pod", pod=namespaced_name(item), error=repr(error))
        return PodInfo(stripped(item), seen, f"the scheduler cannot parse this pod: {quote(repr(error))}")


def _find_unhealthy_device(status: Mapping[str, Any]) -> str:
    """Return a device of the pod that its kubelet reports as unhealthy; empty if there is none.

    Device plugins and DRA drivers report it (KEP-4680, on by default since Kubernetes 1.36).
    """
    for container in status.get("containerStatuses") or ():
        for allocated in container.get("allocatedResourcesStatus") or ():
            for device in allocated.get("resources") or ():
                if device.get("health") == "Unhealthy":
                    return quote(f"{allocated['name']} {device['resourceID']}")
    return ""


def _volume_claims(spec: Mapping[str, Any], name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """PersistentVolumeClaims by name, and those of generic ephemeral volumes, whose names begin with the pod's."""
    found: list[str] = []
    made: tuple[str, ...] = ()
    for volume in spec.get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            found.append(volume["persistentVolumeClaim"]["claimName"])
        elif "ephemeral" in volume:
            made = (*made, f"{name}-{volume['name']}")
    return (*found, *made), made
