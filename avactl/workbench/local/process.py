"""One pod as a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable

from avactl.workbench.local.descendants import MARK, end_with_parent, kill_descendants
from avactl.workbench.local.output import Lines
from avactl.workbench.local.pods import LocalPod

_CHUNK_BYTES = 65536
_LAST_OUTPUT = 5.0
"""Seconds to wait for the end of the output after all processes are gone."""


class PodProcess:
    """The process of a pod, started anew for each attempt."""

    def __init__(self, pod: LocalPod, run: str, show: Callable[[str], None], running: set[int]) -> None:
        """`run`: name of the run, unique on the machine. `show`: writes a line. `running`: processes of all pods."""
        self.pod = pod
        self._mark = f"{run}/{pod.label}"
        self._show = show
        self._running = running
        self._process: Process | None = None

    def prepare(self) -> None:
        """Create the pod's directories and files."""
        for directory in self.pod.directories:
            directory.mkdir(parents=True, exist_ok=True)
        for path, (text, mode) in self.pod.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(mode)

    async def attempt(self) -> int:
        """Run the command and return its exit code, as a shell does: 128 + N after signal N.

        Everything that it started has ended when this returns. When cancelled, it is killed. Raises OSError if the
        command cannot be executed.
        """
        pod = self.pod
        # A pipe of our own: with asyncio's, `wait` would also wait for whoever has inherited it.
        reading, writing = os.pipe()
        output = asyncio.create_task(self._copy(reading))
        try:
            process = await asyncio.create_subprocess_exec(
                *pod.argv,
                cwd=pod.directory,
                env={**pod.env, MARK: self._mark},
                stdin=DEVNULL,
                stdout=writing,
                stderr=STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        finally:
            os.close(writing)
        self._process = process
        self._running.add(process.pid)
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
            self._running.discard(process.pid)
            self._process = None
            kill_descendants(process.pid, self._mark, self._running)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(output, _LAST_OUTPUT)
        return code if code >= 0 else 128 - code

    async def _copy(self, reading: int) -> None:
        """Show what comes through a pipe until all of its writers have ended."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0)
        )
        lines = Lines()
        try:
            while data := await reader.read(_CHUNK_BYTES):
                for line in lines.feed(data):
                    self._show(line)
            for line in lines.end():
                self._show(line)
        finally:
            transport.close()

    @property
    def started(self) -> bool:
        """True while the command runs."""
        return self._process is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command, if it runs. As in a pod, only the first process gets it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
