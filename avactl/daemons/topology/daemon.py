"""Node daemon: compare a GPU machine with its pool's machine type; report a node condition, and events on changes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from avactl.base.object_identity import object_reference
from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts import names
from avactl.contracts.document import DocumentError, load_file
from avactl.contracts.scheduling import PoolFacts
from avactl.hardware.machine import Machine
from avactl.hardware.topo_check import TopologyVerdict, judge, unknown
from avactl.hardware.topo_text import decode
from avactl.kube import logs
from avactl.kube.access import ClusterAccess
from avactl.kube.client import STRATEGIC, ApiError, Client, UnreachableError
from avactl.kube.daemons import run_until_signal
from avactl.kube.events import EventRecorder
from avactl.kube.timestamps import timestamp

CONTROLLER = "avactl-topology"
_COMMAND_TIMEOUT_S = 60.0
"""Seconds the command may take; it can hang if a GPU has fallen off the bus."""
_MAX_OUTPUT_BYTES = 4 * 1024 * 1024
"""Bytes of output that are read."""
_RETRY_RANGE_S = (1.0, 60.0)
"""Seconds until a failed API request is retried: first, and at most."""
_MAX_NOTE_LENGTH = 1024
"""Longest condition message, in characters."""


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """Options of the daemon."""

    node: str
    pool: Path
    """`pool.json`, as the NodePool compiles it."""
    command: Sequence[str] = ("nvidia-smi", "topo", "-m")
    interval: float = 300.0
    """Seconds between two checks."""


class TopologyWatcher:
    """Checks one machine."""

    def __init__(self, client: Client, options: TopologyOptions) -> None:
        self._client, self._options = client, options
        self._events = EventRecorder(client, CONTROLLER, "Checking")
        self._path = f"/api/v1/nodes/{options.node}/status"

    async def run(self) -> None:
        """Run until cancelled. Failed writes to the API server are retried."""
        wait = _RETRY_RANGE_S[0]
        while True:
            found = await check_topology(self._options)
            # The command's output is untrusted text too.
            verdict = found._replace(message=visible_text(shorten_middle(found.message, _MAX_NOTE_LENGTH)))
            try:
                await self._report_verdict(verdict)
            except (ApiError, UnreachableError) as error:
                logs.warn("condition not written", node=self._options.node, error=str(error))
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311
                wait = min(2 * wait, _RETRY_RANGE_S[1])
                continue
            wait = _RETRY_RANGE_S[0]
            # Spread the checks of machines that started together.
            await asyncio.sleep(self._options.interval * random.uniform(0.9, 1.1))  # noqa: S311

    async def _report_verdict(self, verdict: TopologyVerdict) -> None:
        # A patch that changes nothing returns the node: the right to read nodes is not needed.
        node = await self._client.request("PATCH", self._path, {}, content_type=STRATEGIC)
        conditions = (node.get("status") or {}).get("conditions") or ()
        before = next((each for each in conditions if each["type"] == names.TOPOLOGY_CONDITION), None)
        now = timestamp()
        same = before is not None and before["status"] == verdict.status
        condition = {
            "type": names.TOPOLOGY_CONDITION,
            "status": verdict.status,
            "reason": verdict.reason,
            "message": verdict.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": (before or {}).get("lastTransitionTime") if same else now,
        }
        await self._client.send("PATCH", self._path, {"status": {"conditions": [condition]}}, content_type=STRATEGIC)
        if same:
            return
        logs.info("condition changed", node=self._options.node, status=verdict.status, said=verdict.message)
        if before is not None or verdict.status != "True":
            regarding, warning = object_reference("v1", "Node", node["metadata"]), verdict.status != "True"
            await self._events.record(regarding, verdict.reason, verdict.message, warning=warning)


async def check_topology(options: TopologyOptions) -> TopologyVerdict:
    """Run the command and compare. The pool is read each time, because it may have changed."""
    try:
        facts = load_file(PoolFacts, options.pool)
    except OSError as error:
        return unknown("PoolUnknown", f"{options.pool}: {error.strerror}")
    except DocumentError as error:
        return unknown("PoolUnknown", f"{options.pool} is not a pool: {error}")
    machine = Machine.from_facts(facts.machine)
    output = await _run_command(options.command)
    return output if isinstance(output, TopologyVerdict) else judge(machine, facts.machine_type, output)


async def _run_command(command: Sequence[str]) -> str | TopologyVerdict:
    shown = " ".join(command)
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, limit=_MAX_OUTPUT_BYTES)
    except OSError as error:
        return unknown("CommandFailed", f"`{shown}`: {(error.strerror or str(error)).lower()}")
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
        return unknown("CommandFailed", f"`{shown}`: no answer in {_COMMAND_TIMEOUT_S:g} s")
    if code:
        said = [line.strip() for line in (*decode(err).splitlines(), *decode(out).splitlines()) if line.strip()]
        return unknown("CommandFailed", f"`{shown}` ended with {code}{f': {said[0][:200]}' if said else ''}")
    return decode(out)


async def _read_bounded(stream: asyncio.StreamReader) -> bytes:
    """Read up to a limit; the rest is drained and dropped."""
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept += chunk[: _MAX_OUTPUT_BYTES - len(kept)]
    return kept


async def run(access: ClusterAccess, options: TopologyOptions) -> None:
    """Run checks until SIGTERM or SIGINT."""

    async def watch() -> None:
        async with Client(access, CONTROLLER, connections=2) as client:
            await TopologyWatcher(client, options).run()

    await run_until_signal(watch)
