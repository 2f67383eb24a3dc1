"""Find the matrices in a text: headers, their rows, and fragments of wrapped lines, without validation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from avactl.hardware import topo_text as text
from avactl.hardware.topo_text import Header, Token, TopoLine, TopoRow

_LEGEND = re.compile(r"\b(NIC[0-9]+)\s*[:=]\s*([A-Za-z][A-Za-z0-9_.-]*)").findall
_PEER_WORDS = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U", "N/A"))
_NARROWEST = 70
"""Line length from which a terminal may have wrapped it."""


@dataclass(slots=True)
class TopoBlock:
    """A header and its lines."""

    header: Header
    rows: list[Cells] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    broken: Token | None = None
    """The rest of a header that was wrapped in the middle of a word."""
    legend: dict[str, str] = field(default_factory=dict)
    peer: bool = False


class Orphan(NamedTuple):
    """Links without a row name."""

    token: Token
    row: int
    """Number of rows above."""
    many: bool
    """True if there are too many links to be anything but a row."""


@dataclass(slots=True)
class Cells:
    """A parsed row."""

    name: Token
    cells: list[Token]
    tail: list[Token]
    glued: bool


def blocks_of(every: tuple[TopoLine, ...]) -> list[TopoBlock]:
    """Return the matrices of a text in order, including those of peer access and headers without rows."""
    known = text.row_names(every)
    blocks: list[TopoBlock] = []
    ended = True
    above = TopoLine(0, "", ())
    for line in every:
        broken = line.number == above.number + 1 and len(above.text.rstrip()) >= _NARROWEST
        above = line
        if not line.tokens:
            continue
        if blocks:
            blocks[-1].legend.update(_LEGEND(line.text))
        names = frozenset(t.text for t in blocks[-1].header.devices) if blocks and not ended else frozenset()
        found_row = text.row(line, names) if names else None
        if found_row is not None:
            if found_row.rest or all(row.name.text != found_row.name.text for row in blocks[-1].rows):
                _add_row(blocks[-1], found_row)
            continue
        found = text.header(line, known)
        if found is not None:
            if names and not blocks[-1].rows and not names & {token.text for token in found.devices}:
                blocks[-1].header = _joined(blocks[-1].header, found)
            else:
                blocks.append(TopoBlock(found))
                ended = False
            continue
        if not names:
            continue
        if any(token.text.rstrip(":").lower() == "legend" for token in line.tokens[:2]):
            ended = bool(blocks[-1].rows)
        elif blocks[-1].rows or any(map(text.split_links, line.tokens)):
            _add_orphan(blocks[-1], line, broken)
        elif (more := text.more_columns(line, known)) is not None:
            blocks[-1].header = _joined(blocks[-1].header, more)
        elif broken and line.tokens[0].column == 1 and line.tokens[0].text.strip("-=+:_"):
            blocks[-1].broken = line.tokens[0]
    return blocks


def _joined(first: Header, second: Header) -> Header:
    """Join a header that was wrapped into two lines."""
    devices = first.devices + second.devices
    return Header(devices, first.affinities + second.affinities, first.leading, first.glued or second.glued)


def _add_row(block: TopoBlock, found: TopoRow) -> None:
    if not found.rest or any(token.text in _PEER_WORDS - {"N/A"} for token in found.rest):
        # `GPU0` alone is prose, or the peer-to-peer matrix of `topo -p2p`.
        words = {token.text for token in found.rest}
        if words & (_PEER_WORDS - {"N/A"}) and not any(text.is_link(word) for word in words - {"X"}):
            block.peer = True
            block.rows.append(Cells(found.name, [], [], False))
            return
    cells = _take_apart(found.name, found.rest, len(block.header.devices))
    if block.header.leading:
        cells.tail = list(found.front)
    block.rows.append(cells)


def _take_apart(name: Token, rest: Sequence[Token], wanted: int) -> Cells:
    """Split a row into links and tail. An unknown word in the position of a link counts as one."""
    cells: list[Token] = []
    tail: list[Token] = []
    glued = False
    for token in rest:
        split = text.split_links(token)
        if split is not None and len(cells) + len(tail) < wanted:
            # A word that looked like the tail was among the links.
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
    return Cells(name, cells, tail, glued)


def _add_orphan(block: TopoBlock, line: TopoLine, broken: bool) -> None:
    """Record links without a name: the rest of a wrapped row, or a row with a lost or changed name."""
    wanted = len(block.header.devices)
    splits = [text.split_links(token) for token in line.tokens]
    links = sum(len(split.links) for split in splits if split)
    fits = [
        bool(split or text.is_tail(token) or (broken and text.is_part(token)))
        for split, token in zip(splits, line.tokens, strict=True)
    ]
    if not all(fits):
        if links and 2 * links >= wanted and not fits[0] and all(fits[1:]):
            _add_row(block, TopoRow(line.tokens[0], line.tokens[1:], ()))
        return
    last = block.rows[-1] if block.rows else None
    # Lines of numbers only belong to a header without affinity columns.
    ends = len(last.cells) == wanted and bool(block.header.affinities) if last else False
    if last and not last.tail and len(last.cells) + links <= wanted and (links or ends):
        more = _take_apart(last.name, line.tokens, wanted - len(last.cells))
        last.cells += more.cells
        last.tail += more.tail
    elif links:
        block.orphans.append(Orphan(line.tokens[0], len(block.rows), 2 * links >= wanted))
    elif (
        last
        and broken
        and (len(last.tail) + len(line.tokens) <= len(block.header.affinities) or line.tokens[0].column == 1)
    ):
        last.tail += line.tokens
