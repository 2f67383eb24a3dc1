"""Faults of NVIDIA GPUs, from the output of `nvidia-smi -q -x`.

The driver's own verdict is `gpu_recovery_action` (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): it follows from the XIDs of a
GPU, and is gone once a reset or reboot has helped. Drivers without it (before R560) have only the counters of their
memory's errors. XIDs by themselves are not read: some are errors of programs, which any user can cause.
Sources: nvidia-smi(1); "GPU Memory Error Management", Error Recovery and Response Flags (docs.nvidia.com/deploy).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from avactl.contracts.gpu_faults import GpuFault
from avactl.contracts.scheduling import MAX_GPUS

_LOST = re.compile(
    r"GPU is lost|fallen off the bus|unable to determine the device handle|GPU requires reset", re.IGNORECASE
)
"""Messages of `nvidia-smi` about a GPU that does not answer. Others can then have other indexes, and containers may not
start on any of them (NVIDIA/libnvidia-container: "nvml error: gpu is lost")."""
_ABSENT = ("", "n/a", "none", "[n/a]", "requested functionality has been deprecated")
_ACTIONS = {
    "reset": (True, "needs a reset"),
    "gpu reset": (True, "needs a reset"),
    "reboot": (True, "needs a reboot of the machine"),
    "node reboot": (True, "needs a reboot of the machine"),
    "drain p2p": (True, "needs all peer-to-peer traffic to stop"),
    "drain and reset": (False, "is to be reset when its programs have ended"),
}
"""Recovery actions by the driver's words: True if programs on the GPU cannot go on meanwhile, and a description."""
_UNCORRECTABLE = (
    "dram_uncorrectable",
    "sram_uncorrectable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "double_bit/total",
)
"""Counters of uncorrectable errors since the driver was loaded, below `ecc_errors/volatile`."""


class GpuHealth(NamedTuple):
    """Answer about the GPUs of a machine."""

    gpus: int
    """GPUs that the driver knows."""
    faults: Sequence[GpuFault]


class HealthOutputError(ValueError):
    """The output is not that of `nvidia-smi -q -x`; the message says why."""


def read_health(output: str) -> GpuHealth:
    """Parse the output, with that of standard error. Raises HealthOutputError."""
    start = output.find("<?xml")
    end = output.rfind("</nvidia_smi_log>")
    if start < 0 or end < start:
        lost = _LOST.search(output)
        if lost is not None:
            return GpuHealth(0, [GpuFault(None, True, _line_of(output, lost.start()))])
        said = next((line.strip() for line in output.splitlines() if line.strip()), "no output")
        raise HealthOutputError(said[:200])
    text = output[start : end + len("</nvidia_smi_log>")]
    if "<!ENTITY" in text:
        raise HealthOutputError("it declares XML entities")
    try:
        log = ET.fromstring(text)  # noqa: S314 - without entities, it has no effect beyond its size
    except ET.ParseError as error:
        raise HealthOutputError(f"not XML: {error}") from None
    gpus = log.findall("gpu")
    faults = [fault for index, gpu in enumerate(gpus[:MAX_GPUS]) for fault in _faults_of(index, gpu)]
    # Names of processes are words of those who run them.
    fields = [part for gpu in gpus for part in gpu if part.tag != "processes"]
    texts = [output[:start], output[end:], *(text for part in fields for text in part.itertext())]
    told = next((text for text in texts if _LOST.search(text)), None)
    if told is not None:
        found = _LOST.search(told)
        faults.insert(0, GpuFault(None, True, _line_of(told, found.start() if found else 0)))
    return GpuHealth(len(gpus), faults)


def _line_of(output: str, position: int) -> str:
    """Return the line of a message, without XML tags around it."""
    start, end = output.rfind("\n", 0, position) + 1, output.find("\n", position)
    line = output[start : end if end >= 0 else None]
    return re.sub(r"</?[a-z_]+>", "", line).strip()


def _faults_of(index: int, gpu: ET.Element) -> Iterator[GpuFault]:
    """Yield the most severe fault of a GPU."""
    action = (gpu.findtext("gpu_recovery_action") or "").strip()
    if action.lower() not in _ABSENT:
        evict, text = _ACTIONS.get(action.lower(), (False, f"needs: {action}"))
        yield GpuFault(index, evict, text)
    elif _is_yes(gpu, "remapped_rows/remapped_row_failure"):
        yield GpuFault(index, False, "memory with errors cannot be remapped, the GPU is to be replaced")
    elif _is_yes(gpu, "retired_pages/pending_retirement") or _is_yes(gpu, "retired_pages/pending_blacklist"):
        yield GpuFault(index, False, "is to be reset, memory pages with errors are retired then")
    elif not action and (count := _count_uncorrectable(gpu)):
        yield GpuFault(index, False, f"{count} uncorrectable memory errors since the driver was loaded")
    elif (status := _fabric_status(gpu)) != "":
        yield GpuFault(index, False, f"not in the NVLink fabric: {status}")


def _is_yes(gpu: ET.Element, path: str) -> bool:
    return (gpu.findtext(path) or "").strip().lower() == "yes"


def _count_uncorrectable(gpu: ET.Element) -> int:
    texts = ((gpu.findtext(f"ecc_errors/volatile/{path}") or "").strip() for path in _UNCORRECTABLE)
    return sum(int(text) for text in texts if text.isdecimal() and len(text) < 10)


def _fabric_status(gpu: ET.Element) -> str:
    """Return why a GPU could not join the fabric of its NVSwitches; empty if it has, is about to, or has none."""
    state, status = ((gpu.findtext(f"fabric/{name}") or "").strip() for name in ("state", "status"))
    done = state.lower() == "completed" and status.lower() not in ("success", *_ABSENT)
    return status if done else ""
