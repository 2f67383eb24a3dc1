"""From the matrix of `nvidia-smi topo -m` to what is inside of the machine: sockets, switches, NVLinks, NICs.

What the link words mean (the legend that `nvidia-smi` prints below the matrix):

- PIX, PXB: over one or several PCIe bridges, without the CPU: one switch here. GPUs under two cascaded switches talk
  nearly as fast as under one, and what counts is that the CPU's root complex is not on the way.
- PHB, NODE: over one or several host bridges of a NUMA node: one socket.
- SYS (SOC before 2017): over the interconnect between NUMA nodes: different sockets.
- NV#: # NVLinks. Such a cell hides the PCIe way, which NICs and the affinity columns still tell: two GPUs with PIX or
  PXB to one NIC stand under one switch, GPUs with one CPU affinity are on one socket.

Where the two contradict each other: affinity columns that tell GPUs apart decide on sockets, because many servers say
SYS between the host bridges of one socket too (seen on Sapphire Rapids). Affinity that is the same for all GPUs, as in
virtual machines, says nothing. A machine with more than four NUMA nodes is taken as two sockets of several NUMA nodes
each (NPS4, sub-NUMA clustering).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from avactl.hardware.machine import NVLINK, Nvlink, NvlinkPair
from avactl.hardware.topo_affinity import Affinity
from avactl.hardware.topo_matrix import Matrix
from avactl.hardware.topology import Level

_SWITCH, _SOCKET = ("PIX", "PXB"), ("PIX", "PXB", "PHB", "NODE")
MOST_SOCKETS = 8

Levels = frozenset[Level]
SWITCH: Levels = frozenset(("pcieSwitch",))
SOCKET: Levels = frozenset(("socket",))
NEAR: Levels = SWITCH | SOCKET
FAR: Levels = frozenset(("node",))
ANY: Levels = NEAR | FAR


@dataclass(frozen=True, slots=True)
class FoundSwitch:
    """GPUs (and NICs) that reach each other without the CPU."""

    socket: int
    gpus: tuple[int, ...]
    nics: tuple[str, ...]


class FoundNic(NamedTuple):
    name: str
    socket: int


class FoundNvlink(NamedTuple):
    """NVLinks, and how sure their generation is."""

    generation: int
    nvlink: Nvlink
    guessed: bool
    """The generation follows from the number of links only."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a matrix says of a machine. `remarks` are for people: what was concluded from what, and what is odd."""

    gpus: int
    sockets: int
    switches: tuple[FoundSwitch, ...]
    nics: tuple[FoundNic, ...]
    nvlink: FoundNvlink | None
    cpus: int | None
    """CPUs (hardware threads) as far as the affinity columns show them."""
    ways: Mapping[tuple[int, int], Levels]
    """By two GPUs, what their way over PCIe can be: one level where it is said, several where NVLink hides it."""
    remarks: tuple[str, ...]


class _Groups:
    """Disjoint sets of devices (union-find), with pairs that must stay apart."""

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


def find(matrix: Matrix, nvlink_generation: int | None = None) -> Found:
    """What is inside of the machine. `nvlink_generation` is that of the GPU model, where it is known."""
    remarks = list(matrix.remarks)
    sockets = _sockets(matrix, remarks)
    switches = _switches(matrix, sockets)
    nic_sockets = _nic_sockets(matrix, sockets, remarks)
    found_switches, nics = _place_nics(matrix, sockets, switches, nic_sockets)
    return Found(
        gpus=len(matrix.gpus),
        sockets=max(*sockets, *nic_sockets, 0) + 1,
        switches=found_switches,
        nics=nics,
        nvlink=_nvlink(matrix, nvlink_generation, remarks),
        cpus=_cpus(matrix),
        ways=_ways(matrix, sockets, switches),
        remarks=tuple(remarks),
    )


# -- sockets ---------------------------------------------------------------------------------------------------------


def _numbers(text: str | None) -> list[int]:
    """The numbers in a list of CPUs or nodes, as they stand: `0-19,40-59` → 0, 19, 40, 59."""
    return [int(part) for part in (text or "").replace("-", ",").split(",") if part.isdecimal()]


