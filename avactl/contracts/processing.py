"""Constants of dataset processing on which specs, compiled jobs and the programs in them agree."""

from __future__ import annotations

BESIDE = ".manifest"
"""End of the name of the directory beside a version that a processing makes: it has the version's manifest."""
MAX_SIDE = 16_384
"""Longest side of an image that a step makes, in pixels."""
