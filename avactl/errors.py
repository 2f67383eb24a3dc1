"""The base of errors that commands print."""

from __future__ import annotations


class HintedError(Exception):
    """An error with a one-line message and, in `hint`, a one-line remedy."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
