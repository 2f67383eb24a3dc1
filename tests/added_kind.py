"""A kind beside those of avactl, for tests of what follows from the registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from avactl.program import registry
from avactl.program.registry import Kind


@contextmanager
def added_kind(kind: Kind[Any]) -> Iterator[None]:
    """Add a kind to the registry, as its line in `_KINDS` would, while the block runs."""
    lifecycle = kind.workload.lifecycle if kind.workload else None
    entry = registry._Entry(kind.lower.__module__, lifecycle, kind.has_written)
    with patch.dict(registry._KINDS, {kind.name: entry}), patch.dict(registry._LOADED, {kind.name: kind}):
        yield