def _cpus(matrix: Matrix) -> int | None:
    """CPUs of the machine; None where some GPU's are not said: those of the others may be what a container may use."""
    highest = [max(_numbers(affinity.cpus), default=-1) for affinity in matrix.affinities]
    return max(highest) + 1 if -1 not in highest and 1 <= max(highest) < 10_000 else None


def _keys(affinities: tuple[Affinity, ...]) -> list[str | None]:
    """What tells GPUs of different NUMA nodes apart: the column that knows more; None: nothing is said of this GPU."""
    numa: list[str | None] = [affinity.numa for affinity in affinities]
    cpus: list[str | None] = [affinity.cpus for affinity in affinities]

    def known(column: list[str | None]) -> tuple[int, int]:
        return len(set(column) - {None}), len(column) - column.count(None)

    return cpus if known(cpus) > known(numa) else numa


def _numa_nodes(matrix: Matrix) -> int | None:
    """How many NUMA nodes the machine has, by the size of those next to GPUs; None where that is not said."""
    cpus, sizes, numbered = _cpus(matrix), set(), 0
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
        # Nodes may be numbered with gaps: 0 and 8 on POWER9.
        if begin == node * (end - begin):
            numbered = max(numbered, node + 1)
    if cpus is None or len(sizes) != 1 or (size := sizes.pop()) < 1:
        return None
    nodes = max(cpus // size, numbered)
    return nodes if nodes <= 64 else None


def _sockets(matrix: Matrix, remarks: list[str]) -> list[int]:
    """The socket of each GPU."""
    count = len(matrix.gpus)
    keys = _keys(matrix.affinities)
    nodes = _numa_nodes(matrix)
    if nodes is not None and nodes > 4 and len(set(keys)) > 1:
        half = nodes // 2
        keys = [f"socket {min(1, int(a.numa or 0) // half)}" for a in matrix.affinities]
        remarks.append(f"{nodes} NUMA nodes by the size of the CPU lists: taken as two sockets of {half} nodes each")
    tells = len(set(keys) - {None}) > 1
    silent = [name for name, key in zip(matrix.gpus, keys, strict=True) if key is None]
    if 0 < len(silent) < count:
        remarks.append(f"{', '.join(silent)}: neither CPUs nor NUMA node are said, as they are for the others")
    groups = _Groups(count)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
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
        if matrix.pcie_word(i, j) is None and not differ and not _apart(matrix, groups, i, j):
            groups.join(i, j)
    if doubted and not (nodes is not None and nodes > 4):
        i, j = doubted[0]
        remarks.append(
            f"{matrix.gpus[i]} to {matrix.gpus[j]}{' and others' if len(doubted) > 1 else ''}: SYS with one CPU"
            " affinity; taken as one socket, as the affinity says"
        )
    hidden = all(matrix.pcie_word(i, j) is None for i, j in pairs)
    if hidden and pairs and not matrix.nics and not any(keys):
        remarks.append("NVLink hides the PCIe ways, and no affinity or NIC tells GPUs apart: taken as one socket")
    return _numbered(matrix, groups, remarks)


def _apart(matrix: Matrix, groups: _Groups, first: int, second: int) -> bool:
    """Whether something says SYS between the groups of two GPUs: a cell, or a NIC that is near only one of them."""
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


def _numbered(matrix: Matrix, groups: _Groups, remarks: list[str]) -> list[int]:
    """Sockets as numbers: in the order of their CPUs, else of their NUMA nodes, else of their GPUs."""
    count = len(matrix.gpus)
    roots = sorted({groups.of(gpu) for gpu in range(count)})

    def first(root: int, column: str) -> int:
        texts = [getattr(matrix.affinities[gpu], column) for gpu in groups.members(root)]
        return min((number for text in texts for number in _numbers(text)), default=-1)

    for column in ("cpus", "numa"):
        order = {root: first(root, column) for root in roots}
        if -1 not in order.values():
            roots.sort(key=order.__getitem__)
            break
    if len(roots) > 1 and all(matrix.pcie_word(i, j) == "SYS" for i in range(count) for j in range(i)):
        one = len({a.cpus for a in matrix.affinities}) == 1
        if one and len(roots) == count:
            remarks.append("SYS between all GPUs, and no affinity tells them apart: each counts as a socket of its own")
    if len(roots) > MOST_SOCKETS:
        remarks.append(f"{len(roots)} groups are SYS to each other; a machine type has {MOST_SOCKETS} sockets at most")
    return [min(roots.index(groups.of(gpu)) * MOST_SOCKETS // max(MOST_SOCKETS, len(roots)), 7) for gpu in range(count)]


# -- switches and NICs -----------------------------------------------------------------------------------------------


def _switches(matrix: Matrix, sockets: list[int]) -> _Groups:
    """GPUs by PCIe switch: what cells say, and NICs where NVLink hides the cells."""
    count = len(matrix.gpus)
    groups = _Groups(count)
    nics = range(count, count + len(matrix.nics))
    for i in range(count):
        for j in range(i + 1, count):
            if sockets[i] != sockets[j]:
                continue
            word = matrix.pcie_word(i, j)
            shared = any(matrix.word(i, nic) in _SWITCH and matrix.word(j, nic) in _SWITCH for nic in nics)
            if word in _SWITCH or (word is None and shared):
                groups.join(i, j)
    return groups


def _nic_sockets(matrix: Matrix, sockets: list[int], remarks: list[str]) -> list[int]:
    """The socket of each NIC: that of the GPUs it is near, else of NICs it is near."""
    count, every = len(matrix.gpus), len(matrix.gpus) + len(matrix.nics)
    found: dict[int, int] = {}
    for nic in range(count, every):
        near = [gpu for word in _SOCKET for gpu in range(count) if matrix.word(gpu, nic) == word]
        if near:
            found[nic] = sockets[near[0]]
    groups = _Groups(every)
    for i in range(count, every):
        for j in range(i + 1, every):
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
        empty = [1] * len(clusters)
    in_order = len(clusters) == len(empty)
    for nic in lost:
        found[nic] = empty[clusters.index(groups.of(nic))] if in_order else 0
    if lost and max(sockets) > 0:
        names = ", ".join(matrix.nics[nic - count] for nic in lost)
        how = "put on sockets in their order" if in_order else "put on socket 0"
        remarks.append(f"{names}: SYS to every GPU, so on which socket is not said; {how}")
    return [found[nic] for nic in range(count, every)]


def _place_nics(
    matrix: Matrix, sockets: list[int], switches: _Groups, nic_sockets: list[int]
) -> tuple[tuple[FoundSwitch, ...], tuple[FoundNic, ...]]:
    """Each NIC under the switch of the GPU that is nearest; its socket is then that of the switch."""
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
    found = [FoundSwitch(sockets[root], tuple(switches.members(root)), tuple(under.get(root, ()))) for root in roots]
    return tuple(found), tuple(nics)


def _ways(matrix: Matrix, sockets: list[int], switches: _Groups) -> dict[tuple[int, int], Levels]:
    """What the way over PCIe between two GPUs can be."""
    keys = _keys(matrix.affinities)
    tells = len(set(keys) - {None}) > 1
    nics = range(len(matrix.gpus), len(matrix.gpus) + len(matrix.nics))
    ways: dict[tuple[int, int], Levels] = {}
    for i in range(len(matrix.gpus)):
        for j in range(i + 1, len(matrix.gpus)):
            word = matrix.pcie_word(i, j)
            if switches.of(i) == switches.of(j):
                way = SWITCH
            elif word is not None:
                way = SOCKET if word in _SOCKET else FAR if sockets[i] != sockets[j] else SOCKET | FAR
            elif sockets[i] != sockets[j]:
                way = FAR if tells or _apart(matrix, _Groups(len(matrix.gpus)), i, j) else ANY
            else:
                own = any({matrix.word(i, nic), matrix.word(j, nic)} & set(_SWITCH) for nic in nics)
                # A switch of its own for one of the two shows in its NIC; else nothing tells switch from socket.
                near = tells or any({matrix.word(i, nic), matrix.word(j, nic)} <= set(_SOCKET) for nic in nics)
                way = (SOCKET if own else NEAR) if near else ANY
            ways[i, j] = way
    return ways


# -- NVLink ----------------------------------------------------------------------------------------------------------


def _nvlink(matrix: Matrix, known: int | None, remarks: list[str]) -> FoundNvlink | None:
    """NVLinks: through NVSwitch where they are more than a GPU could have to each of the others."""
    count = len(matrix.gpus)
    pairs = {(i, j): matrix.links(i, j) for i in range(count) for j in range(i + 1, count)}
    linked = {pair: links for pair, links in pairs.items() if links}
    if not linked:
        return None
    ends = [sum(links for pair, links in linked.items() if gpu in pair) for gpu in range(count)]
    most, members = max(linked.values()), [gpu for gpu in range(count) if ends[gpu]]
    all_to_all = len(members) > 2 and 2 * len(linked) == len(members) * (len(members) - 1)
    limit = NVLINK[known].max_links if known else _MOST_DIRECT
    switched = all_to_all and (max(ends) > limit or (known is None and _looks_switched(len(members), most)))
    needed = most if switched else max(ends)
    generation = known or _guess(needed, most, switched)
    if needed > NVLINK[generation].max_links:
        larger = next((n for n, nvlink in NVLINK.items() if nvlink.max_links >= needed), None)
        if larger is None:
            switched, larger = True, _guess(most, most, True)
            remarks.append(f"NV{most} between some GPUs only, more than direct links can be: taken as NVSwitch for all")
        else:
            remarks.append(f"{needed} NVLinks a GPU are more than NVLink {generation} has: taken as NVLink {larger}")
        generation, known = larger, None
    elif switched and len(members) < count:
        without = ", ".join(matrix.gpus[gpu] for gpu in range(count) if not ends[gpu])
        remarks.append(
            f"{without}: no NVLink, and all others are on NVSwitch: links are down, or the GPU is in MIG mode"
        )
    link_gbps = NVLINK[generation].link_gbps
    if switched:
        weak = [gpu for gpu in range(count) if all(0 < pairs[_pair(gpu, o)] < most for o in range(count) if o != gpu)]
        for gpu in weak:
            has = max(pairs[_pair(gpu, other)] for other in range(count) if other != gpu)
            remarks.append(f"{matrix.gpus[gpu]} has {has} of {most} NVLinks: some are down")
        return FoundNvlink(generation, Nvlink(link_gbps, switch_links=most), known is None)
    found = tuple(NvlinkPair(i, j, links) for (i, j), links in sorted(linked.items()))
    return FoundNvlink(generation, Nvlink(link_gbps, pairs=found), known is None)


_MOST_DIRECT = 18
"""Most links of one GPU that GPUs of an unknown model are thought to share out among direct neighbours (H100)."""


def _pair(first: int, second: int) -> tuple[int, int]:
    return (first, second) if first < second else (second, first)


def _looks_switched(count: int, links: int) -> bool:
    """Whether equal links between all GPUs, of an unknown model, are more than direct ones can be.

    Direct meshes are built of three or four GPUs that share out all the links they have: 4 × NV1 (P100), NV2 (V100),
    NV4 (A100), NV6 (H100), and 3 × NV3, NV6, NV9.
    """
    return count > 4 or links not in {3: (1, 2, 3, 4, 6, 9), 4: (1, 2, 3, 4, 6)}[count]


def _guess(links: int, most: int, switched: bool) -> int:
    """The first generation that has so many links.

    NV1 only between eight or more GPUs with four links each is the P100's cube mesh; else links began with NVLink 2.
    NV4 between two GPUs are the bridges of the A40, A6000 and RTX 3090.
    """
    if switched:
        return next((number for number in (2, 3, 4, 6) if NVLINK[number].max_links >= links), 6)
    if most == 1 and links <= NVLINK[1].max_links and links > 2:
        return 1
    if most == links == 4:
        return 3
    return next((number for number in (2, 3, 4, 6) if NVLINK[number].max_links >= links), 6)
