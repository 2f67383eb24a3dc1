"""Convert a matrix and the user's options to the fields of a MachineType."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from avactl.hardware.nvidia_topo import MatrixHardware, find
from avactl.hardware.topo_gpu import FABRIC_GBPS, MODELS, GpuName, Listed, parse_name
from avactl.hardware.topo_matrix import Matrix

_GIB = 2**30
_NIC_GBIT = {1: 100, 2: 100, 3: 200, 4: 400, 5: 400, 6: 800}
"""Typical PCIe, NIC and CPU values by NVLink generation: DGX-1, DGX-2, DGX A100, H100, B200, Rubin."""
UNKNOWN_MODEL = "GPU"
_UNKNOWN_FABRIC_GBPS = 50.0


@dataclass(frozen=True, slots=True)
class GivenTopology:
    """Values that the matrix does not contain; None: taken from a GPU list, else assumed and reported."""

    name: str | None = None
    gpu: str | None = None
    gpu_memory: str | None = None
    """Memory of one GPU, a quantity."""
    cpu: str | None = None
    memory: str | None = None
    """Memory of the machine, a quantity."""
    nic_gbit: float | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """The fields of a MachineType."""

    name: str
    spec: dict[str, Any]
    remarks: tuple[str, ...]
    assumed: dict[str, str]
    """Assumed fields, with the source of the value."""
    found: MatrixHardware


def describe(matrix: Matrix, given: GivenTopology, listed: Listed | None) -> Described:
    """Return all fields of the machine type. The result is valid; `assumed` lists the values to review."""
    assumed: dict[str, str] = {}
    products = listed.products if listed else ()
    product = parse_name(products[0]) if products else None
    facts = parse_name(given.gpu) if given.gpu else product
    found = find(matrix, MODELS[facts.model].nvlink if facts and facts.model in MODELS else None)
    remarks = list(found.remarks)
    if len(products) > 1:
        remarks.append(f"the list has several models ({', '.join(products)}); using the first")
    model = _as_model(given.gpu) or (product.model if product and product.model else None)
    if model is None:
        assumed["gpus.model"] = "not in the matrix; give --gpu"
    memory = given.gpu_memory or _gpu_memory(facts, listed if not given.gpu or facts == product else None, assumed)
    spec: dict[str, Any] = {
        "gpus": {"model": model or UNKNOWN_MODEL, "count": found.gpus, "memory": memory},
        "cpu": _cpu(found, assumed) if given.cpu is None else int(given.cpu) if given.cpu.isdecimal() else given.cpu,
        "memory": given.memory or _host_memory(found.gpus, memory, assumed),
        "sockets": found.sockets,
        "switches": [
            {"socket": switch.socket, "gpus": list(switch.gpus)} | ({"nics": list(switch.nics)} if switch.nics else {})
            for switch in found.switches
        ],
    }
    if found.nvlink is not None:
        nvlink = found.nvlink.nvlink
        spec["nvlink"] = {"generation": found.nvlink.generation} if found.nvlink.generation else {}
        if nvlink.switch_links:
            spec["nvlink"]["nvswitchLinks"] = nvlink.switch_links
        else:
            spec["nvlink"]["pairs"] = [{"gpus": [p.first, p.second], "links": p.links} for p in nvlink.pairs]
        if found.nvlink.guessed:
            assumed["nvlink.generation"] = "inferred from the number of links; give --gpu"
        if not found.nvlink.generation:
            gbps = FABRIC_GBPS.get(model or "")
            spec["bandwidth"] = {"nvlink": gbps or _UNKNOWN_FABRIC_GBPS}
            assumed["bandwidth.nvlink"] = (
                f"one link in one direction: from the data sheet of {model}" if gbps else "not in the tables"
            )
    if found.nics:
        gbit = given.nic_gbit
        if gbit is None:
            gbit = _NIC_GBIT[found.nvlink.generation] if found.nvlink else 100
            assumed["nics.bandwidth"] = "not in the matrix; give --nic-gbit"
        number = int(gbit) if gbit == int(gbit) else gbit
        # The matrix lists devices of /sys/class/infiniband only: all support RDMA.
        spec["nics"] = [{"name": n.name, "socket": n.socket, "bandwidth": number, "rdma": True} for n in found.nics]
    name = given.name or _name(model, found.gpus)
    return Described(name, spec, tuple(remarks), assumed, found)


def _as_model(text: str | None) -> str | None:
    """Normalise a model: `NVIDIA A100 80GB PCIe` → A100; a name without spaces is unchanged."""
    return parse_name(text).model or text if text and " " in text else text


def _gpu_memory(facts: GpuName | None, listed: Listed | None, assumed: dict[str, str]) -> str:
    if listed and listed.memory_mib:
        # Drivers report slightly less than the nominal size.
        return f"{-(-listed.memory_mib // 1024)}Gi"
    if facts and facts.memory_gib:
        assumed["gpus.memory"] = "from the data sheet"
        return f"{facts.memory_gib}Gi"
    assumed["gpus.memory"] = "not in the matrix; give --memory"
    return "16Gi"


def _cpu(found: MatrixHardware, assumed: dict[str, str]) -> int:
    if found.cpus is None:
        assumed["cpu"] = "not in the matrix; give --cpu"
        return 8 * found.gpus
    assumed["cpu"] = "highest CPU number + 1 in the affinity columns; minus system reservations"
    return found.cpus


def _host_memory(gpus: int, gpu_memory: str, assumed: dict[str, str]) -> str:
    """Return twice the memory of all GPUs, the usual minimum."""
    assumed["memory"] = "not in the matrix; twice the GPU memory; give --memory-host"
    number = re.fullmatch(r"([0-9]+)(Gi|G|Mi|M)", gpu_memory)
    return f"{2 * gpus * int(number[1])}{number[2]}" if number else f"{32 * gpus}Gi"


def _name(model: str | None, gpus: int) -> str:
    """Return a name for the machine type: `h100-8`."""
    word = re.sub(r"[^a-z0-9]+", "-", (model or "gpu").lower()).strip("-") or "gpu"
    return f"{word[:48].strip('-')}-{gpus}"
