"""Runs the programs that describe the machine's GPUs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from avactl.hardware.topo_text import decode

_COMMAND_TIMEOUT_S = 60.0
"""Seconds the command may take; it can hang if a GPU has fallen off the bus."""
_MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""Bytes of output that are read."""


class CommandOutput(NamedTuple):
    """Output of a program that has ended."""

    code: int
    output: str
    errors: str

    @property
    def first_line(self) -> str:
        """The first line, by preference of standard error."""
        lines = (line.strip() for line in (*self.errors.splitlines(), *self.output.splitlines()))
        return next((line[:200] for line in lines if line), "")


class CommandError(Exception):
    """A program did not start or did not end; the message says why."""


async def run_command(command: Sequence[str]) -> CommandOutput:
    """Run a program to its end. Raises CommandError."""
    shown = " ".join(command)
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, limit=_MAX_OUTPUT_BYTES)
    except OSError as error:
        raise CommandError(f"`{shown}`: {(error.strerror or str(error)).lower()}") from None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(_COMMAND_TIMEOUT_S):
            # Read both at once: a full pipe would block the command.
            out, err = await asyncio.gather(_read_bounded(process.stdout), _read_bounded(process.stderr))
            code = await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise CommandError(f"`{shown}`: no answer in {_COMMAND_TIMEOUT_S:g} s") from None
    return CommandOutput(code, decode(out), decode(err))


async def _read_bounded(stream: asyncio.StreamReader) -> bytes:
    """Read up to a limit; the rest is drained and dropped."""
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept += chunk[: _MAX_OUTPUT_BYTES - len(kept)]
    return kept
