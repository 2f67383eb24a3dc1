"""The matrix in the output of `nvidia-smi topo -m`: read as far as it is unambiguous, else refused at its cell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from avactl.diagnostics import Diagnostic, Note, Span, sort_diagnostics
from avactl.diagnostics.suggest import did_you_mean
from avactl.hardware import topo_text as text
from avactl.hardware.topo_text import Header, Line, Row, Token

DAMAGED, MISSING, UNSUPPORTED = "topo-damaged", "topo-missing", "topo-unsupported"
MOST_GPUS = 16
AGAIN = "run `nvidia-smi topo -m` again and take all of its output"

_LEGEND = re.compile(r"\b(NIC[0-9]+)\s*[:=]\s*([A-Za-z][A-Za-z0-9_.-]*)").findall
_PEER_WORDS = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U", "N/A"))
_MOST_TOLD = 20


@dataclass(frozen=True, slots=True)
class Affinity:
    """What stands behind the links of one GPU; None where a column is not there, is empty or says N/A."""

    cpus: str | None = None
    numa: str | None = None
    memory_node: str | None = None
    """The NUMA node that the GPU's own memory is (Grace)."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """What one machine's output says. Devices are numbered as they stand in it: first the GPUs, then the NICs."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    """Names of the NICs, by the legend where there is one."""
    words: Mapping[tuple[int, int], str]
    """Link word by two devices, in both orders; only those that are known."""
    pcie: Mapping[tuple[int, int], str]
    """PCIe words that NVLink hides in `words`, where `topo -mp` was given too."""
    affinities: tuple[Affinity, ...]
    span: Span
    """The line of column names."""
    gpu_spans: tuple[Span, ...]
    remarks: tuple[str, ...] = ()

    def word(self, first: int, second: int) -> str | None:
        """The link word between two devices; SYS for the older SOC."""
        found = self.words.get((first, second))
        return "SYS" if found == "SOC" else found

    def links(self, first: int, second: int) -> int:
        """How many NVLinks join two GPUs."""
        found = self.words.get((first, second), "")
        return int(found[2:]) if found.startswith("NV") else 0

    def pcie_word(self, first: int, second: int) -> str | None:
        """The way over PCIe between two devices; None where NVLink hides it."""
        found = self.word(first, second)
        if found is not None and found.startswith("NV"):
            found = self.pcie.get((first, second))
        return "SYS" if found == "SOC" else found


@dataclass(slots=True)
class _Block:
    """A header and the lines below it."""

    header: Header
    rows: list[_Cells] = field(default_factory=list)
    orphans: list[Token] = field(default_factory=list)
    legend: dict[str, str] = field(default_factory=dict)
    peer: bool = False


@dataclass(slots=True)
class _Cells:
    """A row taken apart."""

    name: Token
    cells: list[Token]
    tail: list[Token]
    glued: bool


def read(content: str, file: str) -> Matrix | list[Diagnostic]:
    """The first matrix in a text, or what is wrong with it.

    A second one of the same GPUs without any NVLink (`nvidia-smi topo -mp`) tells the PCIe ways that NVLink hides.
    """
    every = tuple(text.lines(content))
    blocks = [block for block in _blocks(every) if block.rows]
    links = [block for block in blocks if not block.peer]
    if not links:
        return [_nothing(every, file, blocks)]
    main = links[0]
    problems = _problems(main, file)
    if problems:
        return sort_diagnostics(problems)[:_MOST_TOLD]
    names = [token.text for token in main.header.devices]
    gpus = [name for name in names if text.is_gpu(name)]
    if len(gpus) > MOST_GPUS:
        span = main.header.devices[MOST_GPUS].span(file)
        message = f"{len(gpus)} GPUs, and a machine type has {MOST_GPUS} at the most"
        return [Diagnostic(UNSUPPORTED, message, span, hint="split the machine, or leave GPUs out")]
    return _matrix(main, links[1:], file)


# -- finding it ------------------------------------------------------------------------------------------------------


def _blocks(every: tuple[Line, ...]) -> list[_Block]:
    known = text.row_names(every)
    blocks: list[_Block] = []
    ended = True
    for line in every:
        if not line.tokens:
            continue
        if blocks:
            blocks[-1].legend.update(_LEGEND(line.text))
        names = frozenset(t.text for t in blocks[-1].header.devices) if blocks and not ended else frozenset()
        found_row = text.row(line, names) if names else None
        if found_row is not None:
            _add_row(blocks[-1], found_row)
            continue
        found = text.header(line, known)
        if found is not None:
            if names and not blocks[-1].rows and not names & {token.text for token in found.devices}:
                blocks[-1].header = _joined(blocks[-1].header, found)
            else:
                blocks.append(_Block(found))
                ended = False
            continue
        if not names:
            continue
        if any(token.text.rstrip(":").lower() == "legend" for token in line.tokens[:2]):
            ended = bool(blocks[-1].rows)
        elif blocks[-1].rows:
            _add_orphan(blocks[-1], line)
        elif (more := text.more_columns(line)) is not None:
            blocks[-1].header = _joined(blocks[-1].header, more)
    return blocks


def _joined(first: Header, second: Header) -> Header:
    """One header that the terminal broke into two lines."""
    devices = first.devices + second.devices
    return Header(devices, first.affinities + second.affinities, first.leading, first.glued or second.glued)


def _add_row(block: _Block, found: Row) -> None:
    if not found.rest or any(token.text in _PEER_WORDS - {"N/A"} for token in found.rest):
        # `GPU0` alone is prose, or the peer-to-peer matrix of `topo -p2p`.
        words = {token.text for token in found.rest}
        if words & (_PEER_WORDS - {"N/A"}) and not any(text.is_link(word) for word in words - {"X"}):
            block.peer = True
            block.rows.append(_Cells(found.name, [], [], False))
            return
    cells = _take_apart(found.name, found.rest, len(block.header.devices))
    if block.header.leading:
        cells.tail = list(found.front)
    block.rows.append(cells)


def _take_apart(name: Token, rest: Sequence[Token], wanted: int) -> _Cells:
    """Links and what stands behind them. What is neither, in the place of a link, counts as one."""
    cells: list[Token] = []
    tail: list[Token] = []
    glued = False
    for token in rest:
        split = text.split_links(token)
        if split is not None and len(cells) + len(tail) < wanted:
            # What looked like the tail stood among the links.
            cells += tail
            tail = []
        if split is not None and not tail:
            cells += split.links
            if split.tail is not None:
                tail.append(split.tail)
                glued = True
        elif tail or text.is_tail(token) or len(cells) >= wanted:
            tail.append(token)
        else:
            cells.append(token)
    return _Cells(name, cells, tail, glued)


def _add_orphan(block: _Block, line: Line) -> None:
    """A line of links without a name: the rest of a row that the terminal broke, or a row that lost its name."""
    last, wanted = block.rows[-1], len(block.header.devices)
    splits = [text.split_links(token) for token in line.tokens]
    links = sum(len(split.links) for split in splits if split)
    fits = all(split or text.is_tail(token) for split, token in zip(splits, line.tokens, strict=True))
    if not fits:
        return
    if not last.tail and len(last.cells) + links <= wanted and (links or len(last.cells) == wanted):
        more = _take_apart(last.name, line.tokens, wanted - len(last.cells))
        last.cells += more.cells
        last.tail += more.tail
    elif 2 * links >= wanted:
        block.orphans.append(line.tokens[0])


def _nothing(every: tuple[Line, ...], file: str, blocks: list[_Block]) -> Diagnostic:
    """Why there is no matrix."""
    if blocks:
        message = "this is the matrix of peer access (`topo -p2p`), and the one of links is needed"
        return Diagnostic(MISSING, message, blocks[0].header.devices[0].span(file), hint="run `nvidia-smi topo -m`")
    for line in every:
        found = text.row(line, frozenset())
        if found is not None and found.rest and text.is_gpu(found.name.text):
            message = "the line with the names of the columns is missing above this row"
            return Diagnostic(DAMAGED, message, found.name.span(file), hint=AGAIN)
        names = text.header(line, frozenset())
        if names is not None and len(names.devices) + len(names.affinities) > 1:
            message = "below the names of the columns stands no row"
            return Diagnostic(DAMAGED, message, names.devices[0].span(file), hint=AGAIN)
    message = "there is no matrix of `nvidia-smi topo -m` in it"
    return Diagnostic(MISSING, message, Span(file), hint="run `nvidia-smi topo -m` on the machine and pass its output")


# -- judging it ------------------------------------------------------------------------------------------------------


def _problems(block: _Block, file: str) -> list[Diagnostic]:
    devices = block.header.devices
    columns: dict[str, int] = {}
    problems: list[Diagnostic] = []
    for index, token in enumerate(devices):
        if token.text in columns:
            note = Note(devices[columns[token.text]].span(file), "first time")
            message = f"column {token.text} stands twice"
            problems.append(Diagnostic(DAMAGED, message, token.span(file), hint=AGAIN, notes=(note,)))
        columns.setdefault(token.text, index)
    rows: dict[str, _Cells] = {}
    for row in block.rows:
        name = row.name.text
        if name not in columns:
            message = f"row {name} has no column"
            known = did_you_mean(name, columns, "columns")
            problems.append(Diagnostic(DAMAGED, message, row.name.span(file), hint=f"{known}; {AGAIN}"))
        elif name in rows:
            note = Note(rows[name].name.span(file), "first time")
            problems.append(
                Diagnostic(DAMAGED, f"row {name} stands twice", row.name.span(file), hint=AGAIN, notes=(note,))
            )
        else:
            rows[name] = row
    problems += [
        Diagnostic(DAMAGED, "a row of links without a name in front", token.span(file), hint=AGAIN)
        for token in block.orphans
    ]
    if problems:
        return problems
    return _missing(block, rows, file) + _cells(devices, rows, file)


def _missing(block: _Block, rows: Mapping[str, _Cells], file: str) -> list[Diagnostic]:
    """Rows that are not there. NICs may have none at all: their links stand in the rows of the GPUs too."""
    names = [token.text for token in block.header.devices]
    without_nics = not any(name in rows for name in names if not text.is_gpu(name))
    gone = [
        index for index, name in enumerate(names) if name not in rows and not (without_nics and not text.is_gpu(name))
    ]
    if not gone:
        return []
    above = next((rows[name] for name in reversed(names[: gone[0]]) if name in rows), None)
    notes = (Note(above.name.span(file), f"it should stand below row {above.name.text}"),) if above else ()
    which = ", ".join(names[index] for index in gone)
    message = f"column {which} has no row" if len(gone) == 1 else f"columns {which} have no rows"
    return [Diagnostic(DAMAGED, message, block.header.devices[gone[0]].span(file), hint=AGAIN, notes=notes)]


def _cells(devices: Sequence[Token], rows: Mapping[str, _Cells], file: str) -> list[Diagnostic]:
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
            note = Note(other.span(file), f"{other.text} here")
            problems.append(
                Diagnostic(
                    DAMAGED,
                    f"not symmetric: {second} to {first} is {cell.text}, {first} to {second} is {other.text}",
                    cell.span(file),
                    hint=AGAIN,
                    notes=(note,),
                )
            )
    return problems


def _mirrored(message: str) -> str:
    """The message on the cell of the other half that says the same: it is told once."""
    return re.sub(r"between (\S+) and (\S+) is", r"between \2 and \1 is", message)


def _wrong_length(device: Token, row: _Cells, wanted: int, file: str) -> Diagnostic:
    found = len(row.cells)
    ends = row.cells[-1] if row.cells else row.name
    span = row.cells[wanted].span(file) if found > wanted else ends.span(file)
    what = "short" if found < wanted else "long"
    message = (
        f"row {device.text} is too {what}: {found} link{'' if found == 1 else 's'}, and there are {wanted} columns"
    )
    label = "ends here" if found < wanted else "one too many"
    return Diagnostic(DAMAGED, message, span, label=label, hint=AGAIN)


def _wrong_word(device: Token, other: Token, cell: Token, diagonal: bool, file: str) -> Diagnostic | None:
    if diagonal and cell.text != "X":
        message = f"{device.text} to itself is `{cell.text}`, and should be X"
        return Diagnostic(DAMAGED, message, cell.span(file), hint=f"the row is shifted or changed; {AGAIN}")
    if not text.is_link(cell.text):
        message = f"`{cell.text}` between {device.text} and {other.text} is no link"
        if re.fullmatch(r"NV[0-9#]*", cell.text):
            hint = f"NVLinks are NV1 to NV18, with their number; {AGAIN}"
        else:
            hint = f"{did_you_mean(cell.text, (*text.WORDS, 'NV1'), 'links')}; {AGAIN}"
        return Diagnostic(DAMAGED, message, cell.span(file), hint=hint)
    if cell.text == "X" and not diagonal:
        message = f"X between {device.text} and {other.text}: only a device to itself is X"
        return Diagnostic(DAMAGED, message, cell.span(file), hint=f"the row is shifted or changed; {AGAIN}")
    return None


# -- taking it over --------------------------------------------------------------------------------------------------


def _matrix(block: _Block, others: Sequence[_Block], file: str) -> Matrix:
    devices = sorted(block.header.devices, key=lambda token: not text.is_gpu(token.text))
    gpus = tuple(token.text for token in devices if text.is_gpu(token.text))
    labels = [token.text for token in devices if not text.is_gpu(token.text)]
    words = _words(block, [token.text for token in devices])
    rows = {row.name.text: row for row in block.rows}
    affinities = tuple(_affinity(block.header.affinities, rows[name]) for name in gpus)
    pcie: dict[tuple[int, int], str] = {}
    remarks: list[str] = []
    hidden = any(word.startswith("NV") for word in words.values())
    for other in others:
        names = [token.text for token in other.header.devices]
        if not hidden or pcie or _problems(other, file) or [n for n in names if text.is_gpu(n)] != list(gpus):
            continue
        found = _words(other, list(gpus))
        if not any(word.startswith("NV") for word in found.values()):
            pcie = found
            remarks.append("PCIe ways that NVLink hides are taken from the second matrix (`topo -mp`)")
    more = len(others) - len(remarks)
    if more:
        remarks.append(f"the text holds {more + 1} matrices: this is the first")
    unnamed = [label for label in labels if label.startswith("NIC") and label not in block.legend]
    if unnamed:
        which = f"{unnamed[0]} is" if len(unnamed) == 1 else f"{unnamed[0]} to {unnamed[-1]} are"
        remarks.append(f"{which} not in a NIC legend: write the names as `ls /sys/class/infiniband` shows them")
    if gpus != tuple(f"GPU{index}" for index in range(len(gpus))):
        pairs = ", ".join(f"{name} → {index}" for index, name in enumerate(gpus) if name != f"GPU{index}")
        remarks.append(f"GPUs are numbered anew: {pairs}")
    return Matrix(
        gpus, _nic_names(labels, block.legend), words, pcie, affinities,
        block.header.devices[0].span(file), tuple(rows[name].name.span(file) for name in gpus), tuple(remarks),
    )  # fmt: skip


def _words(block: _Block, names: Sequence[str]) -> dict[tuple[int, int], str]:
    """Link words by device numbers; `names` says which number a name has."""
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
    """Names for a machine type: at most 15 characters, each once."""
    names: list[str] = []
    for label in labels:
        name = legend.get(label, label)[-15:]
        while name in names:
            name = label[-15:] if label[-15:] not in names else f"{label[-11:]}-{len(names)}"
        names.append(name)
    return tuple(names)


def _affinity(columns: Sequence[str], row: _Cells) -> Affinity:
    """The columns behind the links. Cells may be empty, and tabs do not say which."""
    parts: list[str] = []
    for token in row.tail:
        part = token.text
        if parts and (parts[-1].endswith(",") or part.startswith(",")):
            parts[-1] += part
            continue
        if part.endswith("N/A") and part != "N/A":
            parts += [part.removesuffix("N/A"), "N/A"]
        else:
            parts.append(part)
    names = list(columns) or list(text.AFFINITIES)
    if row.glued and parts and {"CPU", "NUMA"} <= set(names) and re.fullmatch(r"[0-9,-]*-[0-9]+[0-9]", parts[0]):
        # `0-310`: CPUs 0-31 and NUMA node 0, whose tab got lost; nodes from 10 on are not told apart.
        parts[:1] = [parts[0][:-1], parts[0][-1]]
    if not row.glued and len(parts) == len(names):
        values = dict(zip(names, parts, strict=True))
    else:
        values = _guess_columns(names, [part for part in parts if part != "N/A"])
    cpus, numa, memory = (values.get(name) for name in text.AFFINITIES)
    return Affinity(*(None if value in (None, "N/A", "") else value for value in (cpus, numa, memory)))


def _guess_columns(names: Sequence[str], parts: Sequence[str]) -> dict[str, str]:
    """Values for columns where some are empty: lists are CPUs, single numbers behind them are NUMA nodes."""
    values: dict[str, str] = {}
    for part in parts:
        is_list = "-" in part or "," in part
        for name in names:
            if name not in values and (is_list or name != "CPU" or len(names) == 1):
                values[name] = part
                break
    return values
