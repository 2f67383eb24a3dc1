"""Output of `nvidia-smi -q -x`, as far as it is read."""

from __future__ import annotations

from collections.abc import Mapping

HEALTHY = "<gpu_recovery_action>None</gpu_recovery_action>"


def health(faults: Mapping[int, str] | None = None, gpus: int = 8, usual: str = HEALTHY) -> str:
    """A log; `faults`: the elements of a GPU, by its index."""
    told = [(faults or {}).get(index, usual) for index in range(gpus)]
    logs = [
        f'<gpu id="00000000:{16 + index:02X}:00.0"><product_name>V100</product_name>{elements}</gpu>'
        for index, elements in enumerate(told)
    ]
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
    return f"{head}<nvidia_smi_log>\n<attached_gpus>{gpus}</attached_gpus>\n{chr(10).join(logs)}\n</nvidia_smi_log>\n"
