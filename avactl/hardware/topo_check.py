"""Compare a machine's matrix with its machine type; describe each difference, and judge it as a node condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from avactl.hardware.machine import Machine
from avactl.hardware.nvidia_topo import Levels, MatrixHardware, find
from avactl.hardware.topo_matrix import MISSING, Matrix, read
from avactl.hardware.topology import Level, topology_of

_MAX_SEARCH_STEPS = 50_000
_MAX_DIFFERENCES_TOLD = 5
"""Maximum number of differences in the message of a condition."""
_WORDS: dict[Level, str] = {
    "nvlink": "NVLink",
    "pcieSwitch": "one PCIe switch",
    "socket": "one socket",
    "node": "different sockets",
}


@dataclass(frozen=True, slots=True)
class TopologyComparison:
    """Differences (none: the machine matches its type), and further information."""

    differences: tuple[str, ...]
    infos: tuple[str, ...] = ()
    numbering: tuple[int, ...] = ()
    """GPU of the type by GPU of the machine."""
    links_down: tuple[tuple[int, str], ...] = ()
    """GPUs of the machine with fewer links to NVSwitch than others, and how many."""


class _Declared:
    """Pairwise links that a machine type declares."""

    def __init__(self, machine: Machine) -> None:
        known, gpus = topology_of(machine), range(machine.gpus)
        self.links = [[known.links(i, j) for j in gpus] for i in gpus]
        self.levels = [[known.pcie_level(i, j) for j in gpus] for i in gpus]
        self.nics = [len(known.switch(gpu).nics) for gpu in gpus]
        self.switched = bool(machine.nvlink and machine.nvlink.switch_links)


class _Seen:
    """Pairwise links that a matrix shows."""

    def __init__(self, matrix: Matrix, found: MatrixHardware) -> None:
        count = found.gpus
        self.names = matrix.gpus
        self.links = [[matrix.links(i, j) if i != j else 0 for j in range(count)] for i in range(count)]
        self._ways = found.ways
        under = {gpu: len(switch.nics) for switch in found.switches for gpu in switch.gpus}
        self.nics = [under[gpu] for gpu in range(count)]
        self.words = [[matrix.word(i, j) or "X" for j in range(count)] for i in range(count)]

    def ways(self, i: int, j: int) -> Levels:
        return self._ways[(i, j) if i < j else (j, i)]


def compare(machine: Machine, matrix: Matrix, found: MatrixHardware) -> TopologyComparison:
    """Compare a machine with its declared type.

    Compares the number of GPUs, NVLinks, the level of each pair, and the NICs under each GPU's switch. The matrix does
    not show model, memory, CPU cores and speeds. The GPUs may be numbered differently.
    """
    if machine.gpus != found.gpus:
        return TopologyComparison((_counts(machine, matrix, found),))
    declared, seen = _Declared(machine), _Seen(matrix, found)
    same = tuple(range(found.gpus))
    infos = [f"the text has {matrix.others + 1} matrices; using the first"] if matrix.others else []
    with_nics = bool(matrix.nics) and bool(machine.nics)
    if machine.nics and not matrix.nics:
        infos.append("the output has no NIC columns: NICs were not compared")
    elif len(matrix.nics) > len(machine.nics):
        are = "NIC is" if len(matrix.nics) == 1 else "NICs are"
        infos.append(f"{len(matrix.nics)} {are} present, the type has {len(machine.nics)}: the others are ignored")
    differences = _differences(declared, seen, same, with_nics)
    if not differences:
        return TopologyComparison((), tuple(infos), same)
    down = tuple(_links_down(declared, seen).items())
    numbering = _renumber(declared, seen, with_nics)
    if numbering is None and with_nics:
        # The GPUs may match in another order, and only NICs differ.
        numbering = _renumber(declared, seen, False)
    if numbering is None or numbering == same:
        return TopologyComparison(tuple(differences), tuple(infos), same, down)
    differences = _differences(declared, seen, numbering, with_nics)
    moved = ", ".join(f"{matrix.gpus[i]} ↔ GPU{j} of the type" for i, j in enumerate(numbering) if i != j)
    alike = "the GPUs are the same" if differences else "same"
    return TopologyComparison(tuple(differences), (f"{alike} up to numbering: {moved}", *infos), numbering, down)


def _counts(machine: Machine, matrix: Matrix, found: MatrixHardware) -> str:
    text = f"{found.gpus} GPU{'' if found.gpus == 1 else 's'}, the type has {machine.gpus}"
    numbers = {int(name[3:]) for name in matrix.gpus}
    gone = [f"GPU{index}" for index in range(max(numbers)) if index not in numbers]
    return f"{text}; {', '.join(gone)} missing" if gone else text


def _differences(declared: _Declared, seen: _Seen, numbering: Sequence[int], with_nics: bool) -> list[str]:
    """Describe the differences, mapping GPU i of the machine to GPU numbering[i] of the type."""
    count = len(numbering)
    found: list[str] = []
    broken = _broken(declared, seen, numbering)
    found += dict.fromkeys(broken.values())
    for i, j in combinations(range(count), 2):
        a, b = numbering[i], numbering[j]
        wants, has = declared.links[a][b], seen.links[i][j]
        pair = f"{seen.names[i]} to {seen.names[j]}"
        if wants != has and i not in broken and j not in broken:
            if not has:
                found.append(f"{pair}: no NVLink ({seen.words[i][j]}), the type has {_links(wants)}")
            elif has < wants:
                found.append(f"{pair}: {_links(has)}, the type has {wants}: {_links(wants - has)} down")
            else:
                found.append(f"{pair}: {_links(has)}, the type has {wants or 'none'}")
        level = declared.levels[a][b]
        if level not in seen.ways(i, j):
            is_ = " or ".join(_WORDS[way] for way in sorted(seen.ways(i, j)))
            found.append(f"{pair}: {seen.words[i][j]} ({is_}), the type says {_WORDS[level]}")
    if with_nics:
        for i in range(count):
            wants, has = declared.nics[numbering[i]], seen.nics[i]
            if has < wants:
                found.append(f"{seen.names[i]}: {_count(has, 'NIC')} under its PCIe switch, the type has {wants}")
    return found


def _broken(declared: _Declared, seen: _Seen, numbering: Sequence[int]) -> dict[int, str]:
    """Return GPUs with fewer NVSwitch links to all others: reported once per GPU, not per pair."""
    if not declared.switched or len(numbering) < 3:
        return {}
    wants = declared.links[0][1]
    best = _best_links(seen)
    if all(has == best[0] for has in best):
        if best[0] == wants:
            return {}
        text = f"{_links(best[0])} from each GPU to NVSwitch, the type has {wants}"
        everywhere = {cell for i, row in enumerate(seen.links) for j, cell in enumerate(row) if i != j} == {best[0]}
        return dict.fromkeys(range(len(numbering)), text) if everywhere else {}
    return {gpu: f"{seen.names[gpu]}: {text}" for gpu, text in _links_down(declared, seen).items()}


def _best_links(seen: _Seen) -> list[int]:
    """Return the links of each GPU to the GPU to which it has most."""
    return [max(row[:i] + row[i + 1 :]) for i, row in enumerate(seen.links)]


def _links_down(declared: _Declared, seen: _Seen) -> dict[int, str]:
    """Return the GPUs with fewer NVSwitch links than others of the machine."""
    if not declared.switched or len(seen.names) < 3:
        return {}
    wants, best = declared.links[0][1], _best_links(seen)
    if all(has == best[0] for has in best):
        return {}  # rather another machine type
    return {
        gpu: f"{has} of {wants} NVLinks to NVSwitch: {wants - has if has else 'all'} down"
        for gpu, has in enumerate(best)
        if has < wants
    }


def _links(count: int) -> str:
    return _count(count, "NVLink")


def _count(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'s' if count > 1 else ''}"


def _renumber(declared: _Declared, seen: _Seen, with_nics: bool) -> tuple[int, ...] | None:
    """Find an order of the type's GPUs in which the machine matches (backtracking); None if there is none."""
    count = len(seen.names)
    signatures = [sorted(row) for row in declared.links]
    order: list[int] = []
    steps = 0

    def fits(i: int, a: int) -> bool:
        if sorted(seen.links[i]) != signatures[a] or (with_nics and seen.nics[i] < declared.nics[a]):
            return False
        return all(
            seen.links[i][j] == declared.links[a][b] and declared.levels[a][b] in seen.ways(i, j)
            for j, b in enumerate(order)
        )

    def search() -> bool:
        nonlocal steps
        i = len(order)
        if i == count:
            return True
        for a in range(count):
            steps += 1
            if steps > _MAX_SEARCH_STEPS:
                return False
            if a not in order and fits(i, a):
                order.append(a)
                if search():
                    return True
                order.pop()
        return False

    return tuple(order) if search() else None


