"""Access of clients to a forge."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Sleep = Callable[[float], None]
"""Waits for some seconds."""


class Connection(NamedTuple):
    """Access to one repository for the clients of a forge."""

    api: str
    """Root of the REST API, without a trailing slash."""
    project: str
    headers: dict[str, str]
    """Headers of each request, with the token."""
    token_name: str
    """Name of the token in messages."""
    sleep: Sleep

    def __repr__(self) -> str:  # keeps the token out of logs
        return f"<{self.project} at {self.api}>"
