"""A command that runs beside a test."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping

from tools.waiting import patience


class Following:
    """The lines that a command has printed so far."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def end(self) -> int:
        code = self.process.wait(patience())
        self._thread.join(patience())
        return code

    def __contains__(self, text: str) -> bool:
        return any(text in line for line in self.lines)
