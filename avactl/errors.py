"""The base of errors that commands print."""

from __future__ import annotations


class HintedError(Exception):
    """An error with its remedy: the text is one line, `hint` another."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
