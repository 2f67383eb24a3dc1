"""Reports faults of the machine's GPUs as a node condition, and their end after a probation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from avactl.contracts.document import DocumentError, load_file
from avactl.contracts.gpu_faults import GpuFault, parse_faults, render_faults
from avactl.contracts.names import GPUS_CONDITION, TOPOLOGY_CONDITION
from avactl.contracts.scheduling import PoolFacts
from avactl.daemons.topology.commands import CommandError, run_command
from avactl.daemons.topology.node_conditions import ConditionValue, NodeCondition, check_regularly
from avactl.daemons.topology.options import TopologyOptions
from avactl.daemons.topology.topology_check import check_topology
from avactl.hardware.gpu_health import GpuHealth, HealthOutputError, read_health
from avactl.kube.client import Client
from avactl.kube.events import EventRecorder

FAULTY = "GPUsFaulty"
"""Reason of the condition while there are faults."""
_HEARTBEAT_S = 300.0
"""Seconds after which an unchanged condition is written again."""


class LinkState:
    """NVLinks that the last comparison with the machine type found to be down."""

    def __init__(self) -> None:
        self.faults: Sequence[GpuFault] = ()


class GpuHealthWatcher:
    """Checks the GPUs of one machine.

    A fault ends only when the driver, and the comparison with the machine type, have found nothing for the probation:
    neither a check that fails nor a daemon that is started anew ends it.
    """

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        options: TopologyOptions,
        links: LinkState,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._options, self._links, self._clock = options, links, clock
        self._condition = NodeCondition(client, events, options.node, GPUS_CONDITION)
        self._sound_since: float | None = None
        """Time since which all checks have found nothing, after a fault."""
        self._written: tuple[ConditionValue, float] | None = None

    async def run(self) -> None:
        """Run until cancelled. Failed writes to the API server are retried."""
        await check_regularly(self.check, self._options.health_interval, self._options.node)

    async def check(self) -> None:
        """Check once, and write the condition if it has changed or is old. Raises ApiError, UnreachableError."""
        found = await find_health(self._options)
        known, now = self._written, self._clock()
        sound = isinstance(found, GpuHealth) and not (found.faults or self._links.faults)
        unchanged = known is not None and known[0].status == "True" and sound and now - known[1] < _HEARTBEAT_S
        if unchanged:
            return
        node, before = await self._condition.read()
        value = await self._judge(found, node, before)
        if known is not None and known[0] == value and now - known[1] < _HEARTBEAT_S:
            return
        await self._condition.write(value)
        self._written = value, now

    async def _judge(
        self, found: GpuHealth | str, node: dict[str, Any], before: dict[str, Any] | None
    ) -> ConditionValue:
        """Return the condition that follows from a check and from what the condition is."""
        faults = [] if isinstance(found, str) else self._find_faults(found, node)
        if faults:
            self._sound_since = None
            return ConditionValue("False", FAULTY, render_faults(faults))
        was_faulty = before is not None and before["status"] == "False"
        if isinstance(found, str):
            self._sound_since = None
            if was_faulty:
                assert before is not None
                return ConditionValue("False", before.get("reason") or FAULTY, before.get("message") or "")
            return ConditionValue("Unknown", "CheckFailed", found)
        if not was_faulty:
            return describe_healthy(found)
        assert before is not None
        topology = await check_topology(self._options)
        if topology.status != "True" and not _has_differed_before(node, before):
            self._sound_since = None
            return _on_probation(before, f"not used again: {topology.message}")
        now = self._clock()
        self._sound_since = self._sound_since if self._sound_since is not None else now
        if now - self._sound_since < self._options.probation:
            return _on_probation(before, f"repaired, used again after {self._options.probation:g} s without a fault")
        return ConditionValue("True", "GPUsRecovered", f"no fault for {self._options.probation:g} s")

    def _find_faults(self, found: GpuHealth, node: dict[str, Any]) -> list[GpuFault]:
        """Return the faults that the driver reports, links that are down, and GPUs that the driver has lost."""
        faults = list(found.faults)
        faulty = {fault.gpu for fault in faults}
        faults += (fault for fault in self._links.faults if fault.gpu not in faulty)
        known = self._kubelet_gpus(node)
        if found.gpus < known and not found.faults:
            # The others have other indexes now.
            faults.append(GpuFault(None, False, f"the driver knows {found.gpus} GPUs, the kubelet {known}"))
        return faults

    def _kubelet_gpus(self, node: dict[str, Any]) -> int:
        """Return the GPUs that the kubelet counts by its device plugin; 0 if that is unknown."""
        try:
            resource = load_file(PoolFacts, self._options.pool).allocation.resource or ""
        except (OSError, DocumentError):
            return 0
        capacity = str(((node.get("status") or {}).get("capacity") or {}).get(resource, ""))
        return int(capacity) if len(capacity) < 4 and capacity.isdecimal() else 0


def _has_differed_before(node: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return True if the machine has differed from its type since before the fault: its pool may have a wrong type."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    differs = (each for each in conditions if each["type"] == TOPOLOGY_CONDITION and each["status"] == "False")
    since = before.get("lastTransitionTime") or ""
    return any((each.get("lastTransitionTime") or "~") < since for each in differs)


def describe_healthy(found: GpuHealth) -> ConditionValue:
    """Return the condition of a machine without faults."""
    return ConditionValue("True", "GPUsHealthy", f"the driver reports no fault of its {found.gpus} GPUs")


def _on_probation(before: dict[str, Any], text: str) -> ConditionValue:
    """Keep the faulty GPUs from new pods, while those that run stay."""
    faults = [GpuFault(fault.gpu, False, text) for fault in parse_faults(before.get("message") or "")]
    return ConditionValue("False", "GPUsOnProbation", render_faults(dict.fromkeys(faults)))


async def find_health(options: TopologyOptions) -> GpuHealth | str:
    """Run the command; return what the driver reports, or why that is unknown."""
    command = options.health_command
    shown = " ".join(command)
    try:
        done = await run_command(command)
    except CommandError as error:
        return str(error)
    try:
        health = read_health(f"{done.output}\n{done.errors}")
    except HealthOutputError as error:
        return f"`{shown}` ended with {done.code}: {done.first_line or error}" if done.code else f"`{shown}`: {error}"
    return health if health.faults or not done.code else f"`{shown}` ended with {done.code}: {done.first_line}"
