"""Results of checks of a cluster."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class CheckState(Enum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as well as it could."""
    FAILED = "missing"
    """Something that the specs need is missing or differs."""
    UNKNOWN = "unknown"
    """The account may not read what the check needs."""


class DoctorFinding(NamedTuple):
    """One row of the report."""

    check: str
    """The check, such as `storage`; findings of one check are adjacent."""
    state: CheckState
    message: str
    remedy: str = ""
