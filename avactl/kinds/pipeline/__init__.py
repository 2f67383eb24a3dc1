"""The Pipeline kind: continuous training and delivery of a model."""

from __future__ import annotations

from avactl.kinds.pipeline.check import check, check_all
from avactl.kinds.pipeline.lower import STATE, lower
from avactl.kinds.pipeline.spec import Deploy, Metric, Pipeline, PipelineSpec, Publish, Train, Trigger, Validation
from avactl.kinds.pipeline.training import inner_specs
from avactl.kinds.pipeline.workload import WORKLOAD, facts
from avactl.program.registry import Kind

KIND = Kind(
    model=Pipeline,
    lower=lower,
    check=check,
    check_all=check_all,
    facts=facts,
    owned=(STATE,),
    workload=WORKLOAD,
    inner=inner_specs,
)

__all__ = ["KIND", "Deploy", "Metric", "Pipeline", "PipelineSpec", "Publish", "Train", "Trigger", "Validation"]
