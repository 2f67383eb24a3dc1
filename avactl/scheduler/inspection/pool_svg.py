"""Draw pools as SVG: machines by rack, their GPUs by socket and PCIe switch, and the jobs on them. Deterministic.

A machine of a pool without GPUs is a bar of its cores.

Each team has a colour, each block is a job's GPUs on a switch, and free GPUs are white. With hundreds of machines the
drawing is small, and names are in tooltips.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Set
from typing import NamedTuple

import numpy as np

from avactl.base.svg import Svg
from avactl.hardware.machine import Machine
from avactl.hardware.placement.allocation import MILLI_PER_GPU, Booking
from avactl.hardware.topology import gpus_in_mask
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.inspection import partial_gpus, usage
from avactl.scheduler.objects.node_info import NodeInfo
from avactl.scheduler.objects.pod_info import PodInfo

_MARGIN = 24.0
_WIDTH = 1500.0
_PALETTE = (
    "#2563eb",
    "#d97706",
    "#059669",
    "#9333ea",
    "#dc2626",
    "#0891b2",
    "#65a30d",
    "#be185d",
    "#4f46e5",
    "#a16207",
    "#0f766e",
    "#7c3aed",
)
_SHADES = (1.0, 0.68, 0.84)
"""Opacities, so that jobs of one team are told apart."""
_INK, _SOFT, _LINE, _FREE, _GONE = "#1f2933", "#697586", "#c3cad4", "#ffffff", "#e4e7eb"
_STATES = {"cordoned": "#d97706", "not ready": "#dc2626", "fault": "#be123c", "not as its type": "#9333ea"}
"""Colour of the frames of machines that something is the matter with."""


class _PoolStyle(NamedTuple):
    """Sizes in pixels."""

    cell: float
    switch: float
    """Between two switches."""
    socket: float
    """Between two sockets."""
    pad: float
    name: float
    """Height of the line with the machine's name; 0: in the tooltip only."""
    gap: float


_LARGE = _PoolStyle(18, 4, 10, 6, 15, 10)
_SMALL = _PoolStyle(8, 1.5, 4, 3, 0, 4)
_MAX_LARGE = 160
"""Machines up to which they are drawn large."""
_BAR_CELLS = 8
"""Width of the bar of cores, in GPUs."""


class _DrawnMachine(NamedTuple):
    name: str
    slot: int
    info: NodeInfo
    rack: str
    state: str
    sockets: tuple[tuple[tuple[int, ...], ...], ...]
    """GPUs by switch by socket."""
    cores: int = 0
    """CPU milli for pods; 0 for a machine with GPUs, whose cores are not drawn."""


def draw(cache: ClusterCache, pools: Iterable[str] | None = None) -> str:
    """Return the SVG of these pools (None: all pools, and other machines with GPUs).

    The cluster cache must not be stale.
    """
    wanted = None if pools is None else set(pools)
    groups: dict[tuple[str, str], list[_DrawnMachine]] = {}
    for name, info in cache.tables.nodes.items():
        pool = cache.tables.pool_of(info)
        shown = pool.name if pool else ""
        slot = cache.tables.state.slots.get(name)
        if slot is None or (wanted is not None and shown not in wanted):
            continue
        if pool is None and not cache.tables.state.gpu_count[slot]:
            continue
        groups.setdefault((shown, cache.tables.model_of(name)), []).append(_machine(cache, info, slot))
    count = sum(len(group) for group in groups.values())
    cpu_slots = {each.slot for group in groups.values() for each in group if each.cores}
    return _Picture(cache, _LARGE if count <= _MAX_LARGE else _SMALL, cpu_slots).draw(groups)


def _machine(cache: ClusterCache, info: NodeInfo, slot: int) -> _DrawnMachine:
    levels = [value for level in cache.tables.levels if (value := info.labels.get(level))]
    state = usage.away(info) or ("fault" if info.faults else "not as its type" if info.differs else "")
    pool = cache.tables.pool_of(info)
    if not cache.tables.state.gpu_count[slot] and pool is not None and not pool.machine.gpus:
        cores = max(1, info.allocatable.get("cpu", 0))
        return _DrawnMachine(info.name, slot, info, " / ".join(levels), state, (), cores)
    places = _places(cache, slot, pool.machine if pool else None)
    return _DrawnMachine(info.name, slot, info, " / ".join(levels), state, places)


