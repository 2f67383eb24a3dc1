"""Parse the matrix in the output of `nvidia-smi topo -m`; reject ambiguous input with the offending cell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from avactl.diagnostics import Diagnostic, Note, Span, sort_diagnostics
from avactl.diagnostics.suggest import did_you_mean
from avactl.hardware import topo_text as text
from avactl.hardware.machine import NvlinkPair
from avactl.hardware.topo_affinity import GpuAffinity, affinity, contradiction
from avactl.hardware.topo_blocks import Cells, TopoBlock, blocks_of
from avactl.hardware.topo_text import Token, TopoLine

DAMAGED, MISSING, UNSUPPORTED = "topo-damaged", "topo-missing", "topo-unsupported"
MAX_GPUS = 16
AGAIN = "run `nvidia-smi topo -m` again and copy its whole output"

_MATRIX_PCI = re.compile(r"topo\s+(?:-mp\b|--matrix_pci)").search
_MAX_TOLD = 20
_LONGEST_NAME = 15
"""Longest name of a NIC that a machine type allows."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One machine's matrix. Devices are numbered in order: first the GPUs, then the NICs."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    """Names of the NICs, from the legend if there is one."""
    words: Mapping[tuple[int, int], str]
    """Link word by pair of devices, in both orders; only known ones."""
    pcie: Mapping[tuple[int, int], str]
    """PCIe words that NVLink hides in `words`, if `topo -mp` was given too."""
    affinities: tuple[GpuAffinity, ...]
    span: Span
    """Position of the header line."""
    remarks: tuple[str, ...] = ()
    others: int = 0
    """Number of further matrices in the text, which are ignored."""
    fabric: tuple[NvlinkPair, ...] = ()
    """Direct links of another vendor than NVIDIA; they are in no cell."""

    def word(self, first: int, second: int) -> str | None:
        """Return the link word between two devices; SYS for the older SOC."""
        found = self.words.get((first, second))
        return "SYS" if found == "SOC" else found

    def links(self, first: int, second: int) -> int:
        """Return the number of NVLinks between two GPUs."""
        found = self.words.get((first, second), "")
        return int(found[2:]) if found.startswith("NV") else 0

    def pcie_word(self, first: int, second: int) -> str | None:
        """Return the PCIe path between two devices; None if NVLink hides it."""
        found = self.word(first, second)
        if found is not None and found.startswith("NV"):
            found = self.pcie.get((first, second))
        return "SYS" if found == "SOC" else found


def _damaged(message: str, token: Token, file: str, *notes: Note, hint: str = AGAIN, label: str = "") -> Diagnostic:
    return Diagnostic(DAMAGED, message, token.span(file), label=label, hint=hint, notes=notes)


def read(content: str, file: str) -> Matrix | list[Diagnostic]:
    """Parse the first matrix of a text; return the problems if it is invalid.

    A second matrix of the same GPUs without NVLink (`nvidia-smi topo -mp`) provides the hidden PCIe paths.
    """
    every = tuple(text.lines(content))
    blocks = [block for block in blocks_of(every) if block.rows]
    links = [block for block in blocks if not block.peer]
    # Names alone, one per line, are a list in the surrounding text.
    links = [block for block in links if any(row.cells for row in block.rows)] or links
    if not links:
        return [_nothing(every, file, blocks)]
    main = links[0]
    problems = _problems(main, file)
    if problems:
        return sort_diagnostics(problems)[:_MAX_TOLD]
    names = [token.text for token in main.header.devices]
    gpus = [name for name in names if text.is_gpu(name)]
    if len(gpus) > MAX_GPUS:
        span = main.header.devices[MAX_GPUS].span(file)
        message = f"{len(gpus)} GPUs; a machine type has at most {MAX_GPUS}"
        return [Diagnostic(UNSUPPORTED, message, span, hint="split the machine, or omit GPUs")]
    twin = next((block for block in links[1:] if not _problems(block, file) and _pcie_twin(main, block, content)), None)
    return _matrix(main, twin, len(links) - 1, file)


