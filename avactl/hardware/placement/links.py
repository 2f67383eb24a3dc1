"""Choose among a machine's free GPUs: exact results from tables, one set of tables per machine type.

Sets of GPUs are bit masks, GPU i is bit i, as in `avactl.hardware.topology`. The tables are arrays over all masks
(65,536 for 16 GPUs), so that many nodes are evaluated at once. Results for a free set are computed on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from avactl.hardware.machine import Machine, PcieSwitch
from avactl.hardware.topology import LEVELS, Level, Topology, topology_of

Ints = npt.NDArray[np.int64]
Masks = npt.NDArray[np.int32]

NO_PAIRS_SPEED = np.iinfo(np.int64).max // 2
"""Slowest pair of a set without pairs."""
NOT_COMPUTED = -1
MAX_SET_STATES = 1 << 17
"""Maximum number of states of a search for disjoint sets: more than one size and link on 16 GPUs can have."""


class SearchLimitError(Exception):
    """A search that was given up: it is not known if there is a result."""


class Links:
    """Tables over the GPU sets of one machine type. Create it with `links`, which caches one per machine type."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.count = topology.count
        self._size = 1 << self.count
        self._best: dict[tuple[int, int, bool, bool], Masks] = {}
        self._room: dict[tuple[int, int, int], int] = {}
        self._missing: dict[str, Ints] = {}

    # -- value of sets ----------------------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> Ints:
        """Number of GPUs in each set."""
        sizes = np.zeros(self._size, np.int64)
        for gpu in range(self.count):
            sizes[1 << gpu : 2 << gpu] = sizes[: 1 << gpu] + 1
        return sizes

    @cached_property
    def slowest(self) -> Ints:
        """Speed of the slowest pair of each set, MB/s in one direction; very large for sets without pairs.

        Whole MB/s, so that sums do not depend on the order of addition.
        """
        return self._combine_pairs(self._speed, np.minimum, NO_PAIRS_SPEED)

    @cached_property
    def total(self) -> Ints:
        """Sum of the speeds of all pairs of each set, MB/s."""
        return self._combine_pairs(self._speed, np.add, 0)

    def _combine_pairs(self, value: Callable[[int, int], int], combine: np.ufunc, none: int) -> Ints:
        """Combine a value of two GPUs over all pairs of each set; `none` is that of sets without pairs."""
        combined = np.full(self._size, none, np.int64)
        for gpu in range(self.count):
            below = 1 << gpu
            pairs = np.full(below, none, np.int64)
            for other in range(gpu):
                bit = 1 << other
                pairs[bit : 2 * bit] = combine(pairs[:bit], value(gpu, other))
            combined[below : 2 * below] = combine(combined[:below], pairs)
        return combined

    @cached_property
    def levels(self) -> npt.NDArray[np.int8]:
        """Link level of each set, as its index in `LEVELS`; defined by `Topology.subset_level`."""
        worst = self._combine_pairs(lambda i, j: LEVELS.index(self.topology.level(i, j)), np.maximum, 0)
        worst[self._ring_sets] = 0
        return worst.astype(np.int8)

    @cached_property
    def _ring_sets(self) -> npt.NDArray[np.bool_]:
        """Sets through which NVLinks form a ring (Held and Karp's dynamic programme, 1962), computed by set size."""
        everyone = range(self.count)
        joined = [sum(1 << j for j in everyone if j != i and self.topology.level(i, j) == "nvlink") for i in everyone]
        # Possible last GPUs of paths over the whole set that start at its lowest GPU.
        ends = np.zeros(self._size, np.int64)
        by_size = [np.flatnonzero(self.sizes == size) for size in range(self.count + 1)]
        if self.count:
            ends[by_size[1]] = by_size[1]
        for masks in by_size[2:]:
            for gpu in everyone:
                bit = 1 << gpu
                inside = masks[(masks & bit != 0) & (masks & -masks != bit)]
                ends[inside] |= np.where(ends[inside ^ bit] & joined[gpu], bit, 0)
        every = np.arange(self._size)
        rings: npt.NDArray[np.bool_] = self.sizes == 1
        for gpu in everyone:
            rings |= (every & -every == 1 << gpu) & (ends & joined[gpu] != 0) & (self.sizes > 1)
        return rings

    @cached_property
    def worth(self) -> Ints:
        """Value of a free set: the slowest pair of its best subset, summed over all subset sizes.

        Of equally good subsets, the one that leaves the most value is taken, which keeps sockets whole.
        """
        worth = np.zeros(self._size, np.int64)
        for size in range(2, self.count + 1):
            best = np.where(self.sizes == size, self.slowest, 0)
            for gpu in range(self.count):
                halves = best.reshape(-1, 2, 1 << gpu)
                np.maximum(halves[:, 1], halves[:, 0], out=halves[:, 1])
            worth += best
        return worth

    @cached_property
    def sockets(self) -> Ints:
        """Number of sockets of each set."""
        every = np.arange(self._size)
        result: Ints = sum((every & mask != 0 for mask in self._socket_masks), np.zeros(self._size, np.int64))
        return result

    @cached_property
    def wholeness(self) -> Ints:
        """Value of a free set for pods that need one socket: the squares of its GPUs by socket, summed."""
        every = np.arange(self._size)
        result: Ints = sum(
            (self.sizes[every & mask] ** 2 for mask in self._socket_masks), np.zeros(self._size, np.int64)
        )
        return result

    @cached_property
    def _socket_masks(self) -> list[int]:
        places = [self.topology.switch(gpu).socket for gpu in range(self.count)]
        return [sum(1 << gpu for gpu in range(self.count) if places[gpu] == socket) for socket in sorted(set(places))]

    def missing_levels(self, wanted: str) -> Ints:
        """Return by how many levels each set falls short of a link level; 0 if it has it.

        `socket` also needs one socket where NVLinks connect several: it is about the CPUs, memory and NICs beside it.
        """
        missing = self._missing.get(wanted)
        if missing is None:
            missing = np.maximum(self.levels.astype(np.int64) - _max_level(wanted), 0)
            if wanted == "socket":
                missing[self.sockets > 1] = 1
            self._missing[wanted] = missing
        return missing

    @cached_property
    def nic_distance(self) -> Ints:
        """Distance of each set's GPUs from RDMA NICs, summed: 0 under one PCIe switch, 1 on one socket, 2 otherwise."""
        distance = np.zeros(self._size, np.int64)
        for gpu in range(self.count):
            distance[1 << gpu : 2 << gpu] = distance[: 1 << gpu] + self._nearest_nic(gpu)[0]
        return distance

    def nic(self, gpu: int) -> str | None:
        """Return the RDMA NIC nearest to a GPU; None if the machine has none."""
        return self._nearest_nic(gpu)[1]

    def _nearest_nic(self, gpu: int) -> tuple[int, str | None]:
        machine = self.topology.machine
        place = next(switch for switch in machine.switches if gpu in switch.gpus)
        distances = [
            (0 if nic.name in place.nics else 1 if nic.socket == place.socket else 2, nic.name)
            for nic in machine.nics
            if nic.rdma
        ]
        return min(distances, default=(2, None), key=lambda nic: nic[0])

    def _speed(self, i: int, j: int) -> int:
        return round(self.topology.bandwidth(i, j) * 1000)

    # -- choice -----------------------------------------------------------------------------------------------------

    def best(self, free: int, count: int, wanted: str = "any", required: bool = False, rdma: bool = False) -> int:
        """Return the best `count` of the free GPUs; 0 if there are too few, or none with the required level.

        Order: sets of the wanted link level, then with RDMA those nearest to NICs, then the best slowest pair, the
        largest sum over pairs, the fewest sockets, the most value left, sockets left whole, the smallest mask. Exact:
        all subsets are compared.
        """
        return int(self.choose(np.array([free]), count, wanted, required, rdma)[0])

    def choose(
        self, free: npt.NDArray[np.integer], count: int, wanted: str = "any", required: bool = False, rdma: bool = False
    ) -> Masks:
        """Return `best` for many free sets at once."""
        rank = _max_level(wanted)
        table = self._best.get((count, rank, required, rdma))
        if table is None:
            table = self._best[count, rank, required, rdma] = np.full(self._size, NOT_COMPUTED, np.int32)
        chosen: Masks = table[free]
        if chosen.size and chosen.min() == NOT_COMPUTED:
            for mask in np.unique(free[chosen == NOT_COMPUTED]).tolist():
                table[mask] = self._find_best(mask, count, wanted, required, rdma)
            chosen = table[free]
        return chosen

    def _find_best(self, free: int, count: int, wanted: str, required: bool, rdma: bool) -> int:
        if not 1 <= count <= free.bit_count():
            return 0
        sets = np.flatnonzero(self.sizes == count)
        sets = sets[sets & ~free == 0]
        as_wanted = sets[self.missing_levels(wanted)[sets] == 0]
        if required and not as_wanted.size:
            return 0
        sets = as_wanted if as_wanted.size else sets
        if rdma:
            sets = _with_least(sets, self.nic_distance[sets])
        sets = _with_least(sets, -self.slowest[sets])
        sets = _with_least(sets, -self.total[sets])
        sets = _with_least(sets, self.sockets[sets])
        sets = _with_least(sets, -self.worth[free ^ sets])
        return int(_with_least(sets, -self.wholeness[free ^ sets])[0])

    def room(self, free: int, count: int, wanted: str = "any", required: bool = False) -> int:
        """Return how many disjoint sets of `count` GPUs fit into the free ones."""
        most = free.bit_count() // count
        if not required:
            return most
        rank = _max_level(wanted)
        sets = self._room.get((free, count, rank))
        if sets is None:
            sets = len(self._sets_one_by_one(free, count, wanted, most))
            # Without NVLinks between single pairs, sets are within groups of equal GPUs: any order takes as many.
            if self._has_pairs:
                while sets < most and self.disjoint_sets(free, [(count, wanted)] * (sets + 1)) is not None:
                    sets += 1
            self._room[free, count, rank] = sets
        return sets

    def sets_of(self, free: int, count: int, wanted: str, number: int, rdma: bool = False) -> list[int]:
        """Return disjoint sets of `count` GPUs with the required link level: the best one after the other if possible.

        Raises ValueError if there are fewer than `number`.
        """
        sets = self._sets_one_by_one(free, count, wanted, number, rdma)
        if len(sets) < number:
            disjoint = self.disjoint_sets(free, [(count, wanted)] * number)
            if disjoint is None:
                raise ValueError(f"{number} sets of {count} GPUs with link {wanted} in {free:b}")
            sets = disjoint
        return sets

    def _sets_one_by_one(self, free: int, count: int, wanted: str, most: int, rdma: bool = False) -> list[int]:
        sets: list[int] = []
        while len(sets) < most and (taken := self.best(free, count, wanted, True, rdma)):
            sets.append(taken)
            free ^= taken
        return sets

    def disjoint_sets(self, free: int, wanted: Sequence[tuple[int, str]]) -> list[int] | None:
        """Return disjoint sets of free GPUs for sizes and required link levels; None if there are none.

        Exact: all sets with the lowest GPU are tried, and to leave it out. Raises SearchLimitError.
        """
        kinds = sorted(set(wanted), key=lambda kind: (-kind[0], kind[1]))
        options = [np.flatnonzero((self.sizes == count) & (self.missing_levels(link) == 0)) for count, link in kinds]
        failed: set[tuple[int, tuple[int, ...]]] = set()

        def search(free: int, left: tuple[int, ...]) -> list[tuple[int, int]] | None:
            if not any(left):
                return []
            spare = free.bit_count() - sum(number * kinds[kind][0] for kind, number in enumerate(left))
            if spare < 0 or (free, left) in failed:
                return None
            if len(failed) >= MAX_SET_STATES:
                raise SearchLimitError
            lowest = free & -free
            for kind, number in enumerate(left):
                if not number:
                    continue
                sets = options[kind][(options[kind] & lowest != 0) & (options[kind] & ~free == 0)]
                for chosen in sets.tolist():
                    rest = search(free ^ chosen, (*left[:kind], number - 1, *left[kind + 1 :]))
                    if rest is not None:
                        return [(kind, chosen), *rest]
            rest = search(free ^ lowest, left) if spare else None
            if rest is None:
                failed.add((free, left))
            return rest

        found = search(free, tuple(sum(each == kind for each in wanted) for kind in kinds))
        if found is None:
            return None
        by_kind = [[chosen for kind, chosen in found if kind == index] for index in range(len(kinds))]
        return [by_kind[kinds.index(each)].pop(0) for each in wanted]

    @cached_property
    def _has_pairs(self) -> bool:
        nvlink = self.topology.machine.nvlink
        return nvlink is not None and bool(nvlink.pairs)

    def level(self, mask: int) -> Level:
        """Return the link level of a set."""
        return LEVELS[int(self.levels[mask])]