def _places(cache: ClusterCache, slot: int, machine: Machine | None) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """GPUs by socket and switch; of a machine that nobody describes all stand together."""
    present = np.flatnonzero(cache.tables.state.present_gpus(np.array([slot]))[0]).tolist()
    if machine is None or machine.gpus < len(present):
        return ((tuple(present),),)
    sockets: dict[int, list[tuple[int, ...]]] = {}
    for switch in machine.switches:
        gpus = tuple(gpu for gpu in switch.gpus if gpu in present)
        if gpus:
            sockets.setdefault(switch.socket, []).append(gpus)
    return tuple(tuple(sorted(switches)) for _, switches in sorted(sockets.items()))


class _Holder(NamedTuple):
    """Holder of a part of a GPU."""

    team: str
    job: str
    pod: str


class _Picture:
    def __init__(self, cache: ClusterCache, style: _PoolStyle, cpu_slots: Set[int]) -> None:
        self._cache, self._style, self._svg = cache, style, Svg()
        self._pods: dict[Hashable, PodInfo] = {
            pod.uid: pod for group in cache.tables.pods_by_node.values() for pod in group.values()
        }
        for claim in cache.dra.claims.values():
            user = cache.tables.pods.get(f"{claim.namespace}/{claim.reserved[0]['name']}") if claim.reserved else None
            if user is not None:
                self._pods[claim.uid] = user
        self._in_parts = partial_gpus.by_node(cache)
        self._teams: dict[str, float] = {}
        jobs: set[tuple[str, str]] = set()
        for claim, part in (each for held in self._in_parts.values() for each in held):
            holder = self._holder(claim.uid)
            self._teams[holder.team] = self._teams.get(holder.team, 0.0) + part.milli / MILLI_PER_GPU
            jobs.add((holder.team, holder.job))
        for key, booking in cache.tables.state.bookings.items():
            if booking.gpus:
                holder = self._holder(key)
                amount = booking.gpus.bit_count() * booking.milli / MILLI_PER_GPU
                self._teams[holder.team] = self._teams.get(holder.team, 0.0) + amount
                jobs.add((holder.team, holder.job))
            elif booking.node in cpu_slots:
                holder = self._holder(key)
                self._teams.setdefault(holder.team, 0.0)
                jobs.add((holder.team, holder.job))
        self._colours = {team: _PALETTE[i % len(_PALETTE)] for i, team in enumerate(sorted(self._teams))}
        self._shades = _shades(jobs)

    def _holder(self, key: Hashable) -> _Holder:
        pod = self._pods.get(key)
        if pod is None:
            return _Holder("(unknown)", "(unknown)", str(key))
        return _Holder(self._cache.quotas.team(pod), f"{pod.namespace}/{usage.job_of(pod)[0]}", pod.key)

    def draw(self, groups: dict[tuple[str, str], list[_DrawnMachine]]) -> str:
        svg, y = self._svg, _MARGIN
        shown: dict[str, float] = {}
        for (pool, model), machines in sorted(groups.items(), key=lambda each: (not each[0][0], each[0])):
            y = self._pool(pool, model, machines, y, shown)
        if not groups:
            svg.text(_MARGIN, y + 14, "no machines of pools, and none with GPUs", size=14, fill=_SOFT)
            y += 28
        y = self._legend(y, shown, {each.state for group in groups.values() for each in group if each.state})
        names = ", ".join(pool or "(no pool)" for pool, _ in sorted(groups))
        return svg.document(_WIDTH, y + _MARGIN, f"Allocation: {names or 'no pools'}")

    def _pool(self, pool: str, model: str, machines: list[_DrawnMachine], y: float, shown: dict[str, float]) -> float:
        state, svg, style = self._cache.tables.state, self._svg, self._style
        total = sum(int(state.gpu_count[each.slot]) for each in machines)
        broken = {each.name: sum(part.milli for _, part in self._in_parts.get(each.name, ())) for each in machines}
        used = total - sum(int(state.gpu_total[each.slot]) - broken[each.name] for each in machines) / MILLI_PER_GPU
        whole = sum(
            int(state.gpu_total[each.slot]) == MILLI_PER_GPU * int(state.gpu_count[each.slot])
            and not broken[each.name]
            and not usage.away(each.info)
            for each in machines
        )
        svg.text(_MARGIN, y + 16, pool or "(no pool)", size=20, bold=True)
        size = f"{len(machines)} machine{'' if len(machines) == 1 else 's'}"
        if total:
            about = f"{size} · {used:.5g} of {total} {model} in use · {whole} entirely free"
        else:
            cores = sum(each.cores for each in machines)
            held = sum(booking.amounts[0] for each in machines for _, booking in self._holders(each))
            about = f"{size} · {held / 1000:.5g} of {cores / 1000:.5g} CPU cores in use"
        svg.text(_MARGIN + 16 + 12 * len(pool or "(no pool)"), y + 16, about, size=13, fill=_SOFT)
        y += 34
        racks: dict[str, list[_DrawnMachine]] = {}
        for machine in machines:
            racks.setdefault(machine.rack, []).append(machine)
        x, height = _MARGIN, 0.0
        for rack, group in sorted(racks.items(), key=lambda each: (not each[0], natural(each[0]))):
            width = max(_size(each, style)[0] for each in group)
            columns = max(1, int((_WIDTH - 2 * _MARGIN + style.gap) // (width + style.gap)))
            # A rack is a block about as wide as high, so that blocks of several racks stand side by side.
            columns = min(columns, len(group), max(2, round((len(group) / 2) ** 0.5)) if rack else columns)
            across = max(columns * (width + style.gap) - style.gap, 7.0 * len(rack) if rack else 0.0)
            if x > _MARGIN and x + across > _WIDTH - _MARGIN:
                x, y, height = _MARGIN, y + height + 14, 0.0
            deep = self._rack(rack, group, columns, width, x, y, shown)
            x, height = x + across + 22, max(height, deep)
        return y + height + 26

    def _rack(
        self,
        rack: str,
        machines: list[_DrawnMachine],
        columns: int,
        width: float,
        x: float,
        y: float,
        shown: dict[str, float],
    ) -> float:
        """Draw one rack; returns its height."""
        style, top = self._style, 0.0
        if rack:
            self._svg.text(x, y + 11, rack, size=12, bold=True, fill=_SOFT)
            top = 18.0
        high = max(_size(each, style)[1] for each in machines)
        for number, machine in enumerate(sorted(machines, key=lambda each: natural(each.name))):
            row, column = divmod(number, columns)
            self._machine(machine, x + column * (width + style.gap), y + top + row * (high + style.gap), shown)
        rows = -(-len(machines) // columns)
        return top + rows * (high + style.gap) - style.gap

    def _machine(self, machine: _DrawnMachine, x: float, y: float, shown: dict[str, float]) -> None:
        style, svg = self._style, self._svg
        width, height = _size(machine, style)
        note = f": {machine.state}" if machine.state else ""
        svg.rect(
            x,
            y,
            width,
            height,
            fill=_GONE if machine.state in ("cordoned", "not ready") else "#ffffff",
            stroke=_STATES.get(machine.state, _LINE),
            radius=3,
            title=f"{machine.name}{note}",
        )
        if style.name:
            room = int(width / 6.2)
            name = machine.name if len(machine.name) <= room else f"{machine.name[: room - 1]}…"
            svg.text(
                x + style.pad, y + style.name - 2, name, size=10.5, mono=True, fill=_STATES.get(machine.state, _INK)
            )
        at, top = x + style.pad, y + style.name + style.pad
        if machine.cores:
            self._draw_cores(machine, at, top, width - 2 * style.pad, shown)
            return
        held = self._parts(machine)
        for socket in machine.sockets:
            for switch in socket:
                self._switch(machine, switch, held, at, top, shown)
                at += len(switch) * style.cell + style.switch
            at += style.socket - style.switch

    def _holders(self, machine: _DrawnMachine) -> list[tuple[_Holder, Booking]]:
        """Return the bookings of a machine with their holders, sorted."""
        state = self._cache.tables.state
        return sorted(
            ((self._holder(key), state.bookings[key]) for key in state.held[machine.slot]), key=lambda each: each[0]
        )

    def _draw_cores(self, machine: _DrawnMachine, x: float, y: float, width: float, shown: dict[str, float]) -> None:
        """Draw the cores of a machine without GPUs, with a block for each pod that requests some."""
        style, svg = self._style, self._svg
        cores = f"{machine.cores / 1000:g} CPU cores"
        svg.rect(x, y, width, style.cell, fill=_FREE, stroke=_LINE, title=f"{machine.name}: {cores}")
        for holder, booking in self._holders(machine):
            if not booking.amounts[0]:
                continue
            wide = width * booking.amounts[0] / machine.cores
            svg.rect(
                x,
                y,
                wide,
                style.cell,
                fill=self._colours[holder.team],
                stroke="#ffffff",
                radius=1 if style.name else 0,
                opacity=self._shades[holder.team, holder.job],
                title=f"{machine.name}, {booking.amounts[0] / 1000:g} of {cores}: {holder.job} of {holder.team} "
                f"(pod {holder.pod})",
            )
            shown.setdefault(holder.team, 0.0)
            x += wide

    def _parts(self, machine: _DrawnMachine) -> dict[int, list[tuple[_Holder, int]]]:
        """Return holders and their milli-GPUs for each GPU."""
        found: dict[int, list[tuple[_Holder, int]]] = {}
        for holder, booking in self._holders(machine):
            for gpu in gpus_in_mask(booking.gpus):
                found.setdefault(gpu, []).append((holder, booking.milli))
        for claim, part in self._in_parts.get(machine.name, ()):
            found.setdefault(part.gpu, []).append((self._holder(claim.uid), part.milli))
        return found

    def _switch(
        self,
        machine: _DrawnMachine,
        switch: tuple[int, ...],
        held: dict[int, list[tuple[_Holder, int]]],
        x: float,
        y: float,
        shown: dict[str, float],
    ) -> None:
        """GPUs of one switch. Neighbours of one pod are one block."""
        style, svg, cell = self._style, self._svg, self._style.cell
        svg.rect(x, y, len(switch) * cell, cell, fill=_FREE, stroke=_LINE, title=f"{machine.name} {_gpus(switch)}")
        faulty = int(self._cache.tables.state.faulty[machine.slot])
        for place, gpu in enumerate(switch):
            if faulty >> gpu & 1 and gpu not in held:
                title = f"{machine.name} GPU {gpu}: faulty"
                svg.rect(x + place * cell, y, cell, cell, fill=_GONE, stroke=_LINE, title=title)
        start = 0
        while start < len(switch):
            now = held.get(switch[start], [])
            end = start + 1
            while end < len(switch) and now and held.get(switch[end]) == now and now[0][1] == MILLI_PER_GPU:
                end += 1
            bottom = y + cell
            for holder, milli in now:
                high = cell * milli / MILLI_PER_GPU
                bottom -= high
                title = f"{machine.name} {_gpus(switch[start:end])}: {holder.job} of {holder.team}"
                title += f", {milli / MILLI_PER_GPU:g} of it" if milli < MILLI_PER_GPU else ""
                title += f" (pod {holder.pod})"
                svg.rect(
                    x + start * cell,
                    bottom,
                    (end - start) * cell,
                    high,
                    fill=self._colours[holder.team],
                    stroke="#ffffff",
                    radius=1 if style.name else 0,
                    opacity=self._shades[holder.team, holder.job],
                    title=title,
                )
                shown[holder.team] = shown.get(holder.team, 0.0) + (end - start) * milli / MILLI_PER_GPU
            start = end

    def _legend(self, y: float, shown: dict[str, float], states: set[str]) -> float:
        svg, x = self._svg, _MARGIN
        entries = [
            (self._colours[team], "", f"{team} {shown[team]:.4g}" if shown[team] else team) for team in sorted(shown)
        ]
        entries.append((_FREE, _LINE, "free"))
        away = ("cordoned", "not ready")
        entries += [(_GONE if state in away else _FREE, _STATES[state], state) for state in sorted(states)]
        for fill, stroke, label in entries:
            width = 34 + 6.8 * len(label)
            if x > _MARGIN and x + width > _WIDTH - _MARGIN:
                x, y = _MARGIN, y + 22
            svg.rect(x, y, 14, 14, fill=fill, stroke=stroke or None, radius=2)
            svg.text(x + 20, y + 11.5, label, size=12)
            x += width
        return y + 34


def _size(machine: _DrawnMachine, style: _PoolStyle) -> tuple[float, float]:
    gpus = _BAR_CELLS if machine.cores else sum(len(switch) for socket in machine.sockets for switch in socket)
    gaps = sum((len(socket) - 1) * style.switch for socket in machine.sockets)
    gaps += max(0, len(machine.sockets) - 1) * style.socket
    width = gpus * style.cell + gaps + 2 * style.pad
    # Room for a name, also on machines with one GPU.
    return max(width, 64.0 if style.name else 0.0), style.name + style.cell + 2 * style.pad


def _shades(jobs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float]:
    shades: dict[tuple[str, str], float] = {}
    counts: dict[str, int] = {}
    for team, job in sorted(jobs):
        number = counts.get(team, 0)
        counts[team] = number + 1
        shades[team, job] = _SHADES[number % len(_SHADES)]
    return shades


def _gpus(gpus: tuple[int, ...]) -> str:
    return f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {', '.join(map(str, gpus))}"


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts `node-9` before `node-10`."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]
