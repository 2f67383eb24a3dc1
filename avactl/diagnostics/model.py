"""The diagnostic value. Codes are public API; see `avactl.diagnostics.codes`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]


class Span(NamedTuple):
    """A range in a file. Lines and columns count from 1, columns in characters; `end_column` is exclusive."""

    file: str
    line: int = 1
    column: int = 1
    end_column: int = 0  # 0: one character

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Note(NamedTuple):
    """A related location, with an explanation."""

    span: Span
    text: str


GPU_MODEL = "GPU"
SPEC_PATH = "path"
OWNER = "owner"


class Reference(NamedTuple):
    """A name that does not exist, or may not."""

    kind: str
    """Kind of the specs that have such names; `GPU_MODEL`; `SPEC_PATH`: files or a directory of specs; `OWNER`: a team
    in an entry of `owners`."""
    name: str
    meant: str = ""
    """The name that was probably meant."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem of the input.

    `message` describes the problem with the value and the expected one; `label` follows the caret; `hint` is the
    remedy; `notes` name related places. `secret`: the text at the span must not be printed, so printers mask the line
    from there on.
    """

    code: str
    message: str
    span: Span
    severity: Severity = "error"
    label: str = ""
    hint: str = ""
    notes: tuple[Note, ...] = ()
    secret: bool = False
    rule: str = ""
    """Name of the policy that reported it."""
    fix: str = ""
    """Text that replaces the one at the span, if there is one remedy; `avactl validate --fix` writes it."""
    reference: Reference | None = None
    """The name that the problem is about, from which the causes of problems are found."""

    @property
    def id(self) -> str:
        """Return the code; for policies, with the policy's name: `policy/images-pinned`."""
        return f"{self.code}/{self.rule}" if self.code == "policy" and self.rule else self.code


class CompileError(Exception):
    """All problems of one compilation. Raised only by the library API; internally, problems are values."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(f"{d.span}: {d.severity}[{d.id}]: {d.message}" for d in self.diagnostics))


def sort_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Sort by file, line and column, then code, message and notes; drop exact duplicates."""
    return sorted(set(diagnostics), key=lambda d: (d.span, d.code, d.message, d.notes))
