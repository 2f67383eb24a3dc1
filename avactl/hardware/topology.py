"""Topology of a machine type: link speed between GPUs, and link levels of sets of GPUs.

Sets of GPUs are bit masks: GPU i is bit i. All results are exact; expensive ones are tabulated on first use, once per
machine type.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Literal

from avactl.hardware.machine import Machine, PcieSwitch

Level = Literal["nvlink", "pcieSwitch", "socket", "node"]
"""The slowest part of the path between GPUs."""

LEVELS: tuple[Level, ...] = ("nvlink", "pcieSwitch", "socket", "node")
"""Best first."""

_RANK: dict[str, int] = {level: rank for rank, level in enumerate(LEVELS)} | {"any": len(LEVELS) - 1}


def satisfies(level: Level, wanted: str) -> bool:
    """Return whether a level is at least as good as the wanted one; `any` accepts all."""
    return _RANK[level] <= _RANK[wanted]


def gpus_in_mask(mask: int) -> tuple[int, ...]:
    """Return the GPUs of a set, in order."""
    return tuple(_set_bits(mask))


def _set_bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Topology:
    """Link queries on a machine type. Create it with `topology`, which caches one per machine type."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.count = machine.gpus
        self.all = (1 << machine.gpus) - 1
        self._place = {gpu: switch for switch in machine.switches for gpu in switch.gpus}
        indexes = range(self.count)
        self._levels_by_count: dict[int, tuple[Level, Level]] = {}
        self._links = self._nvlinks()
        self._levels = [[self._pair_level(i, j) for j in indexes] for i in indexes]
        self._speeds = [[self._pair_speed(i, j) for j in indexes] for i in indexes]

    def _nvlinks(self) -> list[list[int]]:
        nvlink = self.machine.nvlink
        through_switch = nvlink.switch_links if nvlink else 0
        links = [[through_switch if i != j else 0 for j in range(self.count)] for i in range(self.count)]
        for pair in nvlink.pairs if nvlink else ():
            links[pair.first][pair.second] = links[pair.second][pair.first] = pair.links
        return links

    def _pair_level(self, i: int, j: int) -> int:
        return 0 if i == j or self._links[i][j] else _RANK[self.pcie_level(i, j)]

    def _pair_speed(self, i: int, j: int) -> float:
        machine = self.machine
        if i == j:
            return float("inf")
        by_level = {
            "pcieSwitch": machine.pcie_switch_gbps,
            "socket": machine.same_socket_gbps,
            "node": machine.cross_socket_gbps,
        }
        nvlink = self._links[i][j] * machine.nvlink.link_gbps if machine.nvlink else 0.0
        return max(by_level[self.pcie_level(i, j)], nvlink)

    # -- pairs -----------------------------------------------------------------------------------------------------

    def switch(self, gpu: int) -> PcieSwitch:
        """Return the PCIe switch of a GPU."""
        return self._place[gpu]

    def links(self, i: int, j: int) -> int:
        """Return the number of NVLinks between two GPUs, directly or through NVSwitch."""
        return self._links[i][j]

    def pcie_level(self, i: int, j: int) -> Level:
        """Return the slowest part of the PCIe path between two GPUs."""
        if self._place[i] is self._place[j]:
            return "pcieSwitch"
        return "socket" if self._place[i].socket == self._place[j].socket else "node"

    def bandwidth(self, i: int, j: int) -> float:
        """Return the speed between GPUs, GB/s in one direction: the better of NVLink and PCIe; infinite for i = j."""
        return self._speeds[i][j]

    def level(self, i: int, j: int) -> Level:
        """Return the slowest part between two GPUs: `nvlink` if an NVLink or NVSwitch connects them."""
        return LEVELS[self._levels[i][j]]

    # -- sets ------------------------------------------------------------------------------------------------------

    def subset_level(self, mask: int) -> Level:
        """Return the link level of a set of GPUs.

        `nvlink` if a ring of NVLinks visits every GPU once (two GPUs: a link between them; one GPU: always). NCCL's
        ring all-reduce uses such a ring, so not every pair needs a link: all eight GPUs of a DGX-1 are `nvlink`.
        Without a ring, the level of the worst pair.
        """
        if self._nvswitch or self._rings[mask]:
            return "nvlink"
        gpus = gpus_in_mask(mask)
        return LEVELS[max(self._levels[i][j] for i in gpus for j in gpus)]

    def reachable_level(self, count: int) -> Level | None:
        """Return the best link level of any `count` GPUs of an empty machine; None if it has fewer."""
        return self._extremes(count)[0] if 1 <= count <= self.count else None

    def certain_level(self, count: int) -> Level | None:
        """Return the link level that every choice of `count` GPUs has; None if the machine has fewer."""
        return self._extremes(count)[1] if 1 <= count <= self.count else None

    def room(self, count: int, wanted: str = "any") -> int:
        """Return how many disjoint sets of `count` GPUs with the wanted link level fit on an empty machine.

        Exact for `socket`, for machines without NVLink and for those with NVSwitch; an upper bound for NVLink pairs.
        """
        if wanted == "socket":
            return sum(size // count for size in self._groups(True)) if 1 <= count <= self.count else 0
        best = self.reachable_level(count)
        if best is None or not satisfies(best, wanted):
            return 0
        if any(any(row) for row in self._links) or wanted != "pcieSwitch" or count == 1:
            return self.count // count
        return sum(size // count for size in self._groups(False))

    def is_certain(self, count: int, wanted: str) -> bool:
        """Return True if every choice of `count` GPUs has a link level."""
        if wanted == "socket" and count > 1:
            return count > self.count or len(self._groups(True)) == 1
        level = self.certain_level(count)
        return level is None or satisfies(level, wanted)

    # -- tables ----------------------------------------------------------------------------------------------------

    @property
    def _nvswitch(self) -> bool:
        return bool(self.machine.nvlink and self.machine.nvlink.switch_links)

    @cached_property
    def _rings(self) -> bytearray:
        """Compute by mask whether NVLinks form a ring through its GPUs (Held and Karp's dynamic programme, 1962)."""
        joined = [sum(1 << j for j in range(self.count) if self._links[i][j]) for i in range(self.count)]
        rings = bytearray(self.all + 1)
        ends = [0] * (self.all + 1)
        """Compute by mask the possible last GPUs of a path that starts at its lowest GPU and covers the mask."""
        for mask in range(1, self.all + 1):
            start = mask & -mask
            rest = mask ^ start
            if not rest:
                ends[mask], rings[mask] = start, 1
                continue
            for gpu in _set_bits(rest):
                if ends[mask ^ (1 << gpu)] & joined[gpu]:
                    ends[mask] |= 1 << gpu
            rings[mask] = bool(ends[mask] & joined[start.bit_length() - 1])
        return rings

    def _groups(self, by_socket: bool) -> list[int]:
        """Return the number of GPUs per switch or per socket."""
        if not by_socket:
            return [len(switch.gpus) for switch in self.machine.switches]
        sockets: dict[int, int] = {}
        for switch in self.machine.switches:
            sockets[switch.socket] = sockets.get(switch.socket, 0) + len(switch.gpus)
        return list(sockets.values())

    def _extremes(self, count: int) -> tuple[Level, Level]:
        """Return the best and the worst level of any `count` GPUs."""
        found = self._levels_by_count.get(count)
        if found is None:
            found = self._levels_by_count[count] = self._find_extremes(count)
        return found

    def _find_extremes(self, count: int) -> tuple[Level, Level]:
        if count == 1 or self._nvswitch:
            return "nvlink", "nvlink"
        if not self.machine.nvlink:
            # Switches are within sockets, so the sizes suffice.
            switches, sockets = self._groups(False), self._groups(True)
            best: Level = "pcieSwitch" if max(switches) >= count else "socket" if max(sockets) >= count else "node"
            worst: Level = "node" if len(sockets) > 1 else "socket" if len(switches) > 1 else "pcieSwitch"
            return best, worst
        ranks = {_RANK[self.subset_level(m)] for m in range(1, self.all + 1) if m.bit_count() == count}
        return LEVELS[min(ranks)], LEVELS[max(ranks)]


@lru_cache(maxsize=256)
def topology_of(machine: Machine) -> Topology:
    """Return the topology of a machine type; cached, so that tables are computed once per type."""
    return Topology(machine)
