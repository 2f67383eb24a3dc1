"""Allocation state as arrays: capacity and free amounts of every node, bookings, and rollback.

A row of the arrays is a node's slot; slots of removed nodes are reused. Every change is O(1) in nodes and is recorded
in a journal of touched slots, from which caches (`avactl.hardware.placement.score`) update only what changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from avactl.hardware.machine import Machine
from avactl.hardware.placement.links import Links, links, unknown_links
from avactl.hardware.topology import gpus_in_mask

MILLI_PER_GPU = 1000
"""Milli-GPUs per GPU."""

MAX_GPUS = 16
"""Maximum number of GPUs per machine."""

ABSENT = -1
"""Free milli of a nonexistent GPU; domain index of a node without a domain."""

_UNKNOWN_MODEL = ""


class BookingError(ValueError):
    """A double booking, or the release of a key without a booking."""


@dataclass(frozen=True, slots=True)
class Node:
    """Capacity and topology of a node."""

    name: str
    amounts: tuple[int, ...]
    """Capacity in the order of `AllocationState.resources`, e.g. CPU milli, memory bytes, pods."""
    gpus: int = 0
    model: str = _UNKNOWN_MODEL
    machine: Machine | None = None
    """Machine type; None if the links are unknown."""
    domains: tuple[Hashable | None, ...] = ()
    """Domain names in the order of `AllocationState.levels`: block, rack, NVLink domain, …; None or omitted: none."""
    faulty: int = 0
    """Mask of GPUs on which nothing more is placed; those who hold them keep them."""


@dataclass(frozen=True, slots=True)
class Booking:
    """Resources of one pod on one node."""

    node: int
    amounts: tuple[int, ...]
    gpus: int = 0
    """GPU mask."""
    milli: int = MILLI_PER_GPU
    """Milli of each GPU."""


@dataclass(slots=True)
class AllocationState:
    """Nodes and bookings. The arrays are read-only for callers; methods change them."""

    resources: tuple[str, ...]
    """Names of the resources. The first must be CPU in milli, which the fallback score uses."""
    levels: tuple[str, ...] = ()
    """Names of the topology levels, widest first."""
    size: int = 0
    """Slots in use or formerly used; the arrays are longer."""
    width: int = 0
    """Largest number of GPUs seen on a node."""
    most_cpu: int = 1
    """Largest first amount seen on a node."""

    names: list[str | None] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)
    kinds: list[Links] = field(default_factory=list)
    bookings: dict[Hashable, Booking] = field(default_factory=dict)
    held: list[set[Hashable]] = field(default_factory=list)
    """Booking keys by slot."""
    allowed: dict[Hashable, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Node sets by key, computed by the caller from selectors, affinity, taints and cordons."""
    preferred: dict[Hashable, npt.NDArray[np.float64]] = field(default_factory=dict)
    """Weight of the met preferences by slot, for the node sets of pods that prefer some of their nodes."""
    domain_names: list[dict[Hashable, int]] = field(default_factory=list)

    capacity: npt.NDArray[np.int64] = field(init=False)
    free: npt.NDArray[np.int64] = field(init=False)
    gpu_free: npt.NDArray[np.int32] = field(init=False)
    gpu_total: npt.NDArray[np.int32] = field(init=False)
    """Sum of the free milli of a node's GPUs."""
    gpu_count: npt.NDArray[np.int32] = field(init=False)
    """Usable GPUs."""
    faulty: npt.NDArray[np.int32] = field(init=False)
    """Mask of GPUs on which nothing more is placed: they are absent, also once their holders have left."""
    whole: npt.NDArray[np.int32] = field(init=False)
    """Mask of entirely free GPUs."""
    model: npt.NDArray[np.int16] = field(init=False)
    kind: npt.NDArray[np.int16] = field(init=False)
    domains: npt.NDArray[np.int32] = field(init=False)
    """Domain by slot and level."""
    model_free: npt.NDArray[np.int64] = field(init=False)
    """Free milli of all GPUs of a model."""

    _journal: list[int] = field(default_factory=list)
    _journal_start: int = 0
    _undo: list[tuple[bool, Hashable, Booking]] = field(default_factory=list)
    _marks: int = 0

    def __post_init__(self) -> None:
        self._allocate_arrays(64)
        self.domain_names = [{} for _ in self.levels]
        self.model_free = np.zeros(0, np.int64)

    def _allocate_arrays(self, slots: int) -> None:
        width = len(self.resources)
        self.capacity = np.full((slots, width), ABSENT, np.int64)
        self.free = np.full((slots, width), ABSENT, np.int64)
        self.gpu_free = np.full((slots, MAX_GPUS), ABSENT, np.int32)
        self.gpu_total = np.zeros(slots, np.int32)
        self.gpu_count = np.zeros(slots, np.int32)
        self.faulty = np.zeros(slots, np.int32)
        self.whole = np.zeros(slots, np.int32)
        self.model = np.zeros(slots, np.int16)
        self.kind = np.zeros(slots, np.int16)
        self.domains = np.full((slots, len(self.levels)), ABSENT, np.int32)

    def _double_slots(self) -> None:
        before = {name: getattr(self, name) for name in _ARRAYS}
        self._allocate_arrays(2 * len(self.free))
        for name, array in before.items():
            getattr(self, name)[: len(array)] = array
        for key, mask in self.allowed.items():
            wider = np.zeros(len(self.free), np.bool_)
            wider[: len(mask)] = mask
            self.allowed[key] = wider
        for key, weights in self.preferred.items():
            self.preferred[key] = np.concatenate([weights, np.zeros(len(self.free) - len(weights))])

    # -- nodes ------------------------------------------------------------------------------------------------------

    def put_node(self, node: Node) -> int:
        """Add a node, or update its capacity; bookings stay. Return its slot.

        If the capacity falls below the bookings, free amounts become negative and nothing more is placed. Raises
        BookingError if a removed GPU is booked.
        """
        if len(node.amounts) != len(self.resources):
            raise ValueError(f"{node.name}: {len(node.amounts)} amounts for {len(self.resources)} resources")
        if not 0 <= node.gpus <= MAX_GPUS:
            raise ValueError(f"{node.name}: {node.gpus} GPUs; at most {MAX_GPUS}")
        slot = self.slots.get(node.name)
        present = (1 << node.gpus) - 1
        usable = present & ~node.faulty
        holders = [self.bookings[key] for key in self.held[slot]] if slot is not None else []
        gone = [booking for booking in holders if booking.gpus & ~present]
        if gone:
            raise BookingError(f"{node.name}: GPUs {gpus_in_mask(gone[0].gpus & ~present)} are booked")
        if slot is None:
            slot = self._add_slot(node.name)
        else:
            self.model_free[self.model[slot]] -= self.gpu_total[slot]
        self.width, self.most_cpu = max(self.width, node.gpus), max(self.most_cpu, node.amounts[0])
        self.capacity[slot] = self.free[slot] = node.amounts
        self.gpu_free[slot] = [MILLI_PER_GPU if usable >> gpu & 1 else ABSENT for gpu in range(MAX_GPUS)]
        self.gpu_count[slot] = usable.bit_count()
        self.faulty[slot] = present & node.faulty
        self.gpu_total[slot] = MILLI_PER_GPU * usable.bit_count()
        self.whole[slot] = usable
        self.model[slot] = self._model_index(node.model)
        self.kind[slot] = self._kind_index(links(node.machine) if node.machine else unknown_links(node.gpus))
        self.model_free[self.model[slot]] += self.gpu_total[slot]
        for level, known in enumerate(self.domain_names):
            name = node.domains[level] if level < len(node.domains) else None
            self.domains[slot, level] = ABSENT if name is None else known.setdefault(name, len(known))
        for booking in holders:
            self._change_free(booking, 1)
        self._record_touched(slot)
        return slot

    def drop_node(self, name: str) -> list[Hashable]:
        """Remove a node with its bookings; return their keys. Raises KeyError for an unknown node."""
        slot = self.slots[name]
        keys = sorted(self.held[slot], key=str)
        for key in keys:
            self.release(key)
        del self.slots[name]
        self.names[slot] = None
        self.model_free[self.model[slot]] -= self.gpu_total[slot]
        self.capacity[slot] = self.free[slot] = ABSENT
        self.gpu_free[slot] = ABSENT
        self.gpu_count[slot] = self.gpu_total[slot] = self.whole[slot] = self.faulty[slot] = 0
        self.domains[slot] = ABSENT
        for mask in self.allowed.values():
            mask[slot] = False
        self._record_touched(slot)
        return keys

    def _add_slot(self, name: str) -> int:
        if len(self.slots) < self.size:
            slot = self.names.index(None)
            self.names[slot] = name
        else:
            if self.size == len(self.free):
                self._double_slots()
            slot = self.size
            self.size += 1
            self.names.append(name)
            self.held.append(set())
        self.slots[name] = slot
        return slot

    def _model_index(self, name: str) -> int:
        if name not in self.models:
            self.models.append(name)
            self.model_free = np.append(self.model_free, 0)
        return self.models.index(name)

    def _kind_index(self, kind: Links) -> int:
        if kind not in self.kinds:
            self.kinds.append(kind)
        return self.kinds.index(kind)

    def allow(self, key: Hashable, nodes: Mapping[int, bool] | Iterable[int]) -> None:
        """Set a node set: either all its slots, or changes as `{slot: included}`."""
        before = self.allowed.get(key)
        if isinstance(nodes, Mapping):
            now = np.zeros(len(self.free), np.bool_) if before is None else before.copy()
            now[list(nodes)] = list(nodes.values())
        else:
            now = np.zeros(len(self.free), np.bool_)
            now[list(nodes)] = True
        self.allowed[key] = now
        if before is not None:
            for slot in np.flatnonzero(before != now).tolist():
                self._record_touched(slot)

    # -- bookings ---------------------------------------------------------------------------------------------------

    def book(self, key: Hashable, booking: Booking, forced: bool = False) -> None:
        """Book resources for a pod. Raises BookingError, without any change, if they are not free.

        `forced` is for running pods: amounts may become negative, as with static pods, and GPUs may be faulty. A usable
        GPU is never overbooked.
        """
        slot = booking.node
        if key in self.bookings:
            raise BookingError(f"{key} is already booked on {self.names[self.bookings[key].node]}")
        if not 0 <= slot < self.size or self.names[slot] is None:
            raise BookingError(f"{key}: no node in slot {slot}")
        if not forced:
            free = self.free[slot].tolist()
            short = [i for i, amount in enumerate(booking.amounts) if amount and amount > free[i]]
            if short:
                raise BookingError(f"{key}: {self.names[slot]} has too little {self.resources[short[0]]}")
        if not 0 < booking.milli <= MILLI_PER_GPU:
            raise BookingError(f"{key}: {booking.milli} milli of a GPU")
        if booking.gpus:
            row = self.gpu_free[slot].tolist()
            checked = booking.gpus & ~int(self.faulty[slot]) if forced else booking.gpus
            for gpu in gpus_in_mask(checked):
                if gpu >= MAX_GPUS or row[gpu] < booking.milli:
                    less = f"has less than {booking.milli} milli free"
                    raise BookingError(f"{key}: GPU {gpu} of {self.names[slot]} {less}")
        self._change_free(booking, 1)
        self.bookings[key] = booking
        self.held[slot].add(key)
        self._record_touched(slot)
        if self._marks:
            self._undo.append((True, key, booking))

    def release(self, key: Hashable) -> Booking:
        """Release a pod's booking. Raises BookingError if it has none."""
        booking = self.bookings.pop(key, None)
        if booking is None:
            raise BookingError(f"{key} has no booking")
        self.held[booking.node].remove(key)
        self._change_free(booking, -1)
        self._record_touched(booking.node)
        if self._marks:
            self._undo.append((False, key, booking))
        return booking

    def _change_free(self, booking: Booking, sign: int) -> None:
        slot = booking.node
        row = self.free[slot]
        for index, amount in enumerate(booking.amounts):
            if amount:
                row[index] -= sign * amount
        usable = booking.gpus & ~int(self.faulty[slot])
        if not usable:
            return
        change, gpus = sign * booking.milli, self.gpu_free[slot]
        whole = int(self.whole[slot])
        for gpu in gpus_in_mask(usable):
            left = int(gpus[gpu]) - change
            gpus[gpu] = left
            whole = whole | 1 << gpu if left == MILLI_PER_GPU else whole & ~(1 << gpu)
        self.whole[slot] = whole
        milli = change * usable.bit_count()
        self.gpu_total[slot] -= milli
        self.model_free[self.model[slot]] -= milli

    # -- transactions -----------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """Start a transaction. Every mark ends with `rollback` or `keep`, innermost first."""
        self._marks += 1
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Undo bookings and releases since the mark."""
        self._marks -= 1
        undo, self._undo = self._undo[mark:], self._undo[:mark]
        marks, self._marks = self._marks, 0
        for booked, key, booking in reversed(undo):
            if booked:
                self.release(key)
            else:
                self.book(key, booking, forced=True)
        self._marks = marks

    def keep(self, mark: int) -> None:
        """Keep the changes since the mark; an outer mark can still undo them."""
        self._marks -= 1
        if not self._marks:
            del self._undo[mark:]

    def copy(self) -> AllocationState:
        """Return an independent copy."""
        other = AllocationState(self.resources, self.levels, self.size, self.width, self.most_cpu)
        for name in (*_ARRAYS, "model_free"):
            setattr(other, name, getattr(self, name).copy())
        other.names, other.slots = list(self.names), dict(self.slots)
        other.models, other.kinds = list(self.models), list(self.kinds)
        other.domain_names = [dict(known) for known in self.domain_names]
        other.bookings, other.held = dict(self.bookings), [set(keys) for keys in self.held]
        other.allowed = {key: mask.copy() for key, mask in self.allowed.items()}
        other.preferred = {key: weights.copy() for key, weights in self.preferred.items()}
        return other

    def emptied(self) -> AllocationState:
        """Return a copy without bookings and with repaired GPUs."""
        other = self.copy()
        other.bookings, other.held = {}, [set() for _ in self.held]
        other.free = other.capacity.copy()
        present = self.present_gpus(slice(None))
        other.faulty[:] = 0
        other.gpu_count[:] = present.sum(1)
        other.gpu_free[present] = MILLI_PER_GPU
        other.gpu_total[:] = MILLI_PER_GPU * other.gpu_count
        other.whole[:] = (present << np.arange(MAX_GPUS)).sum(1)
        other.model_free[:] = np.bincount(other.model, other.gpu_total, len(other.model_free)).astype(np.int64)
        return other

    def present_gpus(self, slots: slice | npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Return the GPUs of nodes by slot, the faulty ones included."""
        faulty = (self.faulty[slots, None] >> np.arange(MAX_GPUS)) & 1 == 1
        result: npt.NDArray[np.bool_] = (self.gpu_free[slots] != ABSENT) | faulty
        return result

    # -- for caches -------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Return the end of the journal."""
        return self._journal_start + len(self._journal)

    def all_gpus_free(self) -> npt.NDArray[np.bool_]:
        """Return the nodes whose usable GPUs are all free, by slot."""
        result: npt.NDArray[np.bool_] = (self.gpu_count > 0) & (self.gpu_total == MILLI_PER_GPU * self.gpu_count)
        return result

    def touched(self, since: int) -> Sequence[int] | None:
        """Return the distinct slots touched since a journal position; None if the journal no longer covers it."""
        if since < self._journal_start or self.position - since > self.size:
            return None
        return list(set(self._journal[since - self._journal_start :]))

    def _record_touched(self, slot: int) -> None:
        self._journal.append(slot)
        if len(self._journal) > 4 * self.size + 1024:
            gone = len(self._journal) // 2
            del self._journal[:gone]
            self._journal_start += gone


_ARRAYS = ("capacity", "free", "gpu_free", "gpu_total", "gpu_count", "faulty", "whole", "model", "kind", "domains")
