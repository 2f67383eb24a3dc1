"""Faults that a node's conditions report, by the node daemon and by the health monitors of others.

Only kubelets and administrators can write a node's status; pods of teams, their annotations and their Events are not
read here. Conditions that a tenant can bring about by a program of its own are not believed: see `XID_OF_PROGRAMS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts import names
from avactl.contracts.gpu_faults import MAX_TEXT_LENGTH, parse_faults

MAX_CONDITIONS = 64
"""Maximum number of conditions that are read from one node."""

XID_OF_PROGRAMS = frozenset((13, 31, 43, 45, 68, 109))
"""XIDs that a program causes by itself, such as an illegal address. Source: internal/rm/health.go of NVIDIA's device
plugin."""


class NodeFault(NamedTuple):
    """A fault of a node, or of one of its GPUs."""

    condition: str
    """Type of the node condition that reports it."""
    gpu: int | None
    """Index of the GPU; None: which GPUs have it is not known."""
    evict: bool
    """True if programs that use the GPU cannot go on."""
    text: str

    def __str__(self) -> str:
        where = "" if self.gpu is None else f"GPU {self.gpu}: "
        return f"{where}{self.text} ({self.condition})"


_Reader = Callable[[Mapping[str, Any]], bool]
"""Returns True if a condition reports a fault."""


def _is_true(condition: Mapping[str, Any]) -> bool:
    return bool(condition["status"] == "True")


_REPAIRS = ("COMPONENT_RESET", "RESTART_VM", "RESTART_BM", "REPLACE_VM", "RUN_FIELDDIAG")
"""Actions that NVSentinel recommends for GPUs that do not work. With CONTACT_SUPPORT it also reports an IMEX daemon
that the machine does not need (NVIDIA/NVSentinel#1471)."""
_ACTION = re.compile(r"Recommended Action=([A-Z_]+)").findall


def _needs_repair(condition: Mapping[str, Any]) -> bool:
    return _is_true(condition) and not set(_REPAIRS).isdisjoint(_ACTION(condition.get("message") or ""))


_EKS_XID = re.compile(r"NvidiaXID([0-9]{1,4})Error").fullmatch
_NO_FAULTS_OF_EKS = ("DCGMError",)
"""Reasons by which EKS reports that its monitoring does not work."""


def _is_not_ready(condition: Mapping[str, Any]) -> bool:
    reason = condition.get("reason") or ""
    xid = _EKS_XID(reason)
    of_program = xid is not None and int(xid[1]) in XID_OF_PROGRAMS
    return condition["status"] == "False" and reason not in _NO_FAULTS_OF_EKS and not of_program


KNOWN_CONDITIONS: Mapping[str, _Reader] = {
    # NVSentinel: checks of GPUs and their switches, docs/INTEGRATIONS.md and platform-connectors.
    **dict.fromkeys(
        (
            "GpuInforomWatch",
            "GpuMemWatch",
            "GpuNvlinkWatch",
            "GpuNvswitchFatalWatch",
            "GpuPcieWatch",
            "GpuPmuWatch",
            "GpuSmWatch",
            "GpuXidError",
            "GpuXidWatch",
            "SysLogsGPUFallenOff",
            "SysLogsSXIDError",
            "SysLogsXIDError",
        ),
        _needs_repair,
    ),
    # EKS node monitoring agent, pkg/reasons/reasons.yaml.
    "AcceleratedHardwareReady": _is_not_ready,
    # Node Problem Detector of AKS. Its XIDErrors also reports XIDs of programs.
    "GPUMissing": _is_true,
    "NVLinkStatusInactive": _is_true,
    # Nebius, docs: Kubernetes, health checks.
    "NebiusGPUError": _is_true,
}
"""Conditions of others that report faults."""


def read_faults(conditions: Iterable[Mapping[str, Any]]) -> Sequence[NodeFault]:
    """Return the faults that the known conditions of a node report."""
    faults: list[NodeFault] = []
    for condition in list(conditions)[:MAX_CONDITIONS]:
        kind = condition["type"]
        if kind == names.GPUS_CONDITION:
            if condition["status"] == "False":
                faults += (NodeFault(kind, *fault) for fault in parse_faults(condition.get("message") or ""))
        elif kind in KNOWN_CONDITIONS and KNOWN_CONDITIONS[kind](condition):
            faults.append(_fault_of_condition(condition))
    return faults


def read_true_conditions(conditions: Iterable[Mapping[str, Any]]) -> Mapping[str, NodeFault]:
    """Return the conditions that are true, by type: a pool may name them as faults of its machines."""
    return {
        condition["type"]: _fault_of_condition(condition)
        for condition in list(conditions)[:MAX_CONDITIONS]
        if _is_true(condition) and condition["type"] not in _NO_FAULTS
    }


_NO_FAULTS = frozenset(("Ready", names.TOPOLOGY_CONDITION, names.GPUS_CONDITION))
"""Conditions of which the status True is good."""


def _fault_of_condition(condition: Mapping[str, Any]) -> NodeFault:
    said = condition.get("message") or condition.get("reason") or ""
    return NodeFault(condition["type"], None, True, shorten_middle(visible_text(said), MAX_TEXT_LENGTH) or "fault")


def reports_fault(condition: Mapping[str, Any]) -> bool:
    """Return True if a condition is, or may be for some pool, a fault."""
    return bool(read_faults([condition]) or read_true_conditions([condition]))


def faults_of(
    known: Sequence[NodeFault], others: Mapping[str, NodeFault], fault_conditions: Collection[str]
) -> Sequence[NodeFault]:
    """Return the faults of a node of a pool that names further conditions (`faultConditions`)."""
    told = {fault.condition for fault in known}
    return (*known, *(others[kind] for kind in fault_conditions if kind in others and kind not in told))