def _nothing(every: tuple[TopoLine, ...], file: str, blocks: list[TopoBlock]) -> Diagnostic:
    """Return the diagnostic for a text without a matrix."""
    if blocks:
        message = "this is the peer access matrix (`topo -p2p`), not the link matrix"
        return Diagnostic(MISSING, message, blocks[0].header.devices[0].span(file), hint="run `nvidia-smi topo -m`")
    for line in every:
        found = text.row(line, frozenset())
        if found is not None and found.rest and text.is_gpu(found.name.text):
            return _damaged("the header line above this row is missing", found.name, file)
        names = text.header(line, frozenset())
        if names is not None and len(names.devices) + len(names.affinities) > 1:
            return _damaged("the header has no rows", names.devices[0], file)
    message = "no matrix of `nvidia-smi topo -m` found"
    return Diagnostic(MISSING, message, Span(file), hint="run `nvidia-smi topo -m` on the machine and pass its output")


# -- validation ------------------------------------------------------------------------------------------------------


def _problems(block: TopoBlock, file: str) -> list[Diagnostic]:
    devices = block.header.devices
    columns: dict[str, int] = {}
    problems: list[Diagnostic] = []
    for index, token in enumerate(devices):
        if token.text in columns:
            note = Note(devices[columns[token.text]].span(file), "first time")
            problems.append(_damaged(f"duplicate column {token.text}", token, file, note))
        columns.setdefault(token.text, index)
    rows: dict[str, Cells] = {}
    for row in block.rows:
        name = row.name.text
        if name not in columns:
            hint = f"{did_you_mean(name, columns, 'columns')}; {AGAIN}"
            problems.append(_damaged(f"row {name} has no column", row.name, file, hint=hint))
        elif name in rows:
            note = Note(rows[name].name.span(file), "first time")
            problems.append(_damaged(f"duplicate row {name}", row.name, file, note))
        else:
            rows[name] = row
    problems += [
        _damaged("a row of links without a name", orphan.token, file)
        for orphan in block.orphans
        if orphan.many or orphan.row < len(block.rows)
    ]
    if block.broken is not None:
        message = f"`{block.broken.text}` below the header: the header was wrapped inside a name"
        problems.append(_damaged(message, block.broken, file))
    return problems or _missing(block, rows, file) + _cells(devices, rows, file)


def _missing(block: TopoBlock, rows: Mapping[str, Cells], file: str) -> list[Diagnostic]:
    """Report missing rows. NICs may have none at all, because the GPUs' rows contain their links."""
    names = [token.text for token in block.header.devices]
    without_nics = not any(name in rows for name in names if not text.is_gpu(name))
    gone = [
        index for index, name in enumerate(names) if name not in rows and not (without_nics and not text.is_gpu(name))
    ]
    if not gone:
        return []
    above = next((rows[name] for name in reversed(names[: gone[0]]) if name in rows), None)
    notes = [Note(above.name.span(file), f"it should follow row {above.name.text}")] if above else []
    which = ", ".join(names[index] for index in gone)
    message = f"column {which} has no row" if len(gone) == 1 else f"columns {which} have no rows"
    return [_damaged(message, block.header.devices[gone[0]], file, *notes)]


def _cells(devices: Sequence[Token], rows: Mapping[str, Cells], file: str) -> list[Diagnostic]:
    problems: list[Diagnostic] = []
    good: dict[tuple[int, int], Token] = {}
    for index, device in enumerate(devices):
        row = rows.get(device.text)
        if row is None:
            continue
        if len(row.cells) != len(devices):
            problems.append(_wrong_length(device, row, len(devices), file))
            continue
        wrong = None
        for column, cell in enumerate(row.cells):
            wrong = wrong or _wrong_word(device, devices[column], cell, index == column, file)
        if wrong is None:
            good.update({(index, column): cell for column, cell in enumerate(row.cells)})
        elif not any(problem.message == _mirrored(wrong.message) for problem in problems):
            problems.append(wrong)
    for (index, column), cell in good.items():
        other = good.get((column, index))
        if index > column and other is not None and other.text != cell.text:
            first, second = devices[column].text, devices[index].text
            message = f"not symmetric: {second} to {first} is {cell.text}, {first} to {second} is {other.text}"
            problems.append(_damaged(message, cell, file, Note(other.span(file), f"{other.text} here")))
    return problems


