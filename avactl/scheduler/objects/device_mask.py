"""GPU indexes of a pod, as in its annotation and as a mask."""

from __future__ import annotations

from avactl.placement.allocation import MAX_GPUS


def parse_devices(text: str | None) -> int:
    """GPU indexes as in the annotation, `0,3`, as a mask; 0 for none or what is no such list."""
    mask = 0
    for part in (text or "").split(",", MAX_GPUS)[:MAX_GPUS]:
        if len(part) <= 2 and part.isdecimal() and int(part) < MAX_GPUS:
            mask |= 1 << int(part)
    return mask


def format_devices(mask: int) -> str:
    """A mask of GPUs as in the annotation."""
    return ",".join(str(gpu) for gpu in range(MAX_GPUS) if mask >> gpu & 1)
