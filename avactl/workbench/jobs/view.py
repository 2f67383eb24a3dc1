"""A read-only view of the training jobs of a cluster or namespace, with the permissions of a kubeconfig."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from avactl.base.object_identity import namespaced_name
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.kube.live_view import LiveView
from avactl.kube.reflector import Reflector
from avactl.scheduler.inspection import pod_controllers
from avactl.workbench.jobs.members import (
    COMPONENT,
    INSTANCE,
    SELECTOR,
    JobMember,
    RoleJob,
    clean_text,
    make_member,
    role_job,
)
from avactl.workbench.jobs.progress import JobProgress, read_progress
from avactl.workbench.jobs.reports import LogReports
from avactl.workbench.jobs.state import TrainingJobState, assemble_job, sort_jobs

_MASTER_SELECTOR = f"{SELECTOR},{COMPONENT}=master"
_MAX_ASKED_MASTERS = 10
"""Jobs without pods whose controllers are asked for the reason, at one time."""
_LOG_INTERVAL_S = 5.0
"""Seconds between two reads of logs."""
_T = TypeVar("_T")


class _Kept(Generic[_T]):
    """Objects of one kind, each reduced by `parse`."""

    def __init__(self, parse: Callable[[dict[str, Any]], _T]) -> None:
        self.items: dict[str, _T] = {}
        self._parse = parse

    def put(self, item: dict[str, Any]) -> None:
        self.items[namespaced_name(item)] = self._parse(item)

    def remove(self, key: str) -> None:
        self.items.pop(key, None)

    def keys(self) -> Iterable[str]:
        return self.items.keys()


class JobsView(LiveView):
    """Training jobs, as far as the API server shows them."""

    def __init__(self, client: Client, namespace: str = "", name: str = "") -> None:
        """`namespace`: empty for all; `name`: of one job, empty for all."""
        super().__init__()
        self.client, self.namespace = client, namespace
        self.hidden: dict[str, str] = {}
        """Kinds that the API server does not show, and what it says."""
        self._jobs, self._pods = _Kept[RoleJob](role_job), _Kept[JobMember](make_member)
        self._told = _Kept[JobProgress | None](lambda item: read_progress(item["metadata"]))
        self._reasons: dict[str, str] = {}
        self._reports: LogReports | None = None
        inside = f"/namespaces/{namespace}" if namespace else ""
        one = f",{INSTANCE}={name}" if name else ""
        self._reflectors = [
            Reflector(client, f"/apis/batch/v1{inside}/jobs", self._jobs, query={"labelSelector": SELECTOR + one}),
            Reflector(client, f"/api/v1{inside}/pods", self._pods, query={"labelSelector": SELECTOR + one}),
            Reflector(
                client,
                f"/api/v1{inside}/configmaps",
                self._told,
                query={"labelSelector": _MASTER_SELECTOR + one},
                metadata_only=True,
            ),
        ]

    async def load(self) -> None:
        """Read all objects once. Raises ApiError and UnreachableError; Jobs and pods must be readable."""
        allowed = []
        for reflector in self._reflectors:
            try:
                await reflector.load()
            except ApiError as error:
                if not error.forbidden or reflector.kind != "configmaps":
                    raise
                self.hidden[reflector.kind] = str(error)
            else:
                allowed.append(reflector)
        self._reflectors = allowed
        await self.explain()

    async def explain(self) -> None:
        """Ask why jobs have no pods. Raises ApiError and UnreachableError."""
        reasons = {}
        for job in [job for job in self._assemble_jobs() if job.state == "starting" and not job.members][
            :_MAX_ASKED_MASTERS
        ]:
            for maker in await pod_controllers.short(self.client, job.namespace, job.name):
                reasons[f"{job.namespace}/{job.name}"] = clean_text(maker.words)
        self._reasons = reasons

    async def explain_quietly(self) -> None:
        """The same, as long as the API server answers."""
        with contextlib.suppress(ApiError, UnreachableError):
            await self.explain()

    async def read_logs(self) -> None:
        """Read the progress that scripts print, now and while `follow` runs. Logs that cannot be read are left out."""
        self._reports = self._reports or LogReports(self.client)
        await self._reports.read(sort_jobs(self._assemble_jobs()))

    async def follow(self, changed: Callable[[], None]) -> None:
        """Watch the API server until cancelled; calls `changed` after each batch, and when a request has failed."""
        reading = asyncio.ensure_future(self._keep_reading(changed)) if self._reports is not None else None
        try:
            await super().follow(changed)
        finally:
            if reading is not None:
                reading.cancel()

    async def _keep_reading(self, changed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_LOG_INTERVAL_S)
            await self.read_logs()
            changed()

    def jobs(self) -> list[TrainingJobState]:
        """Return the jobs: those that run first, those that have ended last."""
        found = []
        for job in self._assemble_jobs():
            reason = self._reasons.get(f"{job.namespace}/{job.name}", "")
            found.append(job._replace(why=reason) if reason and not job.members and job.state == "starting" else job)
        return sort_jobs(found)

    def _assemble_jobs(self) -> list[TrainingJobState]:
        parts: dict[tuple[str, str], list[RoleJob]] = {}
        for part in self._jobs.items.values():
            if part.job:
                parts.setdefault((part.namespace, part.job), []).append(part)
        pods: dict[tuple[str, str], list[JobMember]] = {}
        for pod in self._pods.items.values():
            pods.setdefault((pod.namespace, pod.job), []).append(pod)
        found = []
        for (namespace, name), group in parts.items():
            leader = min(group, key=lambda part: (not part.leads, part.role))
            told = self._told.items.get(f"{namespace}/{name}-master")
            current = told if told is not None and told.master.run == leader.run else None
            job = assemble_job(group, pods.get((namespace, name), ()), current)
            found.append(job if self._reports is None else self._reports.of(job))
        return found
