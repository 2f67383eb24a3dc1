"""Node condition from comparing the output of `nvidia-smi topo -m` with the machine type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from avactl.hardware.machine import Machine
from avactl.hardware.nvidia_topo import find
from avactl.hardware.topo_check import compare
from avactl.hardware.topo_matrix import MISSING, Matrix, read

_MOST = 5
"""Maximum number of differences in the message."""


class Verdict(NamedTuple):
    """Status, reason and message of the node condition."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def judge(machine: Machine, type_name: str, output: str) -> Verdict:
    """Compare the output of `nvidia-smi topo -m` on a machine with its type."""
    matrix = read(output, "output")
    if not isinstance(matrix, Matrix):
        said = next((line.strip()[:200] for line in output.splitlines() if line.strip()), None)
        message = matrix[0].message
        if matrix[0].code == MISSING:
            message = f"no matrix in: {said}" if said else "no output"
        return unknown("OutputDamaged", f"`nvidia-smi topo -m`: {message}")
    result = compare(machine, matrix, find(matrix))
    if result.differences:
        return Verdict("False", "TopologyDiffers", f"not a {type_name}: {_few(result.differences)}")
    infos = f" ({'; '.join(result.infos)})" if result.infos else ""
    return Verdict("True", "TopologyMatches", f"the machine is a {type_name}{infos}")


def unknown(reason: str, message: str) -> Verdict:
    """Return the verdict for a machine that could not be checked."""
    return Verdict("Unknown", reason, message)


def _few(differences: Sequence[str]) -> str:
    more = len(differences) - _MOST
    return "; ".join([*differences[:_MOST], *([f"… and {more} more"] if more > 0 else [])])
