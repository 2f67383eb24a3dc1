"""The ServingDeployment kind: its model, checks and lowering."""

from __future__ import annotations

from avactl.kinds.registry import Kind
from avactl.kinds.serving.lower import lower
from avactl.kinds.serving.spec import (
    Batching,
    Probe,
    Replicas,
    ResourceClass,
    Runtime,
    ServedModel,
    ServingDeployment,
    ServingDeploymentSpec,
)

__all__ = [
    "KIND",
    "Batching",
    "Probe",
    "Replicas",
    "ResourceClass",
    "Runtime",
    "ServedModel",
    "ServingDeployment",
    "ServingDeploymentSpec",
]

KIND = Kind(model=ServingDeployment, lower=lower)
