"""Names that the compiled objects carry: the compiler writes them, the daemons read them."""

from __future__ import annotations

GROUP = "avactl.dev"
SCHEDULER_NAME = "avactl"
CONTROLLER = "avactl-scheduler"
"""Who writes events."""
POOL_LABEL = f"{GROUP}/pool"
GPU_LABEL = f"{GROUP}/gpu"
CONFIG_LABEL = f"{GROUP}/config"
TEAM_LABEL = f"{GROUP}/team"
GANG_LABEL = f"{GROUP}/gang"
GANG_SIZE = f"{GROUP}/gang-size"
"""Annotation of pods; as a label it is understood too, for pods that somebody writes by hand."""
LINK = f"{GROUP}/link"
LINK_POLICY = f"{GROUP}/link-policy"
GPU_SHARE = f"{GROUP}/gpu-share"
DEVICES = f"{GROUP}/devices"
PREEMPTIBLE = f"{GROUP}/preemptible"

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
"""Extended resources that are GPUs also where no pool says so."""
