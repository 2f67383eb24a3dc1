"""The ProcessingJob kind: a version of a dataset is made from another one."""

from __future__ import annotations

from avactl.kinds.processing.check import check, check_all
from avactl.kinds.processing.lower import lower
from avactl.kinds.processing.spec import ProcessingJob, ProcessingJobSpec
from avactl.kinds.processing.workload import WORKLOAD, facts
from avactl.kinds.training.job_master import STATE_DATA
from avactl.program.registry import Kind

KIND = Kind(
    model=ProcessingJob,
    lower=lower,
    check=check,
    check_all=check_all,
    facts=facts,
    owned=(STATE_DATA,),
    workload=WORKLOAD,
)

__all__ = ["KIND", "ProcessingJob", "ProcessingJobSpec"]
