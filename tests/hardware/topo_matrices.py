"""Matrices of machines as `nvidia-smi topo -m` would print them, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.compiler.resolve import shipped_machine_type
from avactl.hardware import library
from avactl.hardware.machine import Machine
from avactl.program.capacity.machine_hardware import machine_facts

_WORDS = {"pcieSwitch": "PIX", "socket": "NODE", "node": "SYS"}


def library_machine(name: str) -> Machine:
    return Machine.from_facts(machine_facts(shipped_machine_type(name)[1].spec))


def nvidia_types() -> list[str]:
    """Names of the shipped types that `nvidia-smi` can print: links of other vendors have no generation."""
    specs = {name: shipped_machine_type(name)[1].spec for name in library.shipped_names()}
    return [name for name, spec in specs.items() if spec.nvlink is None or spec.nvlink.generation is not None]


def pcie_level(machine: Machine, i: int, j: int) -> str:
    """The level between two GPUs without NVLink."""
    place = {gpu: switch for switch in machine.switches for gpu in switch.gpus}
    if place[i] is place[j]:
        return "pcieSwitch"
    return "socket" if place[i].socket == place[j].socket else "node"


def links(machine: Machine, i: int, j: int) -> int:
    if machine.nvlink is None:
        return 0
    for pair in machine.nvlink.pairs:
        if {pair.first, pair.second} == {i, j}:
            return pair.links
    return machine.nvlink.switch_links


def rows(machine: Machine, order: Sequence[int] | None = None) -> list[list[str]]:
    """The cells of the matrix; `order` says which GPU of the type stands as GPU0, GPU1, …"""
    gpus = list(order or range(machine.gpus))
    place = {gpu: switch for switch in machine.switches for gpu in switch.gpus}
    nic_place = {name: switch for switch in machine.switches for name in switch.nics}

    def to_gpu(i: int, j: int) -> str:
        if i == j:
            return " X "
        count = links(machine, i, j)
        return f"NV{count}" if count else _WORDS[pcie_level(machine, i, j)]

    def to_nic(gpu: int, nic: int) -> str:
        card = machine.nics[nic]
        if nic_place.get(card.name) is place[gpu]:
            return "PIX"
        return "NODE" if card.socket == place[gpu].socket else "SYS"

    def between(a: int, b: int) -> str:
        one, other = machine.nics[a], machine.nics[b]
        if a == b:
            return " X "
        if one.name in nic_place and nic_place[one.name] is nic_place.get(other.name):
            return "PIX"
        return "NODE" if one.socket == other.socket else "SYS"

    names = [f"GPU{i}" for i in range(machine.gpus)]
    nics = [nic.name for nic in machine.nics]
    table = [["", *names, *nics, "CPU Affinity", "NUMA Affinity"]]
    for name, gpu in zip(names, gpus, strict=True):
        socket = place[gpu].socket
        affinity = [f"{16 * socket}-{16 * socket + 15}", str(socket)]
        table.append(
            [name, *(to_gpu(gpu, other) for other in gpus), *(to_nic(gpu, k) for k in range(len(nics))), *affinity]
        )
    for k, nic in enumerate(nics):
        cells = [to_nic(gpu, k) for gpu in gpus] + [between(k, other) for other in range(len(nics))]
        table.append([nic, *cells])
    return table


def render(table: Sequence[Sequence[str]]) -> str:
    return "\n".join("\t".join(row) for row in table) + "\n"
