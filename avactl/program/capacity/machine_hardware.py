"""Converts a MachineType spec to the plain hardware facts that placement uses."""

from __future__ import annotations

from avactl.base.quantity import parse_quantity
from avactl.contracts.scheduling import (
    BandwidthFacts,
    MachineFacts,
    MachineGpuFacts,
    NicFacts,
    NvlinkFacts,
    PcieSwitchFacts,
)
from avactl.hardware.machine import NVLINK, Machine
from avactl.hardware.topology import Topology, topology_of
from avactl.program.program import Item, Program
from avactl.spec.platform.machine_type import MachineTypeSpec
from avactl.spec.platform.node_pool import NodePoolSpec


def link_speed(spec: MachineTypeSpec) -> float:
    """Return the bandwidth of one direct link between GPUs in GB/s per direction; 0 if the type has none."""
    if spec.bandwidth.nvlink is not None:
        return spec.bandwidth.nvlink
    generation = spec.nvlink.generation if spec.nvlink is not None else None
    return NVLINK[generation].link_gbps if generation is not None else 0.0


def machine_facts(spec: MachineTypeSpec) -> MachineFacts:
    """Return the facts of a machine type: the content of a pool's topology ConfigMap.

    All defaults are resolved: every GPU is under a switch (its own root port if none is declared, spread evenly
    over the sockets), and the NVLink speed is given. Bandwidths are GB/s per direction; `domain` is the number of
    GPUs in an NVLink domain that spans machines.
    """
    gpus, count = spec.gpus, spec.gpu_count
    switches = [
        PcieSwitchFacts(socket=switch.socket, gpus=tuple(sorted(switch.gpus)), nics=tuple(switch.nics))
        for switch in spec.switches
    ] or [PcieSwitchFacts(socket=gpu * spec.sockets // count, gpus=(gpu,), nics=()) for gpu in range(count)]
    nvlink, speed = spec.nvlink, spec.bandwidth
    links = None
    if nvlink is not None:
        links = NvlinkFacts(
            generation=nvlink.generation or 0,
            link_gbps=link_speed(spec),
            pairs=tuple((min(pair.gpus), max(pair.gpus), pair.links) for pair in nvlink.pairs),
            switch_links=nvlink.nvswitch_links,
            domain=nvlink.domain,
        )
    return MachineFacts(
        gpus=None
        if gpus is None
        else MachineGpuFacts(model=gpus.model, count=count, memory_bytes=int(parse_quantity(gpus.memory))),
        cpu=float(parse_quantity(spec.cpu)),
        memory_bytes=int(parse_quantity(spec.memory)),
        sockets=spec.sockets,
        switches=tuple(switches),
        nvlink=links,
        nics=tuple(
            NicFacts(name=nic.name, socket=nic.socket, gbit_per_second=nic.bandwidth, rdma=nic.rdma)
            for nic in spec.nics
        ),
        bandwidth=BandwidthFacts(
            cross_socket_gbps=speed.cross_socket,
            same_socket_gbps=speed.same_socket,
            pcie_switch_gbps=speed.pcie_switch,
        ),
    )


def pool_topology(program: Program, pool: Item[NodePoolSpec]) -> Topology:
    """Return the topology of a pool's machines. Their type must have passed its checks."""
    name = pool.spec.machine_type
    return program.memo(
        ("topology", name), lambda: topology_of(Machine.from_facts(machine_facts(program.machine(pool))))
    )
