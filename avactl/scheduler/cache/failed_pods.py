"""Pods that failed because of their node.

The next pods of their job avoid the node while they fit elsewhere, and a node that fails pods of several jobs is taken
last: by all if these are jobs of several teams, so that no team can make others avoid a node. Nothing is stored: the
API server keeps failed pods for as long as their Job, so a restart forgets nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from sys import intern
from time import time
from typing import Any, NamedTuple

from avactl.contracts import names
from avactl.kube.timestamps import unix_time_or
from avactl.scheduler.objects.gangs import owner_of
from avactl.scheduler.objects.limits import quote

MAX_FAILED_PODS = 20_000
"""Maximum number of failed pods that are remembered; older ones are forgotten first."""
SUSPECT_S = 3600.0
"""Seconds for which a failed pod counts against its node."""
SUSPECT_JOBS = 2
"""Number of jobs, and of teams, whose pods must have failed on a node until others take it last."""
AT_ONCE_S = 10.0
"""A program that fails within this time may have failed because of its node."""
_REFRESH_S = 10.0
_MAX_SHOWN = 3
_NOT_CREATED = "CreateContainerError"
"""Reason of a container that the runtime could not create: a broken driver, a full disk, or one of `_ON_ANY_NODE`."""
_ON_ANY_NODE = ("no command specified", "unable to find user", "unable to find group", "seccomp", "apparmor")
"""Parts of messages of runtimes about containers that they cannot create on any node: whoever writes a pod chooses its
image, and the profiles that it asks for."""
_NOT_STARTED = frozenset(("StartError", "ContainerCannotRun", "RunContainerError"))
"""Reasons of containers whose program the runtime could not start; mostly, the image has no such program."""
_OF_THE_POD = frozenset(("DeadlineExceeded",))
"""Reasons of failed pods that say nothing about the node."""
_OF_THE_REQUEST = frozenset(
    (
        "AppArmor",
        "NodeAffinity",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "SMTAlignmentError",
        "SysctlForbidden",
        "TopologyAffinityError",
    )
)
"""Reasons of kubelets that refuse what a pod asks for: others may well fit on the node."""


class FailedPod(NamedTuple):
    """A pod that failed on a node."""

    owner: str
    """Its job, `namespace/name`, or the UID of its controller."""
    namespace: str
    node: str
    reason: str
    by_node: bool
    """True if the node is at fault for all: its program has not run, and not because of what the pod asks for."""
    at: float
    """Start of the pod on the node, Unix time."""


class FailedPods:
    """Failed pods by key, and what follows for others."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._pods: dict[str, FailedPod] = {}
        self._by_owner: dict[str, dict[str, str]] = {}
        self._by_node: dict[str, dict[str, FailedPod]] = {}
        self._suspects: dict[str, list[FailedPod]] = {}
        self._suspects_until = 0.0
        """When the list of suspects is made anew: at once after a change."""

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[str]:
        """Iterate over keys, `namespace/name`."""
        return iter(self._pods)

    def put(self, key: str, item: Mapping[str, Any]) -> None:
        """Remember a pod of the API server if it has failed because of its node; else forget it."""
        found, before = read_failed_pod(item), self._pods.get(key)
        if found is None:
            self.drop(key)
            return
        # A machine's clock may be ahead: a suspicion must end nevertheless.
        found = found._replace(at=min(found.at, self._clock()) if before is None else before.at)
        if found == before:
            return
        self.drop(key)
        if len(self._pods) >= MAX_FAILED_PODS:
            self.drop(next(iter(self._pods)))
        self._pods[key] = found
        self._by_owner.setdefault(found.owner, {})[key] = found.node
        if found.by_node:
            self._by_node.setdefault(found.node, {})[key] = found
            self._suspects_until = 0.0

    def drop(self, key: str) -> None:
        """Forget a pod."""
        found = self._pods.pop(key, None)
        if found is None:
            return
        for pods, name in ((self._by_owner, found.owner), (self._by_node, found.node)):
            pods.get(name, {}).pop(key, None)
            if not pods.get(name, True):
                del pods[name]
        if found.by_node:
            self._suspects_until = 0.0

    def nodes_of(self, owner: str) -> frozenset[str]:
        """Return the nodes on which pods of a job have failed."""
        return frozenset(self._by_owner.get(owner, {}).values())

    def worst_nodes_of(self, owner: str) -> frozenset[str]:
        """Return the nodes on which more pods of a job have failed than on others: a machine may have been repaired."""
        counts = Counter(self._by_owner.get(owner, {}).values())
        least = min(counts.values(), default=0)
        return frozenset(node for node, count in counts.items() if count > least)

    def suspects(self) -> dict[str, list[FailedPod]]:
        """Return the nodes on which pods of several jobs have failed lately, with the last pod of each job."""
        now = self._clock()
        if now >= self._suspects_until:
            self._suspects, self._suspects_until = self._find_suspects(now - SUSPECT_S), now + _REFRESH_S
        return self._suspects

    def _find_suspects(self, since: float) -> dict[str, list[FailedPod]]:
        found = {}
        for node, pods in self._by_node.items():
            last: dict[str, FailedPod] = {}
            for pod in sorted(pods.values(), key=lambda pod: pod.at):
                if pod.at >= since:
                    last[pod.owner] = pod
            if len(last) >= SUSPECT_JOBS:
                found[node] = list(last.values())
        return found


