"""The base of errors that commands print."""

from __future__ import annotations

from avactl.base.exit_codes import MISSING


class HintedError(Exception):
    """An error with a one-line message and, in `hint`, a one-line remedy; `exit_code` is that of its command."""

    exit_code = MISSING

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
