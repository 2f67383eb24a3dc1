"""Nodes in the placement state: their resources, GPUs, links and topology domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from avactl.hardware.machine import Machine, PcieSwitch
from avactl.hardware.placement.allocation import MAX_GPUS, BookingError, Node
from avactl.hardware.plugin_sharing import find_plugin_sharing
from avactl.scheduler.cache.pod_bookings import PodBookings
from avactl.scheduler.cache.requests import RequestBuilder
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.objects.node_faults import NodeFault
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.node_rules import Obstacle, ObstacleKind

UNCOUNTED = 2**40
"""Amount of an extended resource whose devices are allocated to claims: it excludes no pod, and sums stay exact."""


class NodeOffers:
    """Adds nodes to the state and preserves the bookings of their pods."""

    def __init__(self, tables: ClusterTables, dra: DraManager, requests: RequestBuilder, bookings: PodBookings) -> None:
        self._tables, self._dra, self._requests, self._bookings = tables, dra, requests, bookings

    def place(self, info: NodeInfo) -> int:
        """Add a node to the state, or change what it offers; return its slot."""
        state = self._tables.state
        node, slot = self._offer(info), state.slots.get(info.name)
        # A device plugin that restarts takes GPUs away for a while, which their pods keep.
        recount = slot is not None and int(state.gpu_count[slot] + state.faulty[slot].bit_count()) != node.gpus
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
        info.apply_fault_conditions(pool.fault_conditions if pool is not None else ())
        drained = bool(info.faults) and pool is not None and pool.on_fault == "drain"
        info.closed = _fault_obstacle(info.faults) if drained else None
        info.devices = self._dra.number(info.name, info.labels)
        if info.devices:
            gpus, info.gpu_resource = info.devices, ""
            faulty = _faulty_gpus(info.faults, gpus)
            info.unusable_gpus = None if faulty is not None else _fault_obstacle(info.faults)
            faulty = (1 << gpus) - 1 if faulty is None else faulty
        else:
            gpus, faulty, info.unusable_gpus = _plugin_gpus(info, machine)
        self._dra.set_faulty(info.name, faulty if info.devices else 0)
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
            amounts=tuple(self._amount(info, name) for name in self._tables.state.resources),
            gpus=gpus,
            model=self._tables.model_of(info.name),
            machine=machine,
            domains=tuple(domains),
            faulty=faulty,
        )

    def _amount(self, info: NodeInfo, resource: str) -> int:
        amount = info.allocatable.get(resource, 0)
        # Without a device plugin, the devices of its class decide.
        return UNCOUNTED if not amount and self._dra.has_class(resource) else amount


def _faulty_gpus(faults: Sequence[NodeFault], gpus: int) -> int | None:
    """Return the mask of the GPUs that have faults; None if it is not known which of them have."""
    faulty = 0
    for fault in faults:
        if fault.gpu is None or fault.gpu >= gpus:
            return None
        faulty |= 1 << fault.gpu
    return faulty


def _fault_obstacle(faults: Sequence[NodeFault]) -> Obstacle:
    return Obstacle(ObstacleKind.FAULT, faults[0].condition)


def _plugin_gpus(info: NodeInfo, machine: Machine | None) -> tuple[int, int, Obstacle | None]:
    """Return the GPUs that a device plugin has on a node, the mask of faulty ones, and why pods get none of them.

    Pods name the GPUs that the scheduler chose by index, so it must know which GPU each index is: that is unknown if
    some are divided, or withdrawn without a fault that names them. The kubelet knows it, and hands out healthy ones
    where it chooses: all whose faults the plugin knows, too.
    """
    kubelet_chooses = machine is not None and machine.kubelet_chooses
    amount, withdrawn = info.allocatable.get(info.gpu_resource, 0), info.withdrawn.get(info.gpu_resource, 0)
    sharing = (
        find_plugin_sharing(info.labels, info.allocatable) if info.gpu_resource.startswith("nvidia.com/") else None
    )
    if sharing is not None and not (sharing.whole and kubelet_chooses):
        present = sharing.gpus or (machine.gpus if machine is not None else amount)
        return min(present, MAX_GPUS), 0, Obstacle(ObstacleKind.PLUGIN_SHARING, sharing.way)
    # Its pods keep withdrawn GPUs, whose indexes can be any of all.
    gpus = min(amount if kubelet_chooses else amount + withdrawn, MAX_GPUS)
    faulty = _faulty_gpus(info.faults, min(amount + withdrawn, MAX_GPUS))
    if faulty is None or (kubelet_chooses and withdrawn < faulty.bit_count()):
        return gpus, 0, _fault_obstacle(info.faults)
    if kubelet_chooses:
        return gpus, 0, None
    if withdrawn and withdrawn != faulty.bit_count():
        return gpus, 0, Obstacle(ObstacleKind.WITHDRAWN)
    return gpus, faulty, None


def _unlinked(machine: Machine, gpus: int, differs: bool) -> Machine:
    """Return a machine type with so many GPUs and no known links: pods that require a link go elsewhere.

    If some GPUs are absent, NVSwitch still connects all others.
    """
    switched = machine.nvlink is not None and machine.nvlink.switch_links > 0
    kept = machine.nvlink if switched and not differs and gpus < machine.gpus else None
    apart = tuple(PcieSwitch(gpu, (gpu,)) for gpu in range(gpus))
    return replace(machine, gpus=gpus, switches=apart, nvlink=kept, nics=())
