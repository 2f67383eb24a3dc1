"""The facts of a machine type as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from avactl.contracts.scheduling import MachineFacts


class NvlinkGeneration(NamedTuple):
    """Speed and link count of an NVLink generation."""

    link_gbps: float
    """Bandwidth of one link in one direction, GB/s."""
    max_links: int
    """Maximum number of links per GPU."""


NVLINK: Mapping[int, NvlinkGeneration] = {
    1: NvlinkGeneration(20.0, 4),
    2: NvlinkGeneration(25.0, 6),
    3: NvlinkGeneration(25.0, 12),
    4: NvlinkGeneration(25.0, 18),
    5: NvlinkGeneration(50.0, 18),
    6: NvlinkGeneration(50.0, 36),
}
"""Speed and link count by generation: P100, V100, A100, H100, Blackwell, Rubin.

Sources: NVIDIA's white papers of the Tesla P100 (20 GB/s, 4 links), Tesla V100 (25 GB/s, 6), A100 (25 GB/s, 12) and
H100 (25 GB/s, 18) architectures; NVIDIA's NVLink page for Blackwell (1.8 TB/s per GPU over 18 links, both directions
together) and Rubin (3.6 TB/s over 36).
"""


@dataclass(frozen=True, slots=True)
class PcieSwitch:
    """GPUs and NICs that communicate without the CPU's root complex."""

    socket: int
    gpus: tuple[int, ...]
    nics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NvlinkPair:
    """NVLinks between two GPUs."""

    first: int
    second: int
    links: int


@dataclass(frozen=True, slots=True)
class Nvlink:
    """The NVLinks of a machine: pairs of GPUs, or all to all through NVSwitch."""

    link_gbps: float
    """Bandwidth of one link in one direction, GB/s."""
    pairs: tuple[NvlinkPair, ...] = ()
    switch_links: int = 0
    """Links from each GPU to NVSwitch; 0 without NVSwitch."""
    domain: int | None = None
    """GPUs in one NVLink domain, if it spans machines."""


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface card."""

    name: str
    socket: int
    gbit_per_s: float
    rdma: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type. GPUs are numbered from 0; each is in exactly one of `switches`. No GPUs: CPUs only.

    Speeds are GB/s in one direction; `cpu` is in cores and `memory` in bytes, both available to pods.
    """

    gpu: str
    gpus: int
    gpu_memory: int
    cpu: float
    memory: int
    switches: tuple[PcieSwitch, ...]
    nvlink: Nvlink | None
    nics: tuple[Nic, ...]
    cross_socket_gbps: float
    same_socket_gbps: float
    pcie_switch_gbps: float
    kubelet_chooses: bool = False
    """True if the kubelet chooses a pod's GPUs among the free ones, so that a link holds only if all sets have it."""

    @classmethod
    def from_facts(cls, facts: MachineFacts) -> Machine:
        """Return the machine that the topology ConfigMap of a pool describes."""
        gpus, speed, links = facts.gpus, facts.bandwidth, facts.nvlink
        return cls(
            gpu=gpus.model if gpus is not None else "",
            gpus=gpus.count if gpus is not None else 0,
            gpu_memory=gpus.memory_bytes if gpus is not None else 0,
            cpu=facts.cpu,
            memory=facts.memory_bytes,
            switches=tuple(PcieSwitch(each.socket, each.gpus, each.nics) for each in facts.switches),
            nvlink=None
            if links is None
            else Nvlink(
                links.link_gbps, tuple(NvlinkPair(*pair) for pair in links.pairs), links.switch_links, links.domain
            ),
            nics=tuple(Nic(nic.name, nic.socket, nic.gbit_per_second, nic.rdma) for nic in facts.nics),
            cross_socket_gbps=speed.cross_socket_gbps,
            same_socket_gbps=speed.same_socket_gbps,
            pcie_switch_gbps=speed.pcie_switch_gbps,
        )
