"""Errors of checkpoints."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint could not be saved, or could not be restored."""


class TornError(CheckpointError):
    """A file is not a complete checkpoint."""