# -- node condition --------------------------------------------------------------------------------------------------


class TopologyVerdict(NamedTuple):
    """Status, reason and message of the node condition."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    links_down: tuple[tuple[int, str], ...] = ()
    """GPUs whose links to NVSwitch are down, and how many."""


def judge(machine: Machine, type_name: str, output: str) -> TopologyVerdict:
    """Compare the output of `nvidia-smi topo -m` on a machine with its type."""
    matrix = read(output, "output")
    if not isinstance(matrix, Matrix):
        said = next((line.strip()[:200] for line in output.splitlines() if line.strip()), None)
        message = matrix[0].message
        if matrix[0].code == MISSING:
            message = f"no matrix in: {said}" if said else "no output"
        return unknown("OutputDamaged", f"`nvidia-smi topo -m`: {message}")
    result = compare(machine, matrix, find(matrix))
    if result.differences:
        message = f"not a {type_name}: {_few(result.differences)}"
        return TopologyVerdict("False", "TopologyDiffers", message, result.links_down)
    infos = f" ({'; '.join(result.infos)})" if result.infos else ""
    return TopologyVerdict("True", "TopologyMatches", f"the machine is a {type_name}{infos}")


def unknown(reason: str, message: str) -> TopologyVerdict:
    """Return the verdict for a machine that could not be checked."""
    return TopologyVerdict("Unknown", reason, message)


def _few(differences: Sequence[str]) -> str:
    more = len(differences) - _MAX_DIFFERENCES_TOLD
    return "; ".join([*differences[:_MAX_DIFFERENCES_TOLD], *([f"… and {more} more"] if more > 0 else [])])
