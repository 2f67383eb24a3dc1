"""Diagnosis of an unready pod from its status: it waits for a place, prepares its start, starts, or fails.

Source: `pkg/kubelet/kubelet_pods.go` of Kubernetes for the order of conditions and states of containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from avactl.kube.timestamps import unix_time

Live = Mapping[str, Any]
MAX_COPY_RETRIES = 5
"""Restarts after which an init container counts as failing: copies are resumed where a store's error has ended them."""
_MAX_TEXT_LENGTH = 300
_IN_CREATION = frozenset(("ContainerCreating", "PodInitializing"))
"""Reasons of waiting containers that are not failures."""


def is_ready(pod: Live) -> bool:
    """Return True if a pod is ready, and is not being deleted."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


class PodStage(IntEnum):
    """Stage of a pod; of several pods, the lowest says what their workload waits for."""

    unscheduled = 0
    failing = 1
    retrying = 2
    """An init container has failed a few times, and is started again."""
    starting = 3
    """Its containers have all that they need, and are not ready."""
    preparing = 4
    """Images are pulled, or init containers run."""
    ready = 5

    @property
    def is_preparation(self) -> bool:
        """True if images are pulled or files copied, which takes as long as their size demands."""
        return self in (PodStage.preparing, PodStage.retrying)


class PodDiagnosis(NamedTuple):
    """Stage of a pod, and what it is doing."""

    stage: PodStage
    reason: str = ""
    """Empty if nothing is known."""
    prepared: float = 0.0
    """When the containers had their images and files, in Unix seconds; 0: not yet, or not known."""


def diagnose_pod(pod: Live) -> PodDiagnosis:
    """Return the stage of a pod. Its containers' texts are cut."""
    found = _diagnose(pod)
    return found._replace(reason=found.reason[:_MAX_TEXT_LENGTH])


def _diagnose(pod: Live) -> PodDiagnosis:
    status = pod.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    if status.get("phase") == "Failed":
        # Evicted, such as by the limit of a volume: its workload creates another pod.
        said = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
        return PodDiagnosis(PodStage.failing, f"a pod failed: {said}" if said else "a pod failed")
    if status.get("phase") == "Succeeded":
        return PodDiagnosis(PodStage.ready)
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return PodDiagnosis(
            PodStage.unscheduled, str(scheduled.get("message") or scheduled.get("reason") or "unschedulable")
        )
    init, containers = status.get("initContainerStatuses") or (), status.get("containerStatuses") or ()
    declared = (pod.get("spec") or {}).get("initContainers") or ()
    sidecars = {each.get("name") for each in declared if each.get("restartPolicy") == "Always"}
    for container in init:
        if reason := _failure_text(container) or _waiting_text(container):
            failing = (container.get("restartCount") or 0) > MAX_COPY_RETRIES or _cannot_start(container)
            return PodDiagnosis(PodStage.failing if failing else PodStage.retrying, reason)
    if conditions.get("PodReadyToStartContainers", {}).get("status") == "False":
        # Why is in the kubelet's events only.
        name = (pod.get("metadata") or {}).get("name")
        return PodDiagnosis(
            PodStage.starting, f"pod {name} waits for a volume or its network: see `kubectl describe pod`"
        )
    for container in init:
        # The others wait for the start of a sidecar only; `started` is true of any init container that runs.
        beside = container.get("name") in sidecars and container.get("started")
        if (running := _state(container, "running")) is not None and not beside:
            return PodDiagnosis(
                PodStage.preparing, f"init container {container.get('name')} runs{_since(running.get('startedAt'))}"
            )
        if _is_in_creation(container):
            return PodDiagnosis(PodStage.preparing, _pull_text(container, None))
    initialized = (conditions.get("Initialized") or {}).get("lastTransitionTime")
    pulling = next((each for each in containers if _is_in_creation(each)), None)
    failure = next(filter(None, (_failure_text(each) or _waiting_text(each) for each in containers)), "")
    if not failure and pulling is not None:
        return PodDiagnosis(PodStage.preparing, _pull_text(pulling, initialized))
    prepared = max(_parse_time(initialized), *(_first_start(each) for each in containers), 0.0)
    if failure:
        return PodDiagnosis(PodStage.failing, failure, prepared)
    reason = next(filter(None, map(_probe_text, (*init, *containers))), "")
    if reason or not containers or not all(each.get("ready") for each in containers):
        return PodDiagnosis(PodStage.starting, reason, prepared)
    return PodDiagnosis(PodStage.ready, prepared=prepared)