def describe(pods: Sequence[FailedPod]) -> str:
    """Return what is wrong with a node, by the last failed pod of each job."""
    jobs = [pod.owner for pod in pods]
    shown = ", ".join(jobs[:_MAX_SHOWN]) + (f" and {len(jobs) - _MAX_SHOWN} more" if len(jobs) > _MAX_SHOWN else "")
    reasons = ", ".join(sorted({pod.reason for pod in pods})[:_MAX_SHOWN])
    return f"pods of {len(jobs)} jobs failed before they ran ({reasons}): {shown}"


def read_failed_pod(item: Mapping[str, Any]) -> FailedPod | None:
    """Return what a pod of the API server says of its failure; None if its node had no part in it."""
    spec, status, metadata = item["spec"], item.get("status") or {}, item["metadata"]
    node, phase = spec.get("nodeName"), status.get("phase")
    if not node or phase not in ("Pending", "Running", "Failed") or "deletionTimestamp" in metadata:
        return None
    reason, by_node = _failure(status, phase)
    owner = owner_of(metadata) if reason else ""
    if not owner:
        return None
    at = unix_time_or(0.0, status.get("startTime") or metadata["creationTimestamp"])
    return FailedPod(owner, intern(metadata["namespace"]), intern(node), quote(reason), by_node, at)


def _failure(status: Mapping[str, Any], phase: str) -> tuple[str, bool]:
    """Return why a pod has failed, and whether its program has not run; "" if its node had no part in it."""
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    states = [each.get("state") or {} for each in containers]
    if phase != "Failed":  # after a reboot, a pod is Running while its containers cannot be created again
        for state in states:
            waiting = state.get("waiting") or {}
            reason = waiting.get("reason") or ""
            if reason == _NOT_CREATED:
                message = (waiting.get("message") or "").lower()
                return reason, not any(each in message for each in _ON_ANY_NODE)
            if reason in _NOT_STARTED:
                return reason, False
        return "", False
    disrupted = any(
        each["type"] == "DisruptionTarget" and each["status"] == "True" for each in status.get("conditions") or ()
    )
    if disrupted or status.get("reason") in _OF_THE_POD:
        return "", False
    ended = [state["terminated"] for state in states if state.get("terminated")]
    if not ended:
        return status.get("reason") or "refused by the kubelet", status.get("reason") not in _OF_THE_REQUEST
    for each in ended:
        code = each.get("exitCode")
        if code == names.REPLACED_EXIT:
            return f"exit code {code}", False
        if each.get("reason") in _NOT_STARTED:
            return each["reason"], False
        begun, over = unix_time_or(0.0, each.get("startedAt") or ""), unix_time_or(0.0, each.get("finishedAt") or "")
        if code and begun and over - begun <= AT_ONCE_S:
            return f"exit code {code} at once", False
    return "", False
