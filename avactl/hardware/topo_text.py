"""Tokenise text that contains the output of `nvidia-smi topo -m`, however it was copied, keeping word positions.

People paste it into issues, wikis and e-mail: escape codes of the underlined header remain (with or without the ESC
byte), lost tabs join words, tables add pipes. Decoration is replaced by spaces, character by character, so that every
word keeps its column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from avactl.diagnostics import Span

_LONGEST = 32 * 1024
"""Longest line that is parsed, in characters."""
_LONGEST_TAIL = 4096
"""Longest word that can be links or CPUs, in characters."""
_MAX_BREAKS = 200
"""Maximum number of lines found within one line whose line ends are escaped."""
_MAX_COLUMNS = 512
"""Maximum number of names of a header: the largest machines have 16 GPUs and some tens of virtual NICs."""

WORDS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
"""Link words other than NVLink. Drivers before 2017 write SOC for SYS."""


class Token(NamedTuple):
    """A word and its position; lines and columns count from 1."""

    text: str
    line: int
    column: int

    def span(self, file: str) -> Span:
        return Span(file, self.line, self.column, self.column + max(1, len(self.text)))


class TopoLine(NamedTuple):
    """A line without decoration."""

    number: int
    text: str
    tokens: tuple[Token, ...]


_DECORATION = re.compile(
    r"""(?:\x1b|\x9b|\^\[|\\x1b|\\033|\\e|\\u001b|␛|�)\[[0-9;?]*[A-Za-z]   # escape codes, also written out
      | \[[0-9;]+m | \[[0-9;]*[mK](?=\s|$)      # ... whose ESC byte got lost
      | \\[trn](?:(?![a-z])|(?=mlx))            # tabs and line ends written out
      | <[^<>]{0,200}> | &\#?[a-zA-Z0-9]{1,6};  # HTML
      | [|│┃║╎`*"'>\#\ufeff\u200b\x00-\x08\x0b-\x1f\x7f]  # tables, markup, quotes, comments, control characters
    """,
    re.VERBOSE,
)
_NAME_BLANK = re.compile(r"\b(GPU|NIC) (?=\d+\b)")
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"))
"""Characters that word processors substitute for a hyphen."""
_CHUNK = re.compile(r"\S+").finditer
_BREAK = re.compile(r"(?i:<br */?>)|\\n(?:(?![a-z])|(?=mlx))").finditer

# NVLink 6 has 36 links per GPU; up to Blackwell 18.
_LINK = r"(?:NV(?:3[0-6]|[12][0-9]|[1-9])|PIX|PXB|PHB|NODE|SYS|SOC|X)"
_TAIL = r"(?:[0-9][0-9,-]*)?(?:N/A)?"
_CELLS = re.compile(f"((?:{_LINK})+)({_TAIL})").fullmatch
_EACH_LINK = re.compile(_LINK).finditer
_ONE_LINK = re.compile(_LINK).fullmatch
_ONLY_TAIL = re.compile(r"[0-9][0-9,-]*(?:N/A)?|N/A,?|,[0-9,-]+").fullmatch
_PART = re.compile(r"[-,][0-9,-]*|N?/?A").fullmatch
_DEVICE = re.compile(r"(?:GPU|NIC)[0-9]+|(?:mlx|mthca|cxi|hsn|hsi|qedr|irdma|efa_)[0-9]*_?(?:bond_?)?[0-9]+").match
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:\\-]*").fullmatch
AFFINITIES = ("CPU", "NUMA", "GPU NUMA")
"""The affinity columns: CPUs and NUMA nodes next to a GPU, and the NUMA node of its own memory."""
_AFFINITY = re.compile(
    r"(?P<cpu>CPU\s*Affinity)|(?P<gpu>GPU\s*NUMA(?:\s*(?:ID|node))?)|(?P<numa>NUMA(?:\s*(?:Affinity|node|ID))?)"
    r"|(?P<bare>\b(?:CPUs?|Affinity|ID)\b)",
    re.IGNORECASE,
).finditer


def decode(data: bytes) -> str:
    """Decode a file: UTF-8, or UTF-16 (PowerShell's `>`) even without a byte order mark."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if data.count(0, 0, 1000) > len(data[:1000]) // 4:
        return data.decode("utf-16-be" if data[0] == 0 else "utf-16-le", "replace")
    return data.decode("utf-8", "replace")


def lines(text: str) -> Iterator[TopoLine]:
    """Yield the lines of a text, split at line feeds, `<br>` and escaped `\\n`; decoration becomes spaces."""
    for number, raw in enumerate(text.split("\n"), 1):
        begin = 0
        for end in [*islice((match.start() for match in _BREAK(raw)), _MAX_BREAKS), len(raw)]:
            yield _line(number, " " * begin + raw[begin:end])
            begin = end


def _line(number: int, raw: str) -> TopoLine:
    if len(raw) > _LONGEST:
        return TopoLine(number, "", ())
    line = _DECORATION.sub(lambda match: " " * len(match[0]), raw)
    # `GPU 0` is one name; the space moves behind it.
    line = _NAME_BLANK.sub("\\1\x01", line).translate(_DASHES)
    found = ((match[0].replace("\x01", "").replace("\\", ""), match.start() + 1) for match in _CHUNK(line))
    return TopoLine(number, line, tuple(Token(word, number, column) for word, column in found if word))


class Split(NamedTuple):
    """Link words at the start of a chunk, and the rest."""

    links: tuple[Token, ...]
    tail: Token | None


def split_links(token: Token) -> Split | None:
    """Split a chunk into link words, joined or not: `NODENODE`, `SYS0-31`. None if it does not start with links."""
    match = _CELLS(token.text[:_LONGEST_TAIL])
    if match is None:
        return None
    links = tuple(Token(m[0], token.line, token.column + m.start()) for m in _EACH_LINK(match[1]))
    tail = Token(match[2], token.line, token.column + match.start(2)) if match[2] else None
    return Split(links, tail)


def is_link(text: str) -> bool:
    """Return whether a text is one link word."""
    return _ONE_LINK(text) is not None


def is_tail(token: Token) -> bool:
    """Return whether a token can be in the affinity columns: CPU lists, NUMA nodes, `N/A`."""
    return len(token.text) <= _LONGEST_TAIL and _ONLY_TAIL(token.text) is not None


def is_part(token: Token) -> bool:
    """Return whether a token can be the rest of a wrapped word of the affinity columns."""
    return _PART(token.text) is not None


def is_gpu(name: str) -> bool:
    """Return whether a column name is a GPU's."""
    return name.startswith("GPU") and name[3:].isdecimal()


class Header(NamedTuple):
    """The line of column names."""

    devices: tuple[Token, ...]
    affinities: tuple[str, ...]
    leading: bool
    """The affinity columns precede the links (some sites rotate the table)."""
    glued: bool
    """Some names are joined without separators."""


def header(line: TopoLine, known: frozenset[str]) -> Header | None:
    """Return the column names in a line, or None. `known` are names of rows below it."""
    first = next((i for i, token in enumerate(line.tokens) if _starts_with_gpu(token.text)), None)
    if first is None:
        return None
    text, affinities = _without_affinities(line.text)
    devices: list[Token] = []
    glued = False
    start = line.tokens[first].column
    for match in _CHUNK(text):
        token = Token(match[0].replace("\x01", "").replace("\\", ""), line.number, match.start() + 1)
        if token.column < start:
            continue
        names = _names(token, known)
        if not names:
            return None
        glued |= len(names) > 1
        devices += names
    if not devices or not is_gpu(devices[0].text) or len(devices) > _MAX_COLUMNS:
        return None
    leading = bool(affinities) and bool(_without_affinities(line.text[: start - 1])[1])
    return Header(tuple(devices), affinities, leading, glued)


def more_columns(line: TopoLine, known: frozenset[str]) -> Header | None:
    """Return the rest of a wrapped header: names of NICs and affinity columns only."""
    text, affinities = _without_affinities(line.text)
    tokens = [Token(match[0], line.number, match.start() + 1) for match in _CHUNK(text)]
    if not all(_DEVICE(token.text) or token.text in known for token in tokens):
        return None
    return Header(tuple(tokens), affinities, False, False)


def _without_affinities(text: str) -> tuple[str, tuple[str, ...]]:
    """Remove the affinity columns from a header line; return the rest and the removed names."""
    affinities = []
    for match in _AFFINITY(text):
        if match.lastgroup != "bare" or match[0].upper().startswith("CPU"):
            affinities.append("GPU NUMA" if match["gpu"] else "NUMA" if match["numa"] else "CPU")
        text = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    return text, tuple(affinities)


def _starts_with_gpu(text: str) -> bool:
    return text.startswith("GPU") and text[3:4].isdecimal()


def _names(token: Token, known: frozenset[str]) -> list[Token]:
    """Return the device names of a chunk, also joined ones; none if it contains anything else."""
    text = token.text
    if text in known and not is_link(text):
        return [token]
    names: list[Token] = []
    at = 0
    while at < len(text):
        match = _DEVICE(text, at)
        longest = max((name for name in known if text.startswith(name, at)), key=len, default="")
        name = max(match[0] if match else "", longest, key=len)
        if not name:
            break
        names.append(Token(name, token.line, token.column + at))
        at += len(name)
    if at == len(text):
        return names
    return [token] if not names and _NAME(text) and split_links(token) is None and text[-1] != ":" else []


class TopoRow(NamedTuple):
    """A row: its name, the words after it, and the words before it."""

    name: Token
    rest: tuple[Token, ...]
    front: tuple[Token, ...]


def row(line: TopoLine, known: frozenset[str]) -> TopoRow | None:
    """Return the row in a line, or None. `known` are the names of columns."""
    for at, token in enumerate(line.tokens):
        name, rest = _row_name(token, known)
        if name is None:
            continue
        following = ((rest,) if rest else ()) + line.tokens[at + 1 :]
        if _reads_as_row(following) and (following or at == 0):
            return TopoRow(name, following, line.tokens[:at])
        return None
    return None


def _row_name(token: Token, known: frozenset[str]) -> tuple[Token | None, Token | None]:
    """Return the row name at the start of a chunk, and the links joined to it."""
    text = token.text
    if text[-1] == ":":
        return _row_name(Token(text[:-1], token.line, token.column), known) if len(text) > 1 else (None, None)
    match = _DEVICE(text)
    if text in known or (match and match[0] == text):
        return token, None
    prefix = max((name for name in known if text.startswith(name)), key=len, default=match[0] if match else "")
    if prefix:
        rest = Token(text[len(prefix) :], token.line, token.column + len(prefix))
        if split_links(rest) is not None:
            return Token(prefix, token.line, token.column), rest
    return None, None


def _reads_as_row(tokens: tuple[Token, ...]) -> bool:
    """Return whether the words after a name are links, not a sentence or a header."""
    if not tokens:
        return True
    links = sum(split_links(token) is not None for token in tokens)
    tails = sum(is_tail(token) for token in tokens)
    return links > 0 and (split_links(tokens[0]) is not None or 2 * (links + tails) >= len(tokens))


def row_names(text_lines: tuple[TopoLine, ...]) -> frozenset[str]:
    """Return the names in front of links anywhere in the text; they help to split joined column names."""
    found = set()
    for line in text_lines:
        for token, follower in zip(line.tokens, line.tokens[1:], strict=False):
            if split_links(follower) is not None:
                if _NAME(token.text) and split_links(token) is None and not token.text.endswith(":"):
                    found.add(token.text)
                break
    return frozenset(found)
