"""Progress that scripts print: the end of the log of a job's first pod, read with the caller's rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import NamedTuple

from avactl.contracts.elastic import ElasticProgress
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.workbench import step_progress
from avactl.workbench.jobs.log_lines import Cursor
from avactl.workbench.jobs.members import JobMember
from avactl.workbench.jobs.progress import JobProgress
from avactl.workbench.jobs.state import TrainingJobState
from avactl.workbench.step_progress import StepProgress

_LINES, _BYTES = 200, 262_144
"""Lines and bytes of the end of a log."""
_MAX_JOBS = 50
"""Jobs whose logs are read at the same time."""
_READ_TIMEOUT_S = 2.0
"""Seconds for the logs of all jobs: a list of jobs does not wait for nodes that do not answer."""


class Told(NamedTuple):
    """Progress in a line."""

    time: int
    """Nanoseconds since 1970, when it was printed."""
    progress: StepProgress


class LogReports:
    """Progress lines that the first pods of jobs have printed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._told: dict[str, list[Told]] = {}
        """By UID of the pod."""

    async def read(self, jobs: Iterable[TrainingJobState]) -> None:
        """Read the logs of running jobs without progress of a job master. A log that cannot be read is left out."""
        wanted = [
            job for job in jobs if job.state == "running" and (job.progress is None or not job.progress.master.datasets)
        ]
        pods = [pod for job in wanted if (pod := job.first) is not None][:_MAX_JOBS]
        tasks = {asyncio.ensure_future(self._read(pod)): pod for pod in pods}
        if not tasks:
            return
        done, late = await asyncio.wait(tasks, timeout=_READ_TIMEOUT_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        # A script that prints much else, or a node that does not answer, keeps what it told before.
        present = {pod.uid for pod in pods}
        self._told = {uid: told for uid, told in self._told.items() if uid in present}
        for task in done:
            if told := task.result():
                self._told[tasks[task].uid] = told

    async def _read(self, pod: JobMember) -> list[Told]:
        query = {
            "container": pod.role,
            "timestamps": "true",
            "tailLines": str(_LINES),
            "limitBytes": str(_BYTES),
        }
        reader, size, found = Cursor().reader(), 0, []
        try:
            path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log"
            async with aclosing(self._client.stream(path, query)) as stream:
                async for chunk in stream:
                    for line in reader.feed(chunk[: _BYTES - size]):
                        if (progress := step_progress.read(line.text)) is not None:
                            found.append(Told(line.time, progress))
                    size += len(chunk)
                    if size >= _BYTES:  # a kubelet need not know `limitBytes`
                        break
        except (ApiError, UnreachableError):
            return []
        return found

    def of(self, job: TrainingJobState) -> TrainingJobState:
        """Return the job with what its first pod has printed, if no master has told more."""
        pod = job.first
        told = self._told.get(pod.uid) if pod is not None else None
        if told is None or _has_datasets(job):
            return job
        return job._replace(progress=merge_progress(job.progress, told))


def _has_datasets(job: TrainingJobState) -> bool:
    return job.progress is not None and bool(job.progress.master.datasets)


def merge_progress(master: JobProgress | None, told: list[Told]) -> JobProgress:
    """Return the progress of printed lines, of which there is at least one, with what a master knows about workers."""
    last = told[-1].progress
    run = [told[-1]]
    for each in reversed(told[:-1]):
        if each.progress.step > run[-1].progress.step:
            break  # before that, training was at another place: it has begun anew
        run.append(each)
    run.reverse()
    seconds, steps = (run[-1].time - run[0].time) / 1e9, last.step - run[0].progress.step
    if last.speed is None and seconds > 0 and steps > 0:
        last = last._replace(speed=steps / seconds)
    metric = last.metric
    curve = tuple(
        (each.progress.step, each.progress.metrics[metric]) for each in run if metric in each.progress.metrics
    )
    known = ElasticProgress() if master is None else master.master
    return JobProgress(known.replace(speed=last.records_per_second, metric=metric, curve=curve), last)
