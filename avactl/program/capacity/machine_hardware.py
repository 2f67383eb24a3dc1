"""Converts a MachineType spec to the plain hardware facts that placement uses."""

from __future__ import annotations

from typing import Any

from avactl.base.quantity import quantity
from avactl.hardware.machine import NVLINK, Machine
from avactl.hardware.topology import Topology, topology
from avactl.program.program import Item, Program
from avactl.spec.platform.machine_type import MachineTypeSpec
from avactl.spec.platform.node_pool import NodePoolSpec


def machine_facts(spec: MachineTypeSpec) -> dict[str, Any]:
    """Return the facts as JSON: the content of a pool's topology ConfigMap, read by `Machine.from_dict`.

    All defaults are resolved: every GPU is under a switch (its own root port if none is declared, spread evenly
    over the sockets), and the NVLink speed is given. Bandwidths are GB/s per direction; `domain` is the number of
    GPUs in an NVLink domain that spans machines.
    """
    count = spec.gpus.count
    switches = [
        {"socket": switch.socket, "gpus": sorted(switch.gpus), "nics": list(switch.nics)} for switch in spec.switches
    ] or [{"socket": gpu * spec.sockets // count, "gpus": [gpu], "nics": []} for gpu in range(count)]
    nvlink = spec.nvlink
    speed = spec.bandwidth
    return {
        "gpus": {"model": spec.gpus.model, "count": count, "memoryBytes": int(quantity(spec.gpus.memory))},
        "cpu": float(quantity(spec.cpu)),
        "memoryBytes": int(quantity(spec.memory)),
        "sockets": spec.sockets,
        "switches": switches,
        "nvlink": nvlink
        and {
            "generation": nvlink.generation,
            "linkGBps": speed.nvlink or NVLINK[nvlink.generation].link_gbps,
            "pairs": [[*sorted(pair.gpus), pair.links] for pair in nvlink.pairs],
            "switchLinks": nvlink.nvswitch_links,
            "domain": nvlink.domain,
        },
        "nics": [
            {"name": nic.name, "socket": nic.socket, "gbitPerSecond": nic.bandwidth, "rdma": nic.rdma}
            for nic in spec.nics
        ],
        "bandwidth": {
            "crossSocketGBps": speed.cross_socket,
            "sameSocketGBps": speed.same_socket,
            "pcieSwitchGBps": speed.pcie_switch,
        },
    }


def pool_topology(program: Program, pool: Item[NodePoolSpec]) -> Topology:
    """Return the topology of a pool's machines. Their type must have passed its checks."""
    name = pool.spec.machine_type
    found: Topology = program.memo(
        ("topology", name), lambda: topology(Machine.from_dict(machine_facts(program.machine(pool))))
    )
    return found
