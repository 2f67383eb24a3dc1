"""The TrainingJob kind: one run of training code."""

from __future__ import annotations

from avactl.kinds.registry import Kind
from avactl.kinds.training.check import check
from avactl.kinds.training.facts import facts
from avactl.kinds.training.lower import lower
from avactl.kinds.training.mpi import COMMANDS_DATA
from avactl.kinds.training.spec import Checkpoint, Role, TensorBoard, TrainingJob, TrainingJobSpec, Workers

KIND = Kind(model=TrainingJob, lower=lower, check=check, facts=facts, owned=(COMMANDS_DATA,))

__all__ = ["KIND", "Checkpoint", "Role", "TensorBoard", "TrainingJob", "TrainingJobSpec", "Workers"]
