"""Life of a job on one machine: retries, the leader's end and signals, as a Job controller and kubelet do."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from avactl.base.terminal import count_text
from avactl.workbench.local.output import LocalOutput
from avactl.workbench.local.pods import LocalJob, LocalPod
from avactl.workbench.local.process import PodProcess

_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
"""Seconds before a restart, doubled each time."""
_MAX_REPLACED, _HOUR = 2, 3600.0
"""Times in an hour that a pod may be replaced: the job master does so once. More often, its script is at fault."""
_TIMED_OUT = 124
"""Exit code of a run that took too long, as of timeout(1)."""


class _StoppedError(Exception):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class _Member:
    """A pod with its process and the task that keeps it running."""

    def __init__(self, pod: LocalPod, process: PodProcess) -> None:
        self.pod, self.process = pod, process
        self.ending = False
        """True if it is not restarted any more."""
        self.task: asyncio.Task[int] | None = None

    @property
    def active(self) -> bool:
        return self.task is not None and not self.task.done()


class Runner:
    """Runs a job to its end."""

    def __init__(self, job: LocalJob, run: str, output: LocalOutput) -> None:
        """`run`: name of the run, unique on the machine."""
        self._job, self._output = job, output
        running: set[int] = set()
        self._members = [_Member(pod, PodProcess(pod, run, self._line_writer(pod), running)) for pod in job.pods]
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self.stopped = False
        """True if a signal ended the run."""

    def _line_writer(self, pod: LocalPod) -> Callable[[str], None]:
        return lambda text: self._output.line(pod.label, text)

    async def run(self) -> int:
        """Run all pods and return the exit code: 0, that of the pod that failed the job, or 128 + a signal's number."""
        loop = asyncio.get_running_loop()
        for number in _END_SIGNALS:
            loop.add_signal_handler(number, self._signals.put_nowait, number)
        stop = asyncio.create_task(self._signals.get())
        try:
            for member in self._members:
                member.process.prepare()
            for member in self._members:
                member.task = asyncio.create_task(self._keep_running(member))
            code = await self._until_decided(stop)
            await self._end_others(stop, lingering=code == 0)
            return code
        except _StoppedError as stopped:
            self.stopped = True
            return stopped.exit_code
        finally:
            stop.cancel()
            tasks = [member.task for member in self._members if member.task is not None]
            for member in self._members:
                member.ending = True  # `wait_for` may swallow the cancellation of a pod that has just ended
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for number in _END_SIGNALS:
                loop.remove_signal_handler(number)

    async def _keep_running(self, member: _Member) -> int:
        """Run a pod until it succeeds, or fails once more than it is retried."""
        failures, delay = 0, _FIRST_DELAY
        replaced: deque[float] = deque(maxlen=_MAX_REPLACED)
        clock = asyncio.get_running_loop().time
        while True:
            code = await member.process.attempt()
            if member.ending or (code == 0 and member.pod.leads):
                return code
            often = len(replaced) == _MAX_REPLACED and clock() - replaced[0] < _HOUR
            if code in self._job.ignored and not often:
                replaced.append(clock())
                self._output.event(member.pod.label, f"exited with code {code}: replaced, without using up a restart")
            elif code != 0:
                failures += 1
                if failures > self._job.retries:
                    self._output.event(member.pod.label, _failure_text(code, self._job.retries))
                    return code
                text = f"exited with code {code}; restart {failures} of {self._job.retries} in {delay:.0f} s"
                self._output.event(member.pod.label, text)
            # The kubelet restarts a sidecar for ever, also after success: the leader decides when it is over.
            await asyncio.sleep(delay)
            if member.ending:
                return code
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _until_decided(self, stop: asyncio.Task[int]) -> int:
        """Wait until the job has succeeded or failed, and return its exit code. Raises _StoppedError."""
        leaders = [member for member in self._members if member.pod.leads]
        pending: set[asyncio.Task[int]] = {stop, *(each.task for each in self._members if each.task is not None)}
        clock = asyncio.get_running_loop().time
        deadline = None if self._job.timeout is None else clock() + self._job.timeout
        while True:
            left = None if deadline is None else max(0, deadline - clock())
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self._output.note(f"not done after its timeout of {self._job.timeout:.0f} s")
                return _TIMED_OUT
            if stop in done:
                await self._stop(stop.result())
            for task in done:
                task.result()  # an OSError
            failed = [each for each in self._members if not each.active and _member_result(each)]
            followers = [each for each in failed if not each.pod.leads]
            if followers or len(failed) > self._job.most_failed:
                return _member_result((followers or failed)[0])
            if self._job.first_pod_decides and not leaders[0].active and not _member_result(leaders[0]):
                return 0
            if not any(each.active for each in leaders):
                return _member_result(failed[0]) if failed else 0

    async def _stop(self, number: int) -> None:
        """End all pods after a signal: leading ones first, as they may save state on servers. Raises _StoppedError."""
        name = signal.Signals(number).name
        active = [each for each in self._members if each.active]
        longest = max((each.pod.grace for each in active), default=0)
        again = "; Ctrl-C again kills them" if number == signal.SIGINT else ""
        self._output.note(
            f"{name}: ending {count_text(len(active), 'process', 'processes')} within {longest:.0f} s{again}"
        )
        ending = asyncio.create_task(self._end_in_order())
        killing = asyncio.create_task(self._signals.get())
        try:
            await asyncio.wait({ending, killing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            killing.cancel()
        raise _StoppedError(number)

    async def _end_in_order(self) -> None:
        await self._end_members([each for each in self._members if not each.pod.stops_last])
        await self._end_members([each for each in self._members if each.pod.stops_last])

    async def _end_others(self, stop: asyncio.Task[int], lingering: bool) -> None:
        """End the pods that are left when the job is decided. Raises _StoppedError on a signal, which kills them."""
        others = [each for each in self._members if each.active]
        late = [each for each in others if lingering and each.pod.linger]
        soon = [each for each in others if each not in late]
        ending = asyncio.create_task(self._run_all(self._end_members(soon), *map(self._wait_for_end, late)))
        await asyncio.wait({ending, stop}, return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            ending.cancel()
            raise _StoppedError(stop.result())

    @staticmethod
    async def _run_all(*parts: Awaitable[None]) -> None:
        await asyncio.gather(*parts)

    async def _wait_for_end(self, member: _Member) -> None:
        """Give a pod its time to end by itself."""
        member.ending = True
        if not member.process.started:
            await self._end_members([member])
            return
        self._output.event(member.pod.label, f"has {member.pod.linger:.0f} s to end; Ctrl-C kills it")
        assert member.task is not None
        await asyncio.wait({member.task}, timeout=member.pod.linger)
        await self._end_members([member])

    async def _end_members(self, members: Iterable[_Member]) -> None:
        """Send SIGTERM, and SIGKILL after the grace period."""

        async def end(member: _Member) -> None:
            member.ending = True
            member.process.signal(signal.SIGTERM)
            task = member.task
            assert task is not None
            if not member.process.started:
                task.cancel()  # it waits for its next attempt
            done, _ = await asyncio.wait({task}, timeout=member.pod.grace)
            if not done:
                self._output.event(member.pod.label, f"did not end within {member.pod.grace:.0f} s and is killed")
                member.process.signal(signal.SIGKILL)
                await asyncio.wait({task})

        await asyncio.gather(*(end(member) for member in members if member.active))


def _member_result(member: _Member) -> int:
    return member.task.result() if member.task is not None and not member.task.cancelled() else 0


def _failure_text(code: int, retries: int) -> str:
    after = f" after {count_text(retries, 'restart')}" if retries else ""
    return f"failed with exit code {code}{after}"
