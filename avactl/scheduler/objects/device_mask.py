"""GPU indexes of a pod: conversion between annotation and mask."""

from __future__ import annotations

from avactl.hardware.placement.allocation import MAX_GPUS


def parse_devices(text: str | None) -> int:
    """Parse GPU indexes such as `0,3` into a mask; 0 for an empty or invalid list."""
    mask = 0
    for part in (text or "").split(",", MAX_GPUS)[:MAX_GPUS]:
        if len(part) <= 2 and part.isdecimal() and int(part) < MAX_GPUS:
            mask |= 1 << int(part)
    return mask


def format_devices(mask: int) -> str:
    """Format a mask of GPUs for the annotation."""
    return ",".join(str(gpu) for gpu in range(MAX_GPUS) if mask >> gpu & 1)