def _mirrored(message: str) -> str:
    """Return the message as it would be for the mirrored cell, to report each problem once."""
    return re.sub(r"between (\S+) and (\S+) is", r"between \2 and \1 is", message)


def _wrong_length(device: Token, row: Cells, wanted: int, file: str) -> Diagnostic:
    found = len(row.cells)
    what = "short" if found < wanted else "long"
    message = f"row {device.text} is too {what}: {found} link{'' if found == 1 else 's'}, for {wanted} columns"
    if found > wanted:
        return _damaged(message, row.cells[wanted], file, label="one too many")
    return _damaged(message, row.cells[-1] if row.cells else row.name, file, label="ends here")


def _wrong_word(device: Token, other: Token, cell: Token, diagonal: bool, file: str) -> Diagnostic | None:
    shifted = f"the row is shifted or changed; {AGAIN}"
    if diagonal and cell.text != "X":
        return _damaged(f"{device.text} to itself is `{cell.text}`; expected X", cell, file, hint=shifted)
    if not text.is_link(cell.text):
        message = f"`{cell.text}` between {device.text} and {other.text} is not a link"
        if re.fullmatch(r"NV[0-9#]*", cell.text):
            hint = f"NVLinks are written NV1 to NV18; {AGAIN}"
        else:
            hint = f"{did_you_mean(cell.text, (*text.WORDS, 'NV1'), 'links')}; {AGAIN}"
        return _damaged(message, cell, file, hint=hint)
    if cell.text == "X" and not diagonal:
        message = f"X between {device.text} and {other.text}, which are different devices"
        return _damaged(message, cell, file, hint=shifted)
    return None


# -- conversion ------------------------------------------------------------------------------------------------------


def _matrix(block: TopoBlock, twin: TopoBlock | None, others: int, file: str) -> Matrix:
    more = others - (twin is not None)
    remarks = [f"the text has {more + 1} matrices; using the first"] if more else []
    if twin is not None:
        if _has_nvlink(twin):
            block, twin, which = twin, block, "first"
        else:
            which = "second"
        block.legend = twin.legend | block.legend
        remarks.insert(0, f"PCIe paths hidden by NVLink are taken from the {which} matrix (`topo -mp`)")
    drives = [token.text for token in block.header.devices if token.text.lower().startswith("nvme")]
    if drives:
        remarks.append(f"{', '.join(drives)}: drives, not NICs; ignored")
    devices = sorted(
        (token for token in block.header.devices if token.text not in drives),
        key=lambda token: not text.is_gpu(token.text),
    )
    gpus = tuple(token.text for token in devices if text.is_gpu(token.text))
    labels = [token.text for token in devices if not text.is_gpu(token.text)]
    words = _words(block, [token.text for token in devices])
    pcie = _words(twin, gpus) if twin is not None else {}
    rows = {row.name.text: row for row in block.rows}
    affinities = _affinities(block)
    if doubt := _doubt(gpus, affinities, rows):
        # A value for some GPUs only would wrongly distinguish them from the others.
        affinities = dict.fromkeys(gpus)
        remarks.append(f"the affinity columns are ignored: {doubt}")
    if len(labels) > 1 and not any(label in rows for label in labels):
        remarks.append("the NICs have no rows, so the connections between them are unknown")
    unnamed = [label for label in labels if label.startswith("NIC") and label not in block.legend]
    if unnamed:
        which = f"{unnamed[0]} is" if len(unnamed) == 1 else f"{unnamed[0]} to {unnamed[-1]} are"
        remarks.append(f"{which} not in a NIC legend: write the names as `ls /sys/class/infiniband` shows them")
    long = [block.legend.get(label, label) for label in labels if len(block.legend.get(label, label)) > _LONGEST_NAME]
    if long:
        limit = f"names of NICs have at most {_LONGEST_NAME} characters here; the last are taken"
        remarks.append(f"{', '.join(long)}: {limit}")
    if gpus != tuple(f"GPU{index}" for index in range(len(gpus))):
        pairs = ", ".join(f"{name} → {index}" for index, name in enumerate(gpus) if name != f"GPU{index}")
        remarks.append(f"GPUs are renumbered: {pairs}")
    return Matrix(
        gpus,
        _nic_names(labels, block.legend),
        words,
        pcie,
        tuple(affinities[name] or GpuAffinity() for name in gpus),
        block.header.devices[0].span(file),
        tuple(remarks),
        more,
    )


