"""Errors of local runs, which the command prints as one line with a remedy."""

from __future__ import annotations

from avactl.base.errors import HintedError
from avactl.base.exit_codes import MISSING, USAGE


class LocalRunError(HintedError):
    """The machine lacks something that the job needs."""

    exit_code = MISSING


class LocalUsageError(HintedError):
    """The command line does not fit the specs."""

    exit_code = USAGE
