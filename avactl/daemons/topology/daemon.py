"""Node daemon: compares a GPU machine with its pool's machine type, and reports faults of its GPUs.

Both are conditions of its node, with Events on changes.
"""

from __future__ import annotations

import asyncio

from avactl.contracts.gpu_faults import GpuFault, render_faults
from avactl.contracts.names import GPUS_CONDITION, TOPOLOGY_CONDITION
from avactl.daemons.topology.gpu_health import FAULTY, GpuHealthWatcher, LinkState, describe_healthy, find_health
from avactl.daemons.topology.node_conditions import ConditionValue, NodeCondition, check_regularly
from avactl.daemons.topology.options import TopologyOptions
from avactl.daemons.topology.topology_check import check_topology
from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client
from avactl.kube.daemons import run_until_signal
from avactl.kube.events import EventRecorder

CONTROLLER = "avactl-topology"


class TopologyWatcher:
    """Checks the topology of one machine."""

    def __init__(self, client: Client, events: EventRecorder, options: TopologyOptions, links: LinkState) -> None:
        self._options, self._links = options, links
        self._condition = NodeCondition(client, events, options.node, TOPOLOGY_CONDITION)

    async def run(self) -> None:
        """Run until cancelled. Failed writes to the API server are retried."""
        await check_regularly(self.check, self._options.interval, self._options.node)

    async def check(self) -> None:
        """Check once, and write the condition. Raises ApiError, UnreachableError."""
        verdict = await check_topology(self._options)
        if verdict.status != "Unknown":
            self._links.faults = [GpuFault(gpu, False, text) for gpu, text in verdict.links_down]
        await self._condition.write(ConditionValue(verdict.status, verdict.reason, verdict.message))


async def run(access: ClusterAccess, options: TopologyOptions) -> None:
    """Run checks until SIGTERM or SIGINT."""

    async def watch() -> None:
        async with Client(access, CONTROLLER, connections=4) as client, asyncio.TaskGroup() as group:
            events = EventRecorder(client, CONTROLLER, "Checking")
            links = LinkState()
            group.create_task(TopologyWatcher(client, events, options, links).run())
            group.create_task(GpuHealthWatcher(client, events, options, links).run())

    await run_until_signal(watch)


async def check_once(options: TopologyOptions) -> dict[str, ConditionValue]:
    """Return the conditions that a machine without earlier faults would get, by their short names."""
    topology, health = await check_topology(options), await find_health(options)
    links = [GpuFault(gpu, False, text) for gpu, text in topology.links_down]
    if isinstance(health, str):
        gpus = ConditionValue("Unknown", "CheckFailed", health)
    elif faults := [*health.faults, *links]:
        gpus = ConditionValue("False", FAULTY, render_faults(faults))
    else:
        gpus = describe_healthy(health)
    matches = ConditionValue(topology.status, topology.reason, topology.message)
    return {name.partition("/")[2]: value for name, value in ((TOPOLOGY_CONDITION, matches), (GPUS_CONDITION, gpus))}
