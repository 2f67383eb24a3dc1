"""The diagnostic value. Codes are public API: see `avactl.diagnostics.codes`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]


class Span(NamedTuple):
    """A place in a file. Lines and columns count from 1, columns in characters; `end_column` is exclusive."""

    file: str
    line: int = 1
    column: int = 1
    end_column: int = 0  # 0: one character

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Note(NamedTuple):
    """A second place that belongs to the problem, with what is to be seen there."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem of the input.

    `message` says what is wrong, with the value and what was expected; `label` stands behind the caret;
    `hint` is the remedy; `notes` name other places. `secret`: what stands at the span must not be printed, so
    printers cover the line from there on.
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
    """Name of the policy that found it."""

    @property
    def id(self) -> str:
        """The code, for policies with the name of the one that found it: `policy/images-pinned`."""
        return f"{self.code}/{self.rule}" if self.code == "policy" and self.rule else self.code


class CompileError(Exception):
    """All problems of one compilation. Raised only at the library's edge; inside, problems are values."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(f"{d.span}: {d.severity}[{d.id}]: {d.message}" for d in self.diagnostics))


def sort_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """By file, line and column, then code; exact repeats are dropped."""
    return sorted(set(diagnostics), key=lambda d: (d.span, d.code, d.message))
