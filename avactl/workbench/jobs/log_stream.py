"""Logs of all pods of a job: merged by time, then followed as pods come and go and connections break."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator
from typing import Protocol

from avactl.kube.client import ApiError, Client, SilenceError, UnreachableError
from avactl.workbench.jobs.log_lines import Cursor, LogLine
from avactl.workbench.jobs.members import JobMember, PodState, clean_text
from avactl.workbench.jobs.state import TrainingJobState
from avactl.workbench.jobs.view import JobsView

MAX_PODS = 100
"""Pods whose logs are read at the same time."""
_RETRY_INTERVAL_S = 1.0
"""Seconds after which a log is asked for again."""
_DENIED_STATUSES = (401, 403)
_NOT_YET = (400, 404)
"""Answers for a container that has not started, and for a pod that is gone."""
_ENDED_STATES = (PodState.SUCCEEDED, PodState.FAILED)


class TooManyPodsError(Exception):
    """More pods than logs that are read at the same time."""


class Sink(Protocol):
    """Receiver of lines and events."""

    def line(self, label: str, text: str) -> None:
        """Show a line of a pod."""

    def event(self, label: str, text: str) -> None:
        """Show what happened to a pod."""

    def note(self, text: str) -> None:
        """Show what concerns the whole job."""


class LogSelection:
    """The pods whose logs are wanted."""

    def __init__(self, role: str = "", index: int | None = None) -> None:
        self._role, self._index = role, index

    def pods(self, job: TrainingJobState) -> list[JobMember]:
        """Return the chosen pods, older ones of an index first. Raises TooManyPodsError."""
        found = [
            pod
            for pod in job.members
            if (not self._role or pod.role == self._role) and self._index in (None, pod.index) and pod.node
        ]
        if len(found) > MAX_PODS:
            raise TooManyPodsError(f"the job has {len(found)} pods, and at most {MAX_PODS} logs are shown together")
        return found


class JobLogs:
    """The logs of one job."""

    def __init__(self, view: JobsView, selection: LogSelection, sink: Sink, tail: int | None) -> None:
        self._view, self._selection, self._sink, self._tail = view, selection, sink, tail
        self._client: Client = view.client
        self._cursors: dict[str, Cursor] = {}
        """By UID of the pod."""
        self._newest: dict[str, str] = {}
        """UID of the newest pod by role and index."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._told = ""

    # -- what there is -----------------------------------------------------------------------------------------------

    async def show(self) -> None:
        """Show what the pods have written so far, in the order of time. Raises ApiError and UnreachableError."""
        job = self._current_job()
        if job is None:
            return
        heap: list[tuple[int, int, str]] = []
        streams = [(pod, self._read_lines(pod, follow=False)) for pod in self._selection.pods(job)]
        try:
            first = await asyncio.gather(*(self._next_line(pod, stream) for pod, stream in streams))
            for number, line in enumerate(first):
                if line is not None:
                    heap.append((line.time, number, line.text))
            heapq.heapify(heap)
            while heap:
                _, number, text = heap[0]
                pod, stream = streams[number]
                self._announce_pod(pod)
                self._sink.line(pod.label, text)
                following = await self._next_line(pod, stream)
                if following is None:
                    heapq.heappop(heap)
                else:
                    heapq.heapreplace(heap, (following.time, number, following.text))
        finally:
            for _, stream in streams:
                await stream.aclose()

    def _announce_pod(self, pod: JobMember) -> None:
        """Say that another pod of the same index begins."""
        before = self._newest.get(pod.label)
        self._newest[pod.label] = pod.uid
        if before is not None and before != pod.uid:
            self._sink.event(pod.label, f"pod {pod.name} on {pod.node}")

    async def _read_lines(self, pod: JobMember, *, follow: bool) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of a pod after its cursor. Raises ApiError and UnreachableError."""
        cursor = self._cursors.setdefault(pod.uid, Cursor())
        query = {"container": pod.role, "timestamps": "true", "follow": "true" if follow else "false"}
        if cursor.since is not None:
            query["sinceTime"] = cursor.since
        elif self._tail is not None:
            query["tailLines"] = str(self._tail)
        reader = cursor.reader()
        async for chunk in self._client.stream(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log", query):
            for line in reader.feed(chunk):
                yield line
        for line in reader.end():
            yield line

    async def _next_line(self, pod: JobMember, stream: AsyncGenerator[LogLine, None]) -> LogLine | None:
        """Return the next line; None at the end, or after saying why the log cannot be read."""
        try:
            return await anext(stream, None)
        except ApiError as error:
            if error.status in _DENIED_STATUSES:
                raise
            self._sink.event(pod.label, f"its log cannot be read: {clean_text(error.message)}")
            return None

    # -- what follows ------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Show what there is, and what comes until the job ends or is deleted.

        Raises ApiError and UnreachableError at the beginning only.
        """
        await self.show()
        changed = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._view.follow(changed.set))
                try:
                    while not self._is_over():
                        self._report_connection()
                        self._start_readers(group, changed)
                        await changed.wait()
                        changed.clear()
                finally:
                    watching.cancel()
                    for task in self._reading.values():
                        task.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _start_readers(self, group: asyncio.TaskGroup, changed: asyncio.Event) -> None:
        """Read the logs of pods that are new."""
        job = self._current_job()
        for pod in self._selection.pods(job) if job is not None else ():
            if pod.uid not in self._reading:
                self._reading[pod.uid] = group.create_task(self._read(pod))
                self._reading[pod.uid].add_done_callback(lambda _: changed.set())

    def _is_over(self) -> bool:
        job = self._current_job()
        if any(not task.done() for task in self._reading.values()):
            return False
        if job is None:
            self._sink.note("the job was deleted")
            return True
        if not job.over or any(pod.uid not in self._reading for pod in self._selection.pods(job)):
            return False
        self._sink.note(f"the job has {job.state}" + (f": {job.why}" if job.why else ""))
        return True

    def _report_connection(self) -> None:
        """Say when the API server is lost, and why there is nothing to see."""
        job = self._current_job()
        told = ""
        if self._view.silent is not None:
            told = "no answer from the API server; trying again"
        elif job is not None and job.state in ("queued", "starting", "suspended"):
            told = f"the job is {job.state}" + (f": {job.why}" if job.why else "")
        if told and told != self._told:
            self._sink.note(told)
        self._told = told

    async def _read(self, pod: JobMember) -> None:
        """Show the log of a pod until it has ended."""
        await self._wait_for_predecessor(pod)
        self._announce_pod(pod)
        restarts, refused = pod.restarts, ""
        while True:
            now = self._current_pod(pod.uid)
            ended = now is None or now.state in _ENDED_STATES
            if now is not None and now.restarts > restarts:
                restarts = now.restarts
                self._sink.event(pod.label, "its container was restarted")
            lost = False
            try:
                async for line in self._read_lines(pod, follow=True):
                    self._sink.line(pod.label, line.text)
            except SilenceError:
                continue
            except UnreachableError:
                lost = True
            except ApiError as error:
                # An API server that has just started refuses everything until it knows the roles.
                lost = error.status in _DENIED_STATUSES
                if error.message != refused and error.status not in _NOT_YET:
                    self._sink.event(pod.label, f"its log cannot be read: {clean_text(error.message)}")
                refused = error.message
            # A stream that was opened after the end has everything.
            if ended and not lost:
                if now is not None:
                    self._sink.event(pod.label, f"{now.state.value}" + (f": {now.why}" if now.why else ""))
                return
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _wait_for_predecessor(self, pod: JobMember) -> None:
        """Wait until the end of the pod that this one replaces was shown. One that still runs is not waited for."""
        uid = self._newest.get(pod.label, pod.uid)
        before = self._current_pod(uid)
        if uid != pod.uid and uid in self._reading and (before is None or before.state in _ENDED_STATES):
            await asyncio.wait([self._reading[uid]])

    def _current_pod(self, uid: str) -> JobMember | None:
        job = self._current_job()
        return next((each for each in job.members if each.uid == uid), None) if job is not None else None

    def _current_job(self) -> TrainingJobState | None:
        return next(iter(self._view.jobs()), None)
