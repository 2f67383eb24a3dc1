"""The TrainingJob kind: one run of training code."""

from __future__ import annotations

from avactl.kinds.registry import Kind
from avactl.kinds.training.check import check
from avactl.kinds.training.facts import facts
from avactl.kinds.training.lower import lower
from avactl.kinds.training.mpi import COMMANDS_DATA
from avactl.kinds.training.spec import Checkpoint, Role, TensorBoard, TrainingJob, TrainingJobSpec, Workers
from avactl.kinds.training.workload import WORKLOAD, impact

KIND = Kind(
    model=TrainingJob,
    lower=lower,
    check=check,
    facts=facts,
    owned=(COMMANDS_DATA,),
    workload=WORKLOAD,
    impact=impact,
)

__all__ = ["KIND", "Checkpoint", "Role", "TensorBoard", "TrainingJob", "TrainingJobSpec", "Workers"]
