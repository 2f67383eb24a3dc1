"""Faults of a machine's GPUs, as the message of a node condition: the node daemon writes it, the scheduler reads it.

A node condition has no other place for them. Effects are those of Kubernetes' taints: NoSchedule, and NoExecute for
GPUs on which running programs cannot go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts.scheduling import MAX_GPUS

MAX_FAULTS = MAX_GPUS + 1
"""Maximum number of faults in a message: one of each GPU, and one of the machine."""
MAX_TEXT_LENGTH = 100
"""Maximum number of characters that describe one fault."""
MAX_MESSAGE_LENGTH = 4096
"""Maximum number of characters that are parsed."""
_FAULT = re.compile(r"(?:GPU ([0-9]{1,2})|machine) (NoSchedule|NoExecute): ?([^;]*)").fullmatch


class GpuFault(NamedTuple):
    """A fault of one GPU, or of the whole machine."""

    gpu: int | None
    """Index of the GPU as `nvidia-smi` numbers them; None: which GPUs have it is not known, or all do."""
    evict: bool
    """True if programs that use the GPU cannot go on (NoExecute); False: only new ones must not start (NoSchedule)."""
    text: str


def render_faults(faults: Iterable[GpuFault]) -> str:
    """Return the message of the condition: `GPU 3 NoExecute: needs a reset; machine NoSchedule: …`."""
    return "; ".join(_render(fault) for fault in list(faults)[:MAX_FAULTS])


def _render(fault: GpuFault) -> str:
    where = "machine" if fault.gpu is None else f"GPU {fault.gpu}"
    text = visible_text(fault.text).replace(";", ",").strip()
    return f"{where} {'NoExecute' if fault.evict else 'NoSchedule'}: {shorten_middle(text, MAX_TEXT_LENGTH)}"


def parse_faults(message: str) -> Sequence[GpuFault]:
    """Return the faults of a message. Of a part that cannot be parsed, nothing is known but that there is a fault."""
    faults = []
    for part in message[:MAX_MESSAGE_LENGTH].split("; ")[:MAX_FAULTS]:
        match = _FAULT(part.strip())
        if match is None or int(match[1] or 0) >= MAX_GPUS:
            faults.append(GpuFault(None, False, shorten_middle(visible_text(part.strip()), MAX_TEXT_LENGTH)))
        else:
            faults.append(GpuFault(None if match[1] is None else int(match[1]), match[2] == "NoExecute", match[3]))
    return faults
