"""Jobs and pods of training jobs as read from the API server, reduced to what their owners look at.

Pods and their messages are written by tenants: texts are cleaned and bounded here, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple

from avactl.base.quantity import parse_quantity
from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE, GPU_SHARE, JOB_INDEX, RUN_DIGEST
from avactl.scheduler.objects.pod_requirements import requests

INSTANCE, COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"
SELECTOR = "app.kubernetes.io/name=trainingjob"
"""Label selector of the objects of training jobs."""
_MAX_DIGITS = 9
_MAX_TEXT_LENGTH = 1000
_FINISHED_CONDITIONS = {
    "Complete": "succeeded",
    "SuccessCriteriaMet": "succeeded",
    "Failed": "failed",
    "FailureTarget": "failed",
}


def clean_text(text: object, most: int = _MAX_TEXT_LENGTH) -> str:
    """Return foreign text on one line of bounded length, without control characters."""
    return " ".join(visible_text(shorten_middle(str(text or ""), most).replace("\n", " ")).split())


class PodState(Enum):
    """State of a pod."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobMember:
    """A pod of a training job."""

    namespace: str
    job: str
    name: str
    uid: str
    role: str
    index: int
    """Completion index; -1 if the pod has none."""
    state: PodState
    why: str
    """Reason of the state; empty if there is nothing to say."""
    node: str
    restarts: int
    created: str
    run: str

    @property
    def label(self) -> str:
        """Role and index: `worker-3`."""
        return f"{self.role}-{self.index}" if self.index >= 0 else self.role

    @property
    def alive(self) -> bool:
        """True if the pod has not ended."""
        return self.state not in (PodState.SUCCEEDED, PodState.FAILED)


class RoleJob(NamedTuple):
    """The Job of one role."""

    namespace: str
    job: str
    name: str
    uid: str
    role: str
    team: str
    leads: bool
    """True if the training job ends with this Job."""
    wanted: int
    """Pods at the same time."""
    gang: int
    """Pods of all roles that start together; 0 if they are no gang."""
    gpus: Fraction
    """GPUs of one pod, if it requests them as a resource or by share."""
    created: str
    started: str
    ended: str
    result: str
    """`succeeded` or `failed`; empty while it runs."""
    message: str
    suspended: bool
    deleting: bool
    failed: int
    """Pods that have failed so far."""
    run: str
    """Digest of the run; another one is another run."""
    expires: int | None
    """Seconds after its start at which it is ended, if it is an experiment."""


def make_member(item: Mapping[str, Any]) -> JobMember:
    """Return a pod."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    state, why = _pod_state(item, status)
    return JobMember(
        namespace=metadata["namespace"],
        job=labels.get(INSTANCE, ""),
        name=metadata["name"],
        uid=metadata["uid"],
        role=labels.get(COMPONENT, ""),
        index=_parse_number(labels.get(JOB_INDEX.name) or notes.get(JOB_INDEX.name), -1),
        state=state,
        why=clean_text(why),
        node=item["spec"].get("nodeName") or "",
        restarts=sum(each.get("restartCount") or 0 for each in _container_statuses(status)),
        created=metadata["creationTimestamp"],
        run=notes.get(RUN_DIGEST.name, ""),
    )


def _container_statuses(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _pod_state(item: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[PodState, str]:
    phase = status.get("phase")
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    disrupted = conditions.get("DisruptionTarget") or {}
    gone = (disrupted.get("message") or disrupted.get("reason") or "") if disrupted.get("status") == "True" else ""
    if phase == "Succeeded":
        return PodState.SUCCEEDED, ""
    if phase == "Failed":
        return PodState.FAILED, gone or status.get("message") or status.get("reason") or exit_of(status)
    if "deletionTimestamp" in item["metadata"]:
        return PodState.ENDING, gone
    if not item["spec"].get("nodeName"):
        return PodState.QUEUED, _why_queued(item["spec"], conditions.get("PodScheduled") or {})
    waiting = [
        each["state"]["waiting"] for each in _container_statuses(status) if (each.get("state") or {}).get("waiting")
    ]
    told: Mapping[str, Any] = next(
        (each for each in waiting if each.get("reason") not in (None, "PodInitializing")), {}
    )
    why = ": ".join(filter(None, (told.get("reason"), told.get("message"))))
    if phase == "Running" and not told:
        return PodState.RUNNING, ""
    return PodState.STARTING, why or "its containers are starting"


def _why_queued(spec: Mapping[str, Any], scheduled: Mapping[str, Any]) -> str:
    if spec.get("schedulingGates"):
        return f"held back by scheduling gates: {', '.join(gate['name'] for gate in spec['schedulingGates'])}"
    if scheduled.get("status") == "False":
        return scheduled.get("message") or scheduled.get("reason") or ""
    return f"scheduler `{spec.get('schedulerName')}` has not processed it yet"


def exit_of(status: Mapping[str, Any]) -> str:
    """Return how the first failed container of a pod ended: `worker: exit code 1`; empty if none did."""
    for each in _container_statuses(status):
        ended = (each.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            reason = ended.get("reason") or "Error"
            return f"{each['name']}: exit code {ended['exitCode']}" + (f" ({reason})" if reason != "Error" else "")
    return ""


def is_leading_job(item: Mapping[str, Any]) -> bool:
    """Return True for a Job with which its training job ends: its pods have no follower."""
    return all(each["name"] != names.FOLLOWER for each in item["spec"]["template"]["spec"]["containers"])


def role_job(item: Mapping[str, Any]) -> RoleJob:
    """Return the Job of a role."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    labels, template = metadata.get("labels") or {}, spec["template"]
    notes = template["metadata"].get("annotations") or {}
    result, message, ended = "", "", ""
    for condition in status.get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in _FINISHED_CONDITIONS:
            result = _FINISHED_CONDITIONS[condition["type"]]
            message = condition.get("message") or ""
            ended = condition.get("lastTransitionTime") or ""
    most = spec.get("parallelism", 1)
    return RoleJob(
        namespace=metadata["namespace"],
        job=labels.get(INSTANCE, ""),
        name=metadata["name"],
        uid=metadata["uid"],
        role=labels.get(COMPONENT, ""),
        team=labels.get(names.TEAM_LABEL, ""),
        leads=is_leading_job(item),
        wanted=min(most, spec.get("completions") or most),
        gang=_parse_number(notes.get(GANG_SIZE.name), 0),
        gpus=_pod_gpus(template["spec"], notes),
        created=metadata["creationTimestamp"],
        started=status.get("startTime") or "",
        ended=status.get("completionTime") or ended,
        result=result,
        message=clean_text(message) if result == "failed" else "",
        suspended=bool(spec.get("suspend")),
        deleting="deletionTimestamp" in metadata,
        failed=status.get("failed") or 0,
        run=(metadata.get("annotations") or {}).get(RUN_DIGEST.name, ""),
        expires=spec.get("activeDeadlineSeconds") if names.EXPERIMENT in labels else None,
    )


def _pod_gpus(spec: Mapping[str, Any], notes: Mapping[str, str]) -> Fraction:
    """Return the GPUs that the scheduler counts for a pod; 0 if they cannot be read."""
    try:
        requested = requests(spec)
        total = Fraction(sum(requested.get(name, 0) for name in names.GPU_RESOURCES))
        return total or parse_quantity(notes.get(GPU_SHARE.name, "0"))
    except ValueError:
        return Fraction(0)


def _parse_number(text: object, otherwise: int) -> int:
    known = isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(str(text)) if known else otherwise