def summarize_pods(pods: Iterable[Live]) -> PodDiagnosis:
    """Return what a workload waits for: the first cause of its pods, in the order of stages.

    The stage is `preparing` while a pod prepares or retries, unless one waits for a place. `prepared` is that of
    the last unready pod.
    """
    found = sorted(map(diagnose_pod, pods), key=lambda each: each.stage)
    if not found:
        return PodDiagnosis(PodStage.starting)
    reason = next((each.reason for each in found if each.reason), "")
    prepares = found[0].stage is not PodStage.unscheduled and any(each.stage.is_preparation for each in found)
    stage = PodStage.preparing if prepares else found[0].stage
    unready = [each.prepared for each in found if each.stage is not PodStage.ready]
    return PodDiagnosis(stage, reason, max(unready, default=0.0))


def _state(container: Live, kind: str) -> Live | None:
    found: Live | None = (container.get("state") or {}).get(kind)
    return found


def _is_in_creation(container: Live) -> bool:
    waiting = _state(container, "waiting")
    return waiting is not None and waiting.get("reason") in _IN_CREATION


def _cannot_start(container: Live) -> bool:
    """Return True if a container waits for an image or a setting that does not exist."""
    reason = (_state(container, "waiting") or {}).get("reason")
    return reason not in (None, "", "CrashLoopBackOff", *_IN_CREATION)


def _pull_text(container: Live, since: object) -> str:
    image = f" {container['image']}" if container.get("image") else ""
    return f"{container.get('name')} waits for its image{image}{_since(since)}"


def _since(time: object) -> str:
    return f" since {time}" if isinstance(time, str) and time else ""


def _first_start(container: Live) -> float:
    """Return the time of the first start of a container, or 0 where later ones have replaced it in the status."""
    restarts = container.get("restartCount") or 0
    if restarts > 1:
        return 0.0
    states = container.get("lastState") if restarts else container.get("state")
    return max((_parse_time((each or {}).get("startedAt")) for each in (states or {}).values()), default=0.0)


def _parse_time(text: object) -> float:
    try:
        return unix_time(str(text)) if text else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _failure_text(container: Live) -> str:
    """Tell how a container failed, of which the pod waits for another start."""
    if container.get("ready"):
        return ""
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        ended = state.get("terminated") or {}
        if ended.get("exitCode"):
            # Of what it said, the last line: the policy for messages keeps the end of the log.
            lines = str(ended.get("message") or "").strip().splitlines()
            said = f": {lines[-1]}" if lines else ""
            count = container.get("restartCount") or 0
            times = f", restarted {'once' if count == 1 else f'{count} times'}" if count else ""
            return f"{container.get('name')} ended with exit code {ended['exitCode']}{times}{said}"
    return ""


def _waiting_text(container: Live) -> str:
    waiting = _state(container, "waiting") or {}
    if waiting.get("reason") in (None, "", *_IN_CREATION):
        return ""
    return f"{container.get('name')}: {waiting['reason']} {waiting.get('message', '')}".strip()


def _probe_text(container: Live) -> str:
    if _state(container, "running") is None or container.get("ready"):
        return ""
    probe = "readiness" if container.get("started") else "startup"
    return f"{container.get('name')} runs, and its {probe} probe does not succeed"
