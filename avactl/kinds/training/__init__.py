"""The TrainingJob kind: one run of training code."""

from __future__ import annotations

from avactl.kinds.training.check import check
from avactl.kinds.training.job_master import STATE_DATA
from avactl.kinds.training.lower import lower
from avactl.kinds.training.mpi import COMMANDS_DATA
from avactl.kinds.training.spec import Checkpoint, Master, Role, TensorBoard, TrainingJob, TrainingJobSpec, Workers
from avactl.kinds.training.workload import WORKLOAD, facts, impact
from avactl.program.registry import Kind

KIND = Kind(
    model=TrainingJob,
    lower=lower,
    check=check,
    facts=facts,
    owned=(COMMANDS_DATA, STATE_DATA),
    workload=WORKLOAD,
    impact=impact,
)

__all__ = ["KIND", "Checkpoint", "Master", "Role", "TensorBoard", "TrainingJob", "TrainingJobSpec", "Workers"]
