"""Read the tables of `rocm-smi --showtopo` and `amd-smi topology` into a matrix.

Meaning of the tables (ROCm's documentation of `amd-smi topology`, and amdkfd's `kfd_topology`):

- Link type: XGMI is Infinity Fabric, PCIE the PCIe path.
- Weight: 15 for one link of Infinity Fabric, and 15 more for each further one on the way, so a larger weight is a path
  through other GPUs. Hops do not tell: they are 1 for every path over Infinity Fabric.
- Hops over PCIe: 2 within a NUMA node, 3 between NUMA nodes. Switches are not visible.

The number of links between two GPUs is in none of the tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from avactl.diagnostics import Diagnostic, Note, Span
from avactl.hardware.machine import NvlinkPair
from avactl.hardware.topo_affinity import GpuAffinity
from avactl.hardware.topo_matrix import MAX_GPUS, Matrix
from avactl.hardware.topo_text import Token

AGAIN = "run `rocm-smi --showtopo` again and copy its whole output"
_TABLE = re.compile(
    r"=+ (?P<rocm>Weight|Hops|Link Type) between two GPUs =+|(?P<amd>WEIGHT|HOPS|LINK TYPE) TABLE:", re.IGNORECASE
).search
_ADDRESS = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_NAME = re.compile(rf"GPU[0-9]{{1,3}}|{_ADDRESS}").fullmatch
_NUMA = re.compile(r"GPU ?\[?([0-9]{1,3})\]?\s*: *\(Topology\) Numa Node: *(-?[0-9]{1,4})").search
_WORDS, _SELF = ("XGMI", "PCIE"), ("0", "SELF", "N/A", "X")
_HOPS = {"2": "NODE", "3": "SYS"}
_WORD = re.compile(r"\S+").finditer
_LONGEST = 2000
"""Longest line of a table, in characters."""


_Cells = Mapping[tuple[int, int], Token]


class _Table(NamedTuple):
    """One table: names of the columns, and the rows."""

    title: Token
    names: list[Token]
    rows: list[list[Token]]


def read(content: str, file: str) -> Matrix | list[Diagnostic] | None:
    """Parse the first tables of a text; return the problems if they are invalid, and None if there are none."""
    tables: dict[str, _Table] = {}
    others = 0
    for kind, table in _tables(content):
        others += kind == "link type" and kind in tables
        tables.setdefault(kind, table)
    if not tables:
        return None
    types = tables.get("link type")
    if types is None:
        title = next(iter(tables.values())).title
        return [_damaged("the table of link types is missing", title, file)]
    names = [token.text for token in types.names]
    if len(names) > MAX_GPUS:
        message = f"{len(names)} GPUs; a machine type has at most {MAX_GPUS}"
        return [Diagnostic("topo-unsupported", message, types.names[MAX_GPUS].span(file), hint="split the machine")]
    cells: dict[str, _Cells] = {}
    for kind, table in tables.items():
        found = _cells(kind, table, names, file)
        if isinstance(found, Diagnostic):
            return [found]
        cells[kind] = found
    return _matrix(names, cells, _numa_nodes(content), types.title.span(file), others)


def _tables(content: str) -> Iterator[tuple[str, _Table]]:
    """Yield the tables with their kind: `weight`, `hops`, `link type`."""
    lines = content.split("\n")
    for number, line in enumerate(lines):
        titled = _TABLE(line) if len(line) <= _LONGEST else None
        if titled is None:
            continue
        kind = titled["rocm"] or titled["amd"]
        table = _Table(Token(kind, number + 1, titled.start(titled.lastgroup or 0) + 1), [], [])
        for at in range(number + 1, min(len(lines), number + 3 + 4 * MAX_GPUS)):
            words = [] if len(lines[at]) > _LONGEST else [Token(m[0], at + 1, m.start() + 1) for m in _WORD(lines[at])]
            if not words and not table.names:
                continue
            if not words or not _NAME(words[0].text):
                break
            if table.names:
                table.rows.append(words)
            else:
                table.names.extend(words)
        yield kind.lower(), table


def _damaged(message: str, token: Token, file: str, *notes: Note) -> Diagnostic:
    return Diagnostic("topo-damaged", message, token.span(file), hint=AGAIN, notes=notes)


def _cells(kind: str, table: _Table, names: list[str], file: str) -> _Cells | Diagnostic:
    """Return the cells of a table by pair of GPUs, or its first problem."""
    given = [token.text for token in table.names]
    if not given or len({*given}) < len(given) or not all(map(_NAME, given)):
        return _damaged(f"the columns of table `{kind}` are not the names of GPUs", table.title, file)
    if given != names:
        return _damaged(f"table `{kind}` has other GPUs than the table of link types", table.names[0], file)
    if [row[0].text for row in table.rows] != names:
        return _damaged(f"table `{kind}` has other rows than columns", table.title, file)
    found: dict[tuple[int, int], Token] = {}
    for first, row in enumerate(table.rows):
        if len(row) != len(names) + 1:
            return _damaged(f"row {names[first]} has {len(row) - 1} cells, for {len(names)} columns", row[-1], file)
        for second, cell in enumerate(row[1:]):
            good = (
                cell.text in _SELF
                if first == second
                else cell.text in _WORDS
                if kind == "link type"
                else cell.text.isdecimal() and len(cell.text) < 6
            )
            if not good:
                return _damaged(f"`{cell.text}` between {names[first]} and {names[second]} is no {kind}", cell, file)
            other = found.get((second, first))
            if other is not None and first != second and other.text != cell.text:
                note = Note(other.span(file), f"{other.text} here")
                message = f"not symmetric: {names[first]} to {names[second]} is {cell.text}"
                return _damaged(message, cell, file, note)
            found[first, second] = cell
    return found


def _numa_nodes(content: str) -> dict[int, str]:
    """Return the NUMA node by number of the GPU; a GPU without one, such as in a virtual machine, has none."""
    found: dict[int, str] = {}
    for line in content.split("\n"):
        named = _NUMA(line) if len(line) <= _LONGEST else None
        if named and not named[2].startswith("-"):
            found.setdefault(int(named[1]), named[2])
    return found


def _matrix(names: list[str], cells: Mapping[str, _Cells], numa: Mapping[int, str], span: Span, more: int) -> Matrix:
    weights, hops = cells.get("weight", {}), cells.get("hops", {})
    nodes = [numa.get(int(name[3:]) if name.startswith("GPU") else index) for index, name in enumerate(names)]
    fabric = [pair for pair in combinations(range(len(names)), 2) if cells["link type"][pair].text == "XGMI"]
    least = min((int(weights[pair].text) for pair in fabric if weights), default=0)
    far = [pair for pair in fabric if weights and int(weights[pair].text) > least]
    words: dict[tuple[int, int], str] = {}
    for pair in combinations(range(len(names)), 2):
        first, second = (nodes[gpu] for gpu in pair)
        word = None if pair in fabric else _HOPS.get(hops[pair].text) if hops else None
        if word is None and pair not in fabric and first is not None and second is not None:
            word = "NODE" if first == second else "SYS"
        if word is not None:
            words[pair] = words[pair[::-1]] = word
    remarks = [f"the text has {more + 1} tables of link types; using the first"] if more else []
    if fabric:
        remarks.append("the number of Infinity Fabric links between two GPUs is not shown: one is assumed")
    if far:
        remarks.append(
            f"{names[far[0][0]]} to {names[far[0][1]]}{' and others' if len(far) > 1 else ''}: over other GPUs by "
            "weight, so without a link of their own"
        )
    if not any(node is not None for node in nodes):
        remarks.append("no NUMA nodes (`rocm-smi --showtoponuma`)")
    return Matrix(
        tuple(names),
        (),
        words,
        {},
        tuple(GpuAffinity(numa=node) for node in nodes),
        span,
        tuple(remarks),
        more,
        tuple(NvlinkPair(*pair, 1) for pair in fabric if pair not in far),
    )
