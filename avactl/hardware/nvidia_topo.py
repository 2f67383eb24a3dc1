"""Derive sockets, PCIe switches, NVLinks and NICs of a machine from the matrix of `nvidia-smi topo -m`.

Meaning of the link words (from the legend that `nvidia-smi` prints below the matrix):

- PIX, PXB: over one or several PCIe bridges, without the CPU: one switch here. GPUs under two cascaded switches are
  nearly as fast as under one; the CPU's root complex is not on the path.
- PHB, NODE: over one or several host bridges of a NUMA node: one socket.
- SYS (SOC before 2017): over the interconnect between NUMA nodes: different sockets.
- NV#: # NVLinks. Such a cell hides the PCIe path, which follows from NICs and affinity columns: two GPUs with PIX or
  PXB to one NIC are under one switch, GPUs with the same CPU affinity are on one socket.

Contradictions: affinity columns that differ between GPUs determine the sockets, because many servers report SYS
between the host bridges of one socket too (seen on Sapphire Rapids). Affinity that is equal for all GPUs, as in virtual
machines, is ignored. A machine with more than four NUMA nodes counts as two sockets of several NUMA nodes each (NPS4,
sub-NUMA clustering).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from avactl.hardware.machine import NVLINK, Nvlink, NvlinkPair, PcieSwitch
from avactl.hardware.topo_affinity import GpuAffinity, numbers_of
from avactl.hardware.topo_matrix import Matrix
from avactl.hardware.topology import Level

_SWITCH, _SOCKET = ("PIX", "PXB"), ("PIX", "PXB", "PHB", "NODE")
MAX_SOCKETS = 8

Levels = frozenset[Level]
SWITCH: Levels = frozenset(("pcieSwitch",))
SOCKET: Levels = frozenset(("socket",))
NEAR: Levels = SWITCH | SOCKET
FAR: Levels = frozenset(("node",))
ANY: Levels = NEAR | FAR


class FoundNic(NamedTuple):
    name: str
    socket: int


class FoundNvlink(NamedTuple):
    """NVLinks, and the certainty of their generation."""

    generation: int
    """0: direct links of another vendor."""
    nvlink: Nvlink
    guessed: bool
    """The generation is inferred from the number of links only."""


@dataclass(frozen=True, slots=True)
class MatrixHardware:
    """The hardware that a matrix describes. `remarks` explain conclusions and oddities to people."""

    gpus: int
    sockets: int
    switches: tuple[PcieSwitch, ...]
    nics: tuple[FoundNic, ...]
    nvlink: FoundNvlink | None
    cpus: int | None
    """CPUs (hardware threads) visible in the affinity columns."""
    ways: Mapping[tuple[int, int], Levels]
    """Possible PCIe levels by pair of GPUs: one if reported, several if NVLink hides the path."""
    remarks: tuple[str, ...]


class _Groups:
    """Disjoint sets of devices (union-find), with pairs that must stay separate."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))

    def of(self, device: int) -> int:
        while self.parent[device] != device:
            device = self.parent[device]
        return device

    def join(self, first: int, second: int) -> None:
        first, second = sorted((self.of(first), self.of(second)))
        self.parent[second] = first

    def members(self, device: int) -> list[int]:
        root = self.of(device)
        return [other for other in range(len(self.parent)) if self.of(other) == root]


def find(matrix: Matrix, nvlink_generation: int | None = None) -> MatrixHardware:
    """Derive the hardware. `nvlink_generation` is that of the GPU model, if known."""
    remarks = list(matrix.remarks)
    sockets = _find_sockets(matrix, remarks)
    switches = _group_by_switch(matrix, sockets)
    nic_sockets = _nic_sockets(matrix, sockets, remarks)
    found_switches, nics = _place_nics(matrix, sockets, switches, nic_sockets)
    nvlink, ways = _find_nvlink(matrix, nvlink_generation, remarks), _possible_levels(matrix, sockets, switches)
    count = max(*sockets, *nic_sockets, 0) + 1
    return MatrixHardware(
        len(matrix.gpus), count, found_switches, nics, nvlink, _count_cpus(matrix), ways, tuple(remarks)
    )


