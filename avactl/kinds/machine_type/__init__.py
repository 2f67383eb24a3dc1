"""The MachineType kind: the hardware of a machine, with GPUs or without."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.kinds.machine_type.check import check
from avactl.kinds.machine_type.lower import lower
from avactl.program.program import Item, Program
from avactl.program.registry import Fact, Kind
from avactl.spec.platform.machine_type import (
    Bandwidth,
    Gpus,
    MachineType,
    MachineTypeSpec,
    Nic,
    Nvlink,
    NvlinkPair,
    Switch,
)

__all__ = [
    "KIND",
    "Bandwidth",
    "Gpus",
    "MachineType",
    "MachineTypeSpec",
    "Nic",
    "Nvlink",
    "NvlinkPair",
    "Switch",
]


def facts(item: Item[MachineTypeSpec], program: Program) -> Mapping[str, Fact]:
    """GPUs, their links, and the other hardware of the machine."""
    spec = item.spec
    nvlink = spec.nvlink
    if nvlink is None:
        link = None
    elif nvlink.nvswitch_links:
        link = f"NVSwitch, {nvlink.nvswitch_links} links per GPU{_format_generation(nvlink)}"
    else:
        link = f"{sum(pair.links for pair in nvlink.pairs)} links{_format_generation(nvlink)}"
    rdma = [nic for nic in spec.nics if nic.rdma]
    return {
        "GPUs": None if spec.gpus is None else f"{spec.gpus.count} {spec.gpus.model} of {spec.gpus.memory}",
        "NVLink": link,
        "sockets": spec.sockets,
        "RDMA": f"{len(rdma)} × {rdma[0].bandwidth:g} Gbit/s" if rdma else None,
        "CPU cores": spec.cpu,
        "memory": spec.memory,
    }


def _format_generation(nvlink: Nvlink) -> str:
    return f", generation {nvlink.generation}" if nvlink.generation is not None else ""


KIND = Kind(model=MachineType, lower=lower, check=check, facts=facts)