def _pcie_twin(first: TopoBlock, second: TopoBlock, content: str) -> bool:
    """Return whether two matrices are `topo -m` and `topo -mp` of one machine: equal except for NVLinks.

    Machines may look alike: if the links are the only evidence, or the matrix without NVLink comes first, the text must
    name the command.
    """
    affinities, linked = _affinities(first), _has_nvlink(first)
    if linked == _has_nvlink(second) or affinities != _affinities(second):
        return False
    if not _MATRIX_PCI(content) and not (
        linked and any(found and found != GpuAffinity() for found in affinities.values())
    ):
        return False
    names = [token.text for token in first.header.devices]
    if names != [token.text for token in second.header.devices]:
        return False
    one, other = _words(first, names), _words(second, names)
    return all(word == other.get(pair) or "NV" in (word[:2], other.get(pair, "")[:2]) for pair, word in one.items())


def _has_nvlink(block: TopoBlock) -> bool:
    return any(cell.text.startswith("NV") for row in block.rows for cell in row.cells)


def _affinities(block: TopoBlock) -> dict[str, GpuAffinity | None]:
    """Return the affinity by GPU; None if ambiguous."""
    columns = block.header.affinities
    return {row.name.text: affinity(columns, row.tail, row.glued) for row in block.rows if text.is_gpu(row.name.text)}


def _doubt(gpus: Sequence[str], affinities: Mapping[str, GpuAffinity | None], rows: Mapping[str, Cells]) -> str | None:
    """Return why the affinity columns are unreliable; None if they are reliable."""
    for name in gpus:
        if affinities[name] is None:
            return f"`{' '.join(token.text for token in rows[name].tail)}` of {name} is ambiguous"
    cpus = [found.cpus if found else None for found in (affinities[name] for name in gpus)]
    pair = contradiction(cpus)
    if pair is None:
        return None
    first, second = pair
    return f"the CPUs of {gpus[first]} ({cpus[first]}) and {gpus[second]} ({cpus[second]}) partly overlap"


def _words(block: TopoBlock, names: Sequence[str]) -> dict[tuple[int, int], str]:
    """Return link words by device numbers; `names` maps names to numbers."""
    numbers = {name: number for number, name in enumerate(names)}
    columns = [numbers.get(token.text) for token in block.header.devices]
    words: dict[tuple[int, int], str] = {}
    for row in block.rows:
        first = numbers.get(row.name.text)
        for second, cell in zip(columns, row.cells, strict=False):
            if first is not None and second is not None and first != second:
                words[first, second] = words[second, first] = cell.text
    return words


def _nic_names(labels: Sequence[str], legend: Mapping[str, str]) -> tuple[str, ...]:
    """Return unique NIC names for a machine type."""
    names: list[str] = []
    for label in labels:
        name = legend.get(label, label)[-_LONGEST_NAME:]
        while name in names:
            name = label[-_LONGEST_NAME:] if label[-_LONGEST_NAME:] not in names else f"{label[-11:]}-{len(names)}"
        names.append(name)
    return tuple(names)
