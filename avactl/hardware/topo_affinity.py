"""The affinity columns of `nvidia-smi topo -m`: CPUs and NUMA nodes, possibly with empty cells and lost tabs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from avactl.hardware.topo_text import AFFINITIES, Token, is_tail


@dataclass(frozen=True, slots=True)
class GpuAffinity:
    """Affinity of one GPU; None if a column is missing, empty or N/A."""

    cpus: str | None = None
    numa: str | None = None
    memory_node: str | None = None
    """NUMA node of the GPU's own memory (Grace)."""


_MAX_CPUS = 2048
"""Upper bound on hardware threads of a machine."""


def affinity(columns: Sequence[str], tail: Sequence[Token], glued: bool) -> GpuAffinity | None:
    """Parse the words after the links; None if they are ambiguous. Cells may be empty.

    `columns` are the names in the header (empty: the header lost them); `glued` is True if the first word follows the
    last link without a separator.
    """
    parts: list[str] = []
    for token in tail:
        part = token.text
        if parts and (parts[-1].endswith((",", "-")) or part.startswith((",", "-"))):
            parts[-1] += part
        elif part.endswith("N/A") and part != "N/A":
            parts += [part.removesuffix("N/A"), "N/A"]
        elif is_tail(token):
            parts.append(part)
    names = list(columns) or list(AFFINITIES)
    if len(parts) > len(names):
        # The terminal broke a word into two.
        return None
    if len(parts) == len(names):
        values = dict(zip(names, parts, strict=True))
    else:
        numbers = [part for part in parts if part != "N/A"]
        if {"CPU", "NUMA"} <= set(names) and numbers:
            alone = len(numbers) == 1
            if not alone and len(names) == 3 and len(parts) == 2 and not numbers[1].isdecimal():
                # Several nodes next to the GPU occur only together with the node of its own memory, glued to them.
                return None
            first = _unglued(numbers[0], glued and alone, bool(columns))
            if first is None:
                return None
            numbers[:1] = first
        values = _guess_columns(names, numbers)
    found = GpuAffinity(*(None if values.get(name) == "N/A" else values.get(name) for name in AFFINITIES))
    return found if found.cpus is None or _is_list(found.cpus) else None


def contradiction(cpus: Sequence[str | None]) -> tuple[int, int] | None:
    """Return two GPUs with partly overlapping CPUs: those of NUMA nodes are equal or disjoint."""
    sets = [numbers_of(text or "") for text in cpus]
    return next(
        ((i, j) for j in range(len(sets)) for i in range(j) if sets[i] != sets[j] and not sets[i].isdisjoint(sets[j])),
        None,
    )


def numbers_of(text: str) -> frozenset[int]:
    """Return the numbers of a CPU or node list: `0-1,4` → 0, 1, 4; none if it is not a list."""
    ranges = (part.partition("-") for part in text.split(",") if part) if _LIST(text) else ()
    return frozenset(n for low, _, high in ranges for n in range(int(low), min(int(high or low), _MAX_CPUS) + 1))


_NUMBER = "(?:0|[1-9][0-9]*)"
_LIST = re.compile(rf"{_NUMBER}(?:-{_NUMBER})?(?:,{_NUMBER}(?:-{_NUMBER})?)*").fullmatch


def _is_list(cpus: str) -> bool:
    """Return whether a CPU list is well-formed: its numbers increase."""
    numbers = [int(number) for number in re.findall("[0-9]+", cpus)]
    return _LIST(cpus) is not None and numbers == sorted(numbers)


def _unglued(text: str, glued: bool, both: bool) -> list[str] | None:
    """Split CPUs and NUMA node if the tab between them was lost: `0-310` → 0-31, 0; otherwise return them unchanged.

    Decided by the numbers: CPU ranges have equal size, and node 1 starts where node 0 ends. None if ambiguous or
    impossible. `glued`: earlier tabs were lost too; `both`: the header names both columns.
    """
    if not re.fullmatch(r"[0-9,-]*[-,][0-9]+[0-9]", text):
        return [text]
    cpus, node = text[:-1], text[-1]
    index, whole = _index(cpus), _index(text)
    if whole is None and index is not None and (glued or index == int(node)):
        return [cpus, node]
    last = [int(number) for number in re.findall("[0-9]+", cpus.rpartition(",")[2])]
    doubted = last == sorted(last) if whole is None else glued and index is not None
    return None if both and doubted else [text]


def _index(cpus: str) -> int | None:
    """Return the NUMA node that a CPU list implies; None if no machine has such a list."""
    ranges = [part.split("-") for part in cpus.split(",")]
    if len(ranges) > 1 and all(len(part) == 1 and part[0] for part in ranges):
        # CPUs alternate between nodes: 0,2,4,… and 1,3,5,…
        numbers = [int(part[0]) for part in ranges]
        return numbers[0] if len({b - a for a, b in pairwise(numbers)}) == 1 else None
    if not all(len(part) == 2 and all(part) and int(part[1]) < _MAX_CPUS for part in ranges):
        return None
    sizes = {int(high) - int(low) + 1 for low, high in ranges}
    low, size = int(ranges[0][0]), sizes.pop()
    if sizes or size < 1 or (len(ranges) == 1 and (low % size or (size % 2 and size > 1))):
        return None
    return low // size


def _guess_columns(names: Sequence[str], parts: Sequence[str]) -> dict[str, str]:
    """Assign values to columns when some are empty: lists are CPUs, single numbers after them are NUMA nodes."""
    values: dict[str, str] = {}
    for part in parts:
        is_list = "-" in part or "," in part
        for name in names:
            if name not in values and (is_list or name != "CPU" or len(names) == 1):
                values[name] = part
                break
    return values
