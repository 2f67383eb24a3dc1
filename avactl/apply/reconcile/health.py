"""Health of live objects, from the status that their controllers write. Pure.

Sources: `kubectl rollout status` (k8s.io/kubectl/pkg/polymorphichelpers/rollout_status.go) and kstatus
(sigs.k8s.io/cli-utils/pkg/kstatus), pkg/controllers/leaderworkerset_controller.go of sigs.k8s.io/lws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from avactl.apply.reconcile import role_sets
from avactl.apply.reconcile.desired import terminal_condition
from avactl.kube.pod_diagnosis import PodStage, diagnose_pod, summarize_pods

Live = Mapping[str, Any]


class HealthState(str, Enum):  # noqa: UP042 - its values stand in JSON
    """Health state of an object."""

    ready = "ready"
    progressing = "progressing"
    waiting = "waiting"
    """Waiting for capacity, a storage class or a person: not a failure, and it may take days."""
    failed = "failed"


class Health(NamedTuple):
    """Health of an object, and the reason."""

    state: HealthState
    reason: str = ""


READY = Health(HealthState.ready)
DELETING = Health(HealthState.progressing, "is being deleted")


def object_health(live: Live, made: Sequence[Live] = ()) -> Health:
    """Return the health of an object; kinds without a health check are ready.

    `made`: the LeaderWorkerSets that the controller of a DisaggregatedSet has made.
    """
    if live["kind"] == role_sets.KIND:
        return _role_set(live, made)
    judge = _JUDGES.get(live["kind"])
    if judge is None:
        return READY
    status = live.get("status") or {}
    seen = status.get("observedGeneration")
    if seen is not None and seen < live["metadata"].get("generation", 0):
        return _progressing_health("the controller has not observed the change yet")
    if seen is None and live["kind"] in WITH_PODS:
        return _progressing_health("the controller has not observed it yet")
    return judge(live, status)


def _progressing_health(reason: str) -> Health:
    return Health(HealthState.progressing, reason)


def _find_condition(status: Live, kind: str) -> Live:
    return next((entry for entry in status.get("conditions") or () if entry["type"] == kind), {})


def _deployment_health(live: Live, status: Live) -> Health:
    progress = _find_condition(status, "Progressing")
    if progress.get("reason") == "ProgressDeadlineExceeded":
        return Health(HealthState.failed, progress.get("message") or "progress deadline exceeded")
    wanted = live["spec"].get("replicas", 1)
    updated, total = status.get("updatedReplicas", 0), status.get("replicas", 0)
    available = status.get("availableReplicas", 0)
    if updated < wanted:
        refused = _find_condition(status, "ReplicaFailure")
        if refused.get("status") == "True":
            said = f"{updated} of {wanted} pods are updated: {refused.get('message', '')}"
            return Health(HealthState.waiting if "exceeded quota" in said else HealthState.progressing, said)
        return _progressing_health(f"{updated} of {wanted} pods are updated")
    if total > updated:
        return _progressing_health(f"{total - updated} old pods are still terminating")
    if available < updated:
        return _progressing_health(f"{available} of {updated} pods are available")
    return READY


def _stateful_set(live: Live, status: Live) -> Health:
    wanted = live["spec"].get("replicas", 1)
    ready = status.get("readyReplicas", 0)
    if ready < wanted:
        return _progressing_health(f"{ready} of {wanted} pods are ready")
    if (live["spec"].get("updateStrategy") or {}).get("type") == "OnDelete":
        return READY
    updated = status.get("updatedReplicas", 0)
    if status.get("updateRevision") != status.get("currentRevision") and updated < wanted:
        return _progressing_health(f"{updated} of {wanted} pods are updated")
    return READY


def _leader_worker_set(live: Live, status: Live) -> Health:
    """Return the health of groups of pods; its controller counts groups, and those of a rollout beyond `replicas`."""
    wanted = live["spec"].get("replicas", 1)
    ready, updated = status.get("readyReplicas", 0), status.get("updatedReplicas", 0)
    if updated < wanted:
        return _progressing_health(f"{updated} of {wanted} groups are updated")
    if ready < wanted:
        return _progressing_health(f"{ready} of {wanted} groups are ready")
    if _find_condition(status, "Available").get("status") != "True":
        return _progressing_health("not all groups are updated and ready")
    return READY


def _role_set(live: Live, made: Sequence[Live]) -> Health:
    """Return the health of a DisaggregatedSet: that of the groups of each role, once others are gone."""
    current = role_sets.roles_of(live, made)
    if current is None:
        return _progressing_health("the controller has not observed the change yet")
    for role in live["spec"]["roles"]:
        name, groups = role["name"], current[role["name"]]
        wanted, there = role["spec"].get("replicas", 1), groups["spec"].get("replicas", 1)
        if there != wanted:
            return _progressing_health(f"{name}: {there} of {wanted} groups are updated")
        found = object_health(groups)
        if found.state is not HealthState.ready:
            return found._replace(reason=f"{name}: {found.reason}")
    own = {groups["metadata"]["name"] for groups in current.values()}
    old = sum(each["spec"].get("replicas", 1) for each in made if each["metadata"]["name"] not in own)
    return _progressing_health(f"{old} old groups are still terminating") if old else READY


def _daemon_set(live: Live, status: Live) -> Health:
    wanted = status.get("desiredNumberScheduled", 0)
    updated = status.get("updatedNumberScheduled", 0)
    available = status.get("numberAvailable", 0)
    if updated < wanted and (live["spec"].get("updateStrategy") or {}).get("type") != "OnDelete":
        return _progressing_health(f"{updated} of {wanted} pods are updated")
    if available < wanted:
        return _progressing_health(f"{available} of {wanted} pods are available")
    return READY


def _job_health(live: Live, status: Live) -> Health:
    """Return the health of a Job: ready both while it waits for GPUs and while it runs; only failure counts."""
    if terminal_condition(live) == "Failed":
        return Health(HealthState.failed, _find_condition(status, "Failed").get("message") or "it failed")
    return READY


def is_starting(job: Live) -> bool:
    """Return True if pods of a Job are not ready: they wait, start, or crash again and again in a sidecar."""
    status = job.get("status") or {}
    return int(status.get("active", 0)) > int(status.get("ready", 0))


def _claim_health(live: Live, status: Live) -> Health:
    phase = status.get("phase")
    if phase == "Lost":
        return Health(HealthState.failed, "its volume is lost")
    return READY if phase == "Bound" else Health(HealthState.progressing, "it is not bound yet")


def _definition_health(live: Live, status: Live) -> Health:
    if _find_condition(status, "Established").get("status") == "True":
        return READY
    names = _find_condition(status, "NamesAccepted")
    if names.get("status") == "False":
        return Health(HealthState.failed, names.get("message", "its names are taken"))
    return _progressing_health("it is not established yet")


def _namespace_health(live: Live, status: Live) -> Health:
    return Health(HealthState.failed, "it is being deleted") if status.get("phase") == "Terminating" else READY


_JUDGES: dict[str, Callable[[Live, Live], Health]] = {
    "Deployment": _deployment_health,
    "StatefulSet": _stateful_set,
    "DaemonSet": _daemon_set,
    "LeaderWorkerSet": _leader_worker_set,
    "Job": _job_health,
    "PersistentVolumeClaim": _claim_health,
    "CustomResourceDefinition": _definition_health,
    "Namespace": _namespace_health,
}

JUDGED = frozenset((*_JUDGES, role_sets.KIND))
"""Kinds with a health check."""
WITH_PODS = frozenset({"Deployment", "StatefulSet", "DaemonSet", "LeaderWorkerSet", role_sets.KIND})


def of_pods(pods: list[dict[str, Any]]) -> Health | None:
    """Return the health of a workload from its unready pods: waiting if all of them are unschedulable, else the reason
    why they are not ready."""
    here = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    late = [pod for pod in here if _find_condition(pod.get("status") or {}, "Ready").get("status") != "True"]
    if late and not any(pod["spec"].get("nodeName") for pod in late):
        texts = (_find_condition(pod.get("status") or {}, "PodScheduled").get("message") for pod in late)
        said = next(filter(None, texts), "")
        return Health(HealthState.waiting, f"{len(late)} pods are unschedulable" + (f": {said}" if said else ""))
    found = summarize_pods(late)
    return crashing_container(late) or (_progressing_health(found.reason) if found.reason else None)


def combine_health(workload: Health, pods: Health) -> Health:
    """Return the health of a workload and its pods: a controller that has waited too long does not say for what."""
    if workload.state is HealthState.failed and pods.state is not HealthState.waiting:
        return workload._replace(reason=f"{workload.reason.rstrip('.')}: {pods.reason}")
    return pods


def crashing_container(pods: list[dict[str, Any]]) -> Health | None:
    """Return the first container, init container or sidecar of some pods that cannot start or does not stay up."""
    for pod in pods:
        found = diagnose_pod(pod)
        if found.stage in _FAILING and (pod.get("status") or {}).get("phase") != "Failed":
            return _progressing_health(f"pod {pod['metadata']['name']}: {found.reason}")
    return None


_FAILING = (PodStage.failing, PodStage.retrying)
