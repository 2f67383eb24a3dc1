"""The MachineType kind: the hardware of a machine, with GPUs or without."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.spec.schema.base import Model, Resource
from avactl.spec.schema.compute import GpuModel
from avactl.spec.schema.values import AnyBytes, Count, PodCpu

GpuIndex = Annotated[int, Field(ge=0, le=15)]


class Gpus(Model):
    """The GPUs of one machine, all of one model."""

    model: GpuModel = Field(description="GPU model as jobs request it: `V100`.")
    count: Annotated[int, Field(ge=1, le=16)] = Field(description="GPUs per machine.")
    memory: AnyBytes = Field(description="Memory per GPU, in bytes.")


class Switch(Model):
    """A PCIe switch (or root port). GPUs under one switch communicate without going through the CPU."""

    socket: Annotated[int, Field(ge=0, le=7)] = Field(0, description="CPU socket that the switch is attached to.")
    gpus: list[GpuIndex] = Field(min_length=1, description="Indexes of the GPUs under the switch.")
    nics: list[str] = Field(default_factory=list, description="Names of the NICs under the switch.")


class NvlinkPair(Model):
    """NVLinks between two GPUs."""

    gpus: Annotated[list[GpuIndex], Field(min_length=2, max_length=2)] = Field(description="The two GPUs.")
    links: Annotated[int, Field(ge=1, le=36)] = Field(1, description="Number of links between them.")


class Nvlink(Model):
    """NVLink connections: between pairs of GPUs, or all-to-all through NVSwitch.

    Or direct links of other vendors, such as AMD's Infinity Fabric: without `generation`, but with `bandwidth.nvlink`.
    """

    generation: Annotated[int, Field(ge=1, le=6)] | None = Field(
        None,
        description="NVLink generation, which determines the speed of a link. Omit it for links of other vendors, and "
        "write their speed in `bandwidth.nvlink`.",
    )
    pairs: list[NvlinkPair] = Field(default_factory=list, description="Direct connections without NVSwitch.")
    nvswitch_links: Annotated[int, Field(ge=0, le=36)] = Field(
        0, description="Links from each GPU to NVSwitch; 0 without NVSwitch."
    )
    domain: Count | None = Field(None, description="GPUs in one NVLink domain that spans machines (GB200 NVL72: 72).")


class Nic(Model):
    """A network interface card."""

    name: Annotated[str, Field(min_length=1, max_length=15)] = Field(description="Name, e.g. `mlx5_0`.")
    socket: Annotated[int, Field(ge=0, le=7)] = Field(0, description="CPU socket that the NIC is attached to.")
    bandwidth: Annotated[float, Field(gt=0)] = Field(description="Speed, Gbit/s.")
    rdma: bool = Field(False, description="True if the NIC supports RDMA.")


class Bandwidth(Model):
    """Measured bandwidth between two GPUs by the slowest component on the path, in GB/s per direction."""

    cross_socket: Annotated[float, Field(gt=0)] = Field(3.0, description="Across sockets (QPI or UPI), in GB/s.")
    same_socket: Annotated[float, Field(gt=0)] = Field(8.0, description="Through the CPU's root complex, in GB/s.")
    pcie_switch: Annotated[float, Field(gt=0)] = Field(12.0, description="Peer to peer under one PCIe switch, in GB/s.")
    nvlink: Annotated[float, Field(gt=0)] | None = Field(
        None, description="One NVLink or other direct link, in GB/s per direction. Default: from the generation."
    )


class MachineTypeSpec(Model):
    """Hardware of one machine."""

    gpus: Gpus | None = Field(None, description="The GPUs. Omit them for a machine with CPUs only.")
    cpu: PodCpu = Field(description="CPU cores that pods may use.")
    memory: AnyBytes = Field(description="Memory that pods may use, in bytes.")
    sockets: Annotated[int, Field(ge=1, le=8)] = Field(1, description="CPU sockets.")
    switches: list[Switch] = Field(
        default_factory=list,
        description="PCIe switches; each GPU must be under one. Default: each GPU on its own root port.",
    )
    nvlink: Nvlink | None = Field(None, description="NVLink connections.")
    nics: list[Nic] = Field(default_factory=list, description="Network cards.")
    bandwidth: Bandwidth = Field(default_factory=Bandwidth, description="Measured bandwidths.")
    speed: Annotated[float, Field(ge=0.001, le=1000)] = Field(
        1.0,
        description="Speed of a service on these machines relative to others: the first weights of client-side "
        "balancing, until clients have measured it.",
    )

    @property
    def gpu_count(self) -> int:
        """GPUs per machine; 0 for a machine with CPUs only."""
        return self.gpus.count if self.gpus is not None else 0

    @property
    def gpu_model(self) -> str | None:
        """GPU model as jobs request it; None for a machine with CPUs only."""
        return self.gpus.model if self.gpus is not None else None


class MachineType(Resource):
    """Cores, memory, GPUs, sockets, PCIe switches, NVLinks and NICs of one type of machine.

    avactl ships a library of machine types; a spec of the same name replaces the shipped one.
    Compiles to hardware facts in the topology ConfigMap of the pools that use it.
    """

    KIND: ClassVar[str] = "MachineType"
    SCOPE: ClassVar[Literal["platform"]] = "platform"
    kind: Literal["MachineType"] = Field("MachineType", description="`MachineType`.")
    spec: MachineTypeSpec = Field(description="The machine.")
