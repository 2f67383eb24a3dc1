"""Errors of dataset commands: one line, a remedy, and the command's exit code."""

from __future__ import annotations

from avactl.base.errors import HintedError
from avactl.base.exit_codes import PROBLEMS, USAGE


class DatasetError(HintedError):
    """The data is not as it must be: a bad manifest, a file that changed, an unreadable image."""

    exit_code = PROBLEMS


class ChangedError(DatasetError):
    """An object is not the one that was listed."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}", "the data must not change while it is read; run the command again")


class ObjectStoreError(HintedError):
    """A store cannot be reached, or rejects a request."""


class ArgumentError(HintedError):
    """A location or an option is invalid."""

    exit_code = USAGE
