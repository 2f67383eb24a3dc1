"""The MachineType kind: what is inside of a GPU machine."""

from __future__ import annotations

from avactl.kinds.machine_type.lower import lower
from avactl.kinds.machine_type.spec import (
    Bandwidth,
    Gpus,
    MachineType,
    MachineTypeSpec,
    Nic,
    Nvlink,
    NvlinkPair,
    Switch,
)
from avactl.kinds.registry import Kind

__all__ = ["Bandwidth", "Gpus", "MachineType", "MachineTypeSpec", "Nic", "Nvlink", "NvlinkPair", "Switch"]

KIND = Kind(model=MachineType, lower=lower)