class KubeletChosenLinks(Links):
    """Tables of a machine whose GPUs the kubelet chooses: each set has what the worst set of its size has."""

    def _worst_by_size(self, values: npt.NDArray[np.integer], worst: np.ufunc) -> Ints:
        result = values.astype(np.int64)
        for size in range(self.count + 1):
            result[self.sizes == size] = worst.reduce(values[self.sizes == size])
        return result

    @cached_property
    def slowest(self) -> Ints:
        """Speed of the slowest pair of the worst set of each size."""
        return self._worst_by_size(super().slowest, np.minimum)

    @cached_property
    def total(self) -> Ints:
        """Smallest sum of the speeds of all pairs, by size."""
        return self._worst_by_size(super().total, np.minimum)

    @cached_property
    def levels(self) -> npt.NDArray[np.int8]:
        """Worst link level by size."""
        return self._worst_by_size(super().levels, np.maximum).astype(np.int8)

    @cached_property
    def sockets(self) -> Ints:
        """Largest number of sockets by size."""
        return self._worst_by_size(super().sockets, np.maximum)

    @cached_property
    def nic_distance(self) -> Ints:
        """Largest distance from RDMA NICs by size."""
        return self._worst_by_size(super().nic_distance, np.maximum)


def _max_level(wanted: str) -> int:
    return len(LEVELS) - 1 if wanted == "any" else LEVELS.index(wanted)


def _with_least(sets: Ints, keys: Ints) -> Ints:
    return sets if sets.size < 2 else sets[keys == keys.min()]


@lru_cache(maxsize=256)
def links(machine: Machine) -> Links:
    """Return the tables of a machine type, cached."""
    return (KubeletChosenLinks if machine.kubelet_chooses else Links)(topology_of(machine))


@lru_cache(maxsize=32)
def unknown_links(gpus: int) -> Links:
    """Return the tables of a machine with unknown links: all pairs are equal, and none is close."""
    apart = tuple(PcieSwitch(gpu, (gpu,)) for gpu in range(gpus))
    return links(Machine("", gpus, 0, 0.0, 0, apart, None, (), 1.0, 1.0, 1.0))
