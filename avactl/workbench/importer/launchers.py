"""torchrun that joins no pods: avactl's variables for PyTorch would make it wait for others."""

from __future__ import annotations

import re

_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(run|launch)\b")
_NODES = re.compile(r"--nnodes[=\s]+[\"']?(?P<count>[^\s\"']+)")


def starts_alone(text: str) -> bool:
    """Return True if a program starts torchrun for one machine: `--nnodes` is 1 by default, unless PET_NNODES is set.

    Source: torch/distributed/run.py.
    """
    if not _TORCHRUN.search(text) or "PET_NNODES" in text:
        return False
    counts = [each["count"] for each in _NODES.finditer(text)]
    return "--standalone" in text or not counts or all(each in ("1", "1:1") for each in counts)
