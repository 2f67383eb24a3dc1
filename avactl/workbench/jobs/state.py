"""The state of a training job, from its Jobs, pods and progress. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple

from avactl.base.terminal import duration_text
from avactl.kube.timestamps import seconds_since
from avactl.workbench.jobs.members import JobMember, PodState, RoleJob
from avactl.workbench.jobs.progress import JobProgress

_WORKER_ROLES = ("chief", "worker")
_SILENT_AFTER_S = 120.0
"""Seconds without news from a job master after which its owner is told; it writes every 30 s."""
_RECENT_S = 3600.0
"""Seconds for which its owner is told of a replaced worker."""
_STATE_ORDER = ("running", "starting", "queued", "suspended", "deleting", "failed", "succeeded")


class RoleState(NamedTuple):
    """Pods of one role."""

    name: str
    running: int
    wanted: int


class TrainingJobState(NamedTuple):
    """A training job."""

    namespace: str
    name: str
    team: str
    state: str
    """`queued`, `starting`, `running`, `suspended`, `deleting`, `succeeded` or `failed`."""
    why: str
    roles: list[RoleState]
    workers: int
    """Running workers, with TensorFlow's chief."""
    least: int
    """Workers with which it runs; less than `most` if it is elastic."""
    most: int
    gpus: float
    """GPUs of all its pods, if they are requested as a resource or by share."""
    created: str
    started: str
    ended: str
    failures: int
    """Failed pods and restarted containers."""
    progress: JobProgress | None
    members: list[JobMember]
    """Pods, by role and index; the newest of an index last."""
    run: str
    expires: int | None
    """Seconds after its start at which Kubernetes ends it, if it is an experiment."""
    leader: str
    """Role with whose pods the job ends."""

    @property
    def first(self) -> JobMember | None:
        """The running pod of rank 0, which prints the progress of the job; of several, the newest."""
        return next((pod for pod in reversed(self.members) if self._is_first(pod)), None)

    def _is_first(self, pod: JobMember) -> bool:
        return pod.role == self.leader and pod.index <= 0 and pod.state is PodState.RUNNING

    @property
    def over(self) -> bool:
        """True if it has succeeded or failed."""
        return self.state in ("succeeded", "failed")

    def straggles(self, pod: JobMember) -> bool:
        """Return True if the master says so of a worker in the pod. Workers are named after role and index."""
        told = self.progress.master.stragglers if self.progress is not None and not self.over else ()
        return any(name == pod.label or name.startswith(f"{pod.label}-") for name in told)

    def as_json(self) -> dict[str, Any]:
        """Return the job for programs."""
        data = self._asdict()
        data["roles"] = [role._asdict() for role in self.roles]
        data["members"] = [{**asdict(pod), "state": pod.state.value} for pod in self.members]
        if self.progress is not None:
            data["progress"] = self.progress.as_json()
        return data


def assemble_job(jobs: Iterable[RoleJob], pods: Iterable[JobMember], progress: JobProgress | None) -> TrainingJobState:
    """Return the training job of Jobs, of which there is at least one, and of pods."""
    parts = sorted(jobs, key=lambda part: (not part.leads, part.role))
    leader = parts[0]
    members = sorted(pods, key=lambda pod: (pod.role, pod.index, pod.created, pod.name))
    running = Counter(pod.role for pod in members if pod.state is PodState.RUNNING)
    roles = [RoleState(part.role, running[part.role], part.wanted) for part in parts]
    most = sum(part.wanted for part in parts if part.role in _WORKER_ROLES)
    wanted = sum(part.wanted for part in parts)
    slack = max(0, wanted - leader.gang) if leader.gang else 0
    # Its TensorBoard runs also while the job waits.
    own = [pod for pod in members if pod.role in {part.role for part in parts}]
    state, why = _job_state(leader, own, wanted - slack)
    return TrainingJobState(
        namespace=leader.namespace,
        name=leader.job,
        team=leader.team,
        state=state,
        why=why,
        roles=roles,
        workers=sum(running[role] for role in _WORKER_ROLES),
        least=max(0, most - slack),
        most=most,
        gpus=float(sum(part.gpus * part.wanted for part in parts)),
        created=min(part.created for part in parts),
        started=leader.started,
        ended=leader.ended,
        failures=sum(part.failed for part in parts) + sum(pod.restarts for pod in own),
        progress=progress,
        members=members,
        run=leader.run,
        expires=leader.expires,
        leader=leader.role,
    )


def _job_state(leader: RoleJob, members: list[JobMember], needed: int) -> tuple[str, str]:
    if leader.result:
        return leader.result, _why_failed(leader, members)
    if leader.deleting:
        return "deleting", ""
    if leader.suspended:
        return "suspended", "`suspended: true` in its spec"
    states = Counter(pod.state for pod in members)
    queued = [pod for pod in members if pod.state is PodState.QUEUED]
    # Pods that have completed their part count: the job goes on without them.
    running = states[PodState.RUNNING] + states[PodState.SUCCEEDED]
    if running >= needed:
        return "running", ""
    if queued and running + states[PodState.STARTING] < needed:
        return "queued", next((pod.why for pod in queued if pod.why), "")
    slow = [pod.why for pod in members if pod.state is PodState.STARTING and pod.why]
    return ("starting", slow[0]) if slow else ("starting", "" if members else "its pods are not created yet")


def _why_failed(leader: RoleJob, members: list[JobMember]) -> str:
    failed = [pod for pod in members if pod.state is PodState.FAILED and pod.why]
    if leader.result != "failed" or not failed:
        return leader.message
    last = max(failed, key=lambda pod: pod.created)
    return f"{last.label} failed: {last.why}" + (f" ({leader.message})" if leader.message else "")


def sort_jobs(jobs: Iterable[TrainingJobState]) -> list[TrainingJobState]:
    """Sort jobs: those that need attention or run first."""

    def key(job: TrainingJobState) -> tuple[int, str, str, str]:
        return _STATE_ORDER.index(job.state), job.namespace, job.name, job.run

    return sorted(jobs, key=key)


def unusual_conditions(job: TrainingJobState, now: datetime) -> list[str]:
    """Return what the owner of a running job may want to know, one phrase each."""
    found = []
    progress = job.progress
    if job.expires is not None and not job.over:
        left = job.expires - seconds_since(job.started or job.created, now)
        found.append(f"experiment, ends in {duration_text(left)}")
    if job.failures and not job.over:
        found.append(f"{job.failures} failure{'' if job.failures == 1 else 's'} so far")
    if job.state != "running":
        return found
    if progress is None:
        return found
    master = progress.master
    if master.slow:
        few = ", ".join(master.stragglers[:2])
        found.append(f"{master.slow} straggler{'' if master.slow == 1 else 's'}: {few}")
    if master.replaced:
        last = master.replaced[-1]
        if (ago := seconds_since(last.at, now)) < _RECENT_S:
            found.append(f"{last.name} replaced {duration_text(ago)} ago: {last.share:.2f} of the median speed")
    if master.dropped:
        found.append(f"{master.dropped} gradient{'' if master.dropped == 1 else 's'} of late workers dropped")
    if master.at and (silent := seconds_since(master.at, now)) > _SILENT_AFTER_S:
        found.append(f"its master has reported nothing for {silent / 60:.0f} min")
    return found
