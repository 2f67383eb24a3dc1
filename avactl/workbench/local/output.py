"""Output of a run: each line with its pod, in the colour of its role."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator

from avactl.base.terminal import inert_text, use_colour, visible_text
from avactl.workbench import step_progress

MAX_CHARACTERS = 8192
"""Longest line that is kept in one piece."""
_POD_COLOURS = (36, 33, 35, 32, 34, 31)
_SGR_SEQUENCE = re.compile(r"(\x1b\[[0-9;]{0,32}m)")
_SEPARATOR = "│"


class LocalOutput:
    """Writes lines of pods and of avactl to standard output."""

    def __init__(self, labels: Iterable[str]) -> None:
        """`labels`: ROLE-INDEX of all pods."""
        known = list(labels)
        roles = list(dict.fromkeys(label.rpartition("-")[0] for label in known))
        self._colours = {role: _POD_COLOURS[index % len(_POD_COLOURS)] for index, role in enumerate(roles)}
        self._width = max(map(len, known), default=0)
        self._coloured = use_colour()

    def line(self, label: str, text: str) -> None:
        """Write one line of a pod. Progress is written in words."""
        told = step_progress.read(text)
        self._write(label, self._safe(text) if told is None else self._style(1, str(told)))

    def event(self, label: str, text: str) -> None:
        """Write what happened to a pod."""
        self._write(label, self._style(1, text))

    def note(self, text: str) -> None:
        """Write a line about the run."""
        self._print(self._style(1, visible_text(text)))

    def _write(self, label: str, text: str) -> None:
        shown = f"{label:<{self._width}} {_SEPARATOR}"
        self._print(f"{self._style(self._colours.get(label.rpartition('-')[0], 0), shown)} {text}")

    def _print(self, text: str) -> None:
        try:
            sys.stdout.write(f"{inert_text(text)}\n")
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader (`head`) has seen enough, and the run ends as if it were stopped.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            signal.raise_signal(signal.SIGTERM)

    def _style(self, code: int, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text

    def _safe(self, text: str) -> str:
        """Return a line of a program: colours stay on a terminal, other control characters do not."""
        parts = _SGR_SEQUENCE.split(text)
        plain = "".join(part if index % 2 else visible_text(part) for index, part in enumerate(parts))
        if not self._coloured:
            return _SGR_SEQUENCE.sub("", plain)
        return f"{plain}\x1b[0m" if len(parts) > 1 else plain


class Lines:
    """Cuts a stream of bytes into lines. Of a progress bar, the last state of each chunk is kept."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the lines that are complete; very long ones in pieces."""
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            yield from self._split_line(line)
        while len(self._rest) > MAX_CHARACTERS:
            head, self._rest = self._rest[:MAX_CHARACTERS], self._rest[MAX_CHARACTERS:]
            yield from self._split_line(head)

    def end(self) -> Iterator[str]:
        """Yield the last line, if it has no newline."""
        rest, self._rest = self._rest, b""
        if rest:
            yield from self._split_line(rest)

    def _split_line(self, line: bytes) -> Iterator[str]:
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
        for start in range(0, max(1, len(text)), MAX_CHARACTERS):
            yield text[start : start + MAX_CHARACTERS]