# -- sockets ---------------------------------------------------------------------------------------------------------


def _parse_numbers(text: str | None) -> list[int]:
    """Return the numbers in a CPU or node list as written: `0-19,40-59` → 0, 19, 40, 59."""
    return [int(part) for part in (text or "").replace("-", ",").split(",") if part.isdecimal()]


def _count_cpus(matrix: Matrix) -> int | None:
    """Return the number of CPUs; None if some GPU lacks the column, because a container may restrict the others."""
    highest = [max(_parse_numbers(affinity.cpus), default=-1) for affinity in matrix.affinities]
    return max(highest) + 1 if -1 not in highest and 1 <= max(highest) < 10_000 else None


def _numa_keys(affinities: tuple[GpuAffinity, ...]) -> list[str | None]:
    """Return the affinity column that best distinguishes NUMA nodes, by GPU; None for a GPU without a value."""
    numa: list[str | None] = [affinity.numa for affinity in affinities]
    cpus: list[str | None] = [affinity.cpus for affinity in affinities]

    def known(column: list[str | None]) -> tuple[int, int]:
        return len(set(column) - {None}), len(column) - column.count(None)

    return cpus if known(cpus) > known(numa) else numa


def _numa_nodes(matrix: Matrix) -> int | None:
    """Return the number of NUMA nodes, from the size of those next to GPUs; None if unknown."""
    cpus, sizes, numbered = _count_cpus(matrix), set(), 0
    for affinity in matrix.affinities:
        if affinity.cpus is None or affinity.numa is None or not affinity.numa.isdecimal():
            return None
        ranges = []
        for part in affinity.cpus.split(","):
            low, dash, high = part.partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()):
                return None
            ranges.append((int(low), int(high or low) + 1))
        sizes.add(sum(end - begin for begin, end in ranges))
        (begin, end), node = ranges[0], int(affinity.numa)
        # Node numbers may have gaps: 0 and 8 on POWER9.
        if begin == node * (end - begin):
            numbered = max(numbered, node + 1)
    if cpus is None or len(sizes) != 1 or (size := sizes.pop()) < 1:
        return None
    nodes = max(cpus // size, numbered)
    return nodes if nodes <= 64 else None


def _find_sockets(matrix: Matrix, remarks: list[str]) -> list[int]:
    """Return the socket of each GPU."""
    count = len(matrix.gpus)
    keys = _numa_keys(matrix.affinities)
    nodes = _numa_nodes(matrix)
    if nodes is not None and nodes > 4 and len(set(keys)) > 1:
        half = nodes // 2
        keys = [f"socket {min(1, int(a.numa or 0) // half)}" for a in matrix.affinities]
        remarks.append(f"{nodes} NUMA nodes by the size of the CPU lists: treated as two sockets of {half} nodes each")
    tells = len(set(keys) - {None}) > 1
    silent = [name for name, key in zip(matrix.gpus, keys, strict=True) if key is None]
    if 0 < len(silent) < count:
        remarks.append(f"{', '.join(silent)}: no CPU or NUMA affinity, unlike the other GPUs")
    groups = _Groups(count)
    pairs = list(combinations(range(count), 2))
    doubted = []
    for i, j in pairs:
        word = matrix.pcie_word(i, j)
        same = keys[i] is not None and keys[i] == keys[j]
        if word in _SOCKET or (tells and same):
            groups.join(i, j)
            if word == "SYS":
                doubted.append((i, j))
    for i, j in pairs:
        differ = tells and keys[i] is not None and keys[j] is not None and keys[i] != keys[j]
        if matrix.pcie_word(i, j) is None and not differ and not _are_apart(matrix, groups, i, j):
            groups.join(i, j)
    if doubted and not (nodes is not None and nodes > 4):
        i, j = doubted[0]
        remarks.append(
            f"{matrix.gpus[i]} to {matrix.gpus[j]}{' and others' if len(doubted) > 1 else ''}: SYS with one CPU"
            " affinity; treated as one socket, following the affinity"
        )
    hidden = all(matrix.pcie_word(i, j) is None for i, j in pairs)
    if hidden and pairs and not matrix.nics and not any(keys):
        what = "Infinity Fabric" if matrix.fabric else "NVLink"
        remarks.append(f"{what} hides the PCIe paths, and no affinity or NIC separates GPUs: treated as one socket")
    return _number_sockets(matrix, groups, remarks)


def _are_apart(matrix: Matrix, groups: _Groups, first: int, second: int) -> bool:
    """Return whether a cell, or a NIC near only one of them, reports SYS between the groups of two GPUs."""
    nics = range(len(matrix.gpus), len(matrix.gpus) + len(matrix.nics))
    for i in groups.members(first):
        for j in groups.members(second):
            if matrix.pcie_word(i, j) == "SYS":
                return True
            for nic in nics:
                words = {matrix.word(i, nic), matrix.word(j, nic)}
                if "SYS" in words and words & set(_SOCKET):
                    return True
    return False


def _number_sockets(matrix: Matrix, groups: _Groups, remarks: list[str]) -> list[int]:
    """Number the sockets in the order of their CPUs, else of their NUMA nodes, else of their GPUs."""
    count = len(matrix.gpus)
    roots = sorted({groups.of(gpu) for gpu in range(count)})

    def first(root: int, column: str) -> int:
        texts = [getattr(matrix.affinities[gpu], column) for gpu in groups.members(root)]
        return min((number for text in texts for number in _parse_numbers(text)), default=-1)

    for column in ("cpus", "numa"):
        order = {root: first(root, column) for root in roots}
        if -1 not in order.values():
            roots.sort(key=order.__getitem__)
            break
    if len(roots) > 1 and all(matrix.pcie_word(i, j) == "SYS" for i in range(count) for j in range(i)):
        one = len({a.cpus for a in matrix.affinities}) == 1
        if one and len(roots) == count and not any(len(_parse_numbers(a.numa)) > 1 for a in matrix.affinities):
            remarks.append("SYS between all GPUs and no distinguishing affinity: each counts as its own socket")
    most, limit = MAX_SOCKETS, f"a machine type has at most {MAX_SOCKETS} sockets"
    ranges = {affinity.numa for affinity in matrix.affinities}
    nodes = len(numbers_of(ranges.pop() or "")) if len(ranges) == 1 else 0
    if 1 < nodes < most:
        most, limit = nodes, f"each is next to all {nodes} NUMA nodes: treated as {nodes} sockets, in order"
    if len(roots) > most:
        remarks.append(f"{len(roots)} groups are SYS to each other; {limit}")
    return [roots.index(groups.of(gpu)) * most // max(most, len(roots)) for gpu in range(count)]


# -- switches and NICs -----------------------------------------------------------------------------------------------


def _group_by_switch(matrix: Matrix, sockets: list[int]) -> _Groups:
    """Group GPUs by PCIe switch, from cells, and from NICs if NVLink hides the cells."""
    count = len(matrix.gpus)
    groups = _Groups(count)
    nics = range(count, count + len(matrix.nics))
    for i, j in combinations(range(count), 2):
        word = matrix.pcie_word(i, j)
        shared = any(matrix.word(i, nic) in _SWITCH and matrix.word(j, nic) in _SWITCH for nic in nics)
        if sockets[i] == sockets[j] and (word in _SWITCH or (word is None and shared)):
            groups.join(i, j)
    return groups


def _nic_sockets(matrix: Matrix, sockets: list[int], remarks: list[str]) -> list[int]:
    """Return the socket of each NIC: that of nearby GPUs, else of nearby NICs."""
    count, every = len(matrix.gpus), len(matrix.gpus) + len(matrix.nics)
    found: dict[int, int] = {}
    for nic in range(count, every):
        near = [gpu for word in _SOCKET for gpu in range(count) if matrix.word(gpu, nic) == word]
        if near:
            found[nic] = sockets[near[0]]
    groups = _Groups(every)
    for i, j in combinations(range(count, every), 2):
        if matrix.word(i, j) in _SOCKET:
            groups.join(i, j)
    for nic in range(count, every):
        if nic not in found:
            near = [other for other in groups.members(nic) if other in found]
            if near:
                found[nic] = found[near[0]]
    lost = [nic for nic in range(count, every) if nic not in found]
    clusters = sorted({groups.of(nic) for nic in lost})
    empty = [socket for socket in range(max(sockets) + 1) if socket not in found.values()]
    if lost and max(sockets) == 0 and not any(affinity.memory_node for affinity in matrix.affinities):
        # Near no GPU, and all GPUs are on one socket: so there is another one. (Not with Grace, where SYS only says
        # that the GPU's memory is a NUMA node of its own.)
        empty = [1]
    in_order = bool(empty) and len(clusters) % len(empty) == 0
    for nic in lost:
        found[nic] = empty[clusters.index(groups.of(nic)) * len(empty) // len(clusters)] if in_order else 0
    if lost:
        names = ", ".join(matrix.nics[nic - count] for nic in lost)
        chosen = sorted({found[nic] for nic in lost})
        how = f"assigned to socket {chosen[0]}" if len(chosen) == 1 else "assigned to sockets in order"
        remarks.append(f"{names}: SYS to every GPU, so the socket is unknown; {how}")
    return [found[nic] for nic in range(count, every)]


def _place_nics(
    matrix: Matrix, sockets: list[int], switches: _Groups, nic_sockets: list[int]
) -> tuple[tuple[PcieSwitch, ...], tuple[FoundNic, ...]]:
    """Assign each NIC to the switch of its nearest GPU, and to that switch's socket."""
    count = len(matrix.gpus)
    under: dict[int, list[str]] = {}
    nics = []
    for number, name in enumerate(matrix.nics):
        words = [matrix.word(gpu, count + number) for gpu in range(count)]
        nearest = next((words.index(word) for word in _SWITCH if word in words), None)
        if nearest is not None:
            under.setdefault(switches.of(nearest), []).append(name)
        nics.append(FoundNic(name, nic_sockets[number] if nearest is None else sockets[nearest]))
    roots = sorted({switches.of(gpu) for gpu in range(count)})
    found = [PcieSwitch(sockets[root], tuple(switches.members(root)), tuple(under.get(root, ()))) for root in roots]
    return tuple(found), tuple(nics)


def _possible_levels(matrix: Matrix, sockets: list[int], switches: _Groups) -> dict[tuple[int, int], Levels]:
    """Return the possible PCIe levels by pair of GPUs."""
    keys = _numa_keys(matrix.affinities)
    tells = len(set(keys) - {None}) > 1
    nics = range(len(matrix.gpus), len(matrix.gpus) + len(matrix.nics))
    ways: dict[tuple[int, int], Levels] = {}
    for i, j in combinations(range(len(matrix.gpus)), 2):
        word = matrix.pcie_word(i, j)
        if switches.of(i) == switches.of(j):
            way = SWITCH
        elif word is not None:
            way = SOCKET if word in _SOCKET else FAR if sockets[i] != sockets[j] else SOCKET | FAR
        elif sockets[i] != sockets[j]:
            way = FAR if tells or _are_apart(matrix, _Groups(len(matrix.gpus)), i, j) else ANY
        else:
            own = any({matrix.word(i, nic), matrix.word(j, nic)} & set(_SWITCH) for nic in nics)
            # A separate switch is visible only through its NIC; otherwise switch and socket are indistinguishable.
            near = tells or any({matrix.word(i, nic), matrix.word(j, nic)} <= set(_SOCKET) for nic in nics)
            way = (SOCKET if own else NEAR) if near else ANY
        ways[i, j] = way
    return ways


# -- NVLink ----------------------------------------------------------------------------------------------------------


def _find_nvlink(matrix: Matrix, known: int | None, remarks: list[str]) -> FoundNvlink | None:
    """Return the NVLinks: through NVSwitch if there are more than a GPU could have to each of the others."""
    if matrix.fabric:
        return FoundNvlink(0, Nvlink(0.0, pairs=matrix.fabric), False)
    count = len(matrix.gpus)
    pairs = {pair: matrix.links(*pair) for pair in combinations(range(count), 2)}
    linked = {pair: links for pair, links in pairs.items() if links}
    if not linked:
        return None
    ends = [sum(links for pair, links in linked.items() if gpu in pair) for gpu in range(count)]
    most, members = max(linked.values()), [gpu for gpu in range(count) if ends[gpu]]
    all_to_all = len(members) > 2 and 2 * len(linked) == len(members) * (len(members) - 1)
    limit = NVLINK[known].max_links if known else _MAX_DIRECT
    switched = all_to_all and (max(ends) > limit or (known is None and _looks_switched(len(members), most)))
    needed = most if switched else max(ends)
    generation = known or _guess_generation(needed, most, switched)
    if needed > NVLINK[generation].max_links:
        larger = next((n for n, nvlink in NVLINK.items() if nvlink.max_links >= needed), None)
        if larger is None:
            switched, larger = True, _guess_generation(most, most, True)
            remarks.append(f"NV{most} between some GPUs only, too many for direct links: treated as NVSwitch for all")
        else:
            remarks.append(f"{needed} NVLinks per GPU exceed NVLink {generation}: treated as NVLink {larger}")
        generation, known = larger, None
    elif switched and len(members) < count:
        without = ", ".join(matrix.gpus[gpu] for gpu in range(count) if not ends[gpu])
        remarks.append(
            f"{without}: no NVLink, while all others are on NVSwitch: links are down, or the GPU is in MIG mode"
        )
    link_gbps = NVLINK[generation].link_gbps
    if switched:
        for gpu in range(count):
            own = [links for pair, links in pairs.items() if gpu in pair]
            if all(0 < links < most for links in own):
                remarks.append(f"{matrix.gpus[gpu]} has {max(own)} of {most} NVLinks: some are down")
        return FoundNvlink(generation, Nvlink(link_gbps, switch_links=most), known is None)
    found = tuple(NvlinkPair(i, j, links) for (i, j), links in sorted(linked.items()))
    return FoundNvlink(generation, Nvlink(link_gbps, pairs=found), known is None)


_MAX_DIRECT = 18
"""Maximum number of links that a GPU of an unknown model is assumed to divide among direct neighbours (H100)."""


def _looks_switched(count: int, links: int) -> bool:
    """Return whether equal links between all GPUs, of an unknown model, are too many for direct links.

    Direct meshes have three or four GPUs that divide all their links: 4 × NV1 (P100), NV2 (V100), NV4 (A100), NV6
    (H100), and 3 × NV3, NV6, NV9.
    """
    return count > 4 or links not in {3: (1, 2, 3, 4, 6, 9), 4: (1, 2, 3, 4, 6)}[count]


def _guess_generation(links: int, most: int, switched: bool) -> int:
    """Return the first generation with that many links.

    NV1 only, between eight or more GPUs with four links each, is the P100's cube mesh; otherwise start with NVLink 2.
    NV4 between two GPUs are the bridges of A40, A6000 and RTX 3090.
    """
    if not switched and most == 1 and 2 < links <= NVLINK[1].max_links:
        return 1
    if not switched and most == links == 4:
        return 3
    return next((number for number in (2, 3, 4, 6) if NVLINK[number].max_links >= links), 6)
