"""Nodes in the placement state: their resources, GPUs, links and topology domains."""

from __future__ import annotations

from dataclasses import replace

from avactl.hardware.machine import Machine, PcieSwitch
from avactl.hardware.placement.allocation import MAX_GPUS, BookingError, Node
from avactl.hardware.plugin_sharing import find_plugin_sharing
from avactl.scheduler.cache.pod_bookings import PodBookings
from avactl.scheduler.cache.requests import RequestBuilder
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.node_rules import Obstacle, ObstacleKind


class NodeOffers:
    """Adds nodes to the state and preserves the bookings of their pods."""

    def __init__(self, tables: ClusterTables, dra: DraManager, requests: RequestBuilder, bookings: PodBookings) -> None:
        self._tables, self._dra, self._requests, self._bookings = tables, dra, requests, bookings

    def place(self, info: NodeInfo) -> int:
        """Add a node to the state, or change what it offers; return its slot."""
        state = self._tables.state
        node, slot = self._offer(info), state.slots.get(info.name)
        # A device plugin that restarts takes GPUs away for a while, which their pods keep.
        recount = slot is not None and state.gpu_count[slot] != node.gpus
        pods = self._bookings.release_all(info.name) if recount else []
        try:
            slot = state.put_node(node)
        except BookingError:
            # GPUs that are lost belong to claims, or are reserved: everything is booked again.
            self._tables.stale = True
            return state.slots[info.name]
        for pod in pods:
            self._bookings.book(pod)
        return slot

    def _offer(self, info: NodeInfo) -> Node:
        pool, gpu_resources = self._tables.pool_of(info), self._requests.gpu_resources
        if pool is not None and pool.method == "devicePlugin" and pool.resource:
            info.gpu_resource = pool.resource
        else:
            info.gpu_resource = next((name for name in sorted(gpu_resources) if info.allocatable.get(name)), "")
        machine = pool.machine if pool is not None else None
        info.devices = self._dra.number(info.name, info.labels)
        if info.devices:
            gpus, info.gpu_resource, info.unusable_gpus = info.devices, "", None
        else:
            gpus, info.unusable_gpus = _plugin_gpus(info, machine)
        if machine is not None and (info.differs or machine.gpus != gpus):
            machine = _unlinked(machine, gpus, info.differs)
        domains: list[tuple[str, ...] | None] = []
        path: tuple[str, ...] = ()
        for level in self._tables.levels:
            value = info.labels.get(level)
            # Racks of different blocks may have the same name.
            path = (*path, value or "")
            domains.append(path if value else None)
        return Node(
            name=info.name,
            amounts=tuple(info.allocatable.get(name, 0) for name in self._tables.state.resources),
            gpus=gpus,
            model=self._tables.model_of(info.name),
            machine=machine,
            domains=tuple(domains),
        )


def _plugin_gpus(info: NodeInfo, machine: Machine | None) -> tuple[int, Obstacle | None]:
    """Return the GPUs that a device plugin has on a node, and why pods get none of them.

    Pods name the GPUs that the scheduler chose by index, so it must know which GPU each index is: that is unknown if
    some are withdrawn or divided. The kubelet knows it, and hands out healthy ones where it chooses.
    """
    kubelet_chooses = machine is not None and machine.kubelet_chooses
    amount, withdrawn = info.allocatable.get(info.gpu_resource, 0), info.withdrawn.get(info.gpu_resource, 0)
    sharing = (
        find_plugin_sharing(info.labels, info.allocatable) if info.gpu_resource.startswith("nvidia.com/") else None
    )
    if sharing is not None and not (sharing.whole and kubelet_chooses):
        present = sharing.gpus or (machine.gpus if machine is not None else amount)
        return min(present, MAX_GPUS), Obstacle(ObstacleKind.PLUGIN_SHARING, sharing.way)
    if withdrawn and not kubelet_chooses:
        # Its pods keep their GPUs, whose indexes can be any of all.
        return min(amount + withdrawn, MAX_GPUS), Obstacle(ObstacleKind.WITHDRAWN)
    return min(amount, MAX_GPUS), None


def _unlinked(machine: Machine, gpus: int, differs: bool) -> Machine:
    """Return a machine type with so many GPUs and no known links: pods that require a link go elsewhere.

    If some GPUs are absent, NVSwitch still connects all others.
    """
    switched = machine.nvlink is not None and machine.nvlink.switch_links > 0
    kept = machine.nvlink if switched and not differs and gpus < machine.gpus else None
    apart = tuple(PcieSwitch(gpu, (gpu,)) for gpu in range(gpus))
    return replace(machine, gpus=gpus, switches=apart, nvlink=kept, nics=())
