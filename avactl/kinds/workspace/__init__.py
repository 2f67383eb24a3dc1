"""The Workspace kind: its model, checks and lowering."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.kinds.workspace.check import check
from avactl.kinds.workspace.lower import REPLICAS, home_bytes, lower, workspace_image
from avactl.kinds.workspace.spec import Workspace, WorkspaceSpec
from avactl.kinds.workspace.workload import WORKLOAD, impact
from avactl.program.capacity.capacity import gpu_model
from avactl.program.program import Item, Program
from avactl.program.registry import Fact, Kind

__all__ = ["KIND", "Workspace", "WorkspaceSpec"]


def facts(item: Item[WorkspaceSpec], program: Program) -> Mapping[str, Fact]:
    """Owner and resources of the workspace."""
    spec = item.spec
    result: dict[str, Fact] = {"user": spec.user, "running": "yes" if spec.running else "no"}
    if spec.gpus:
        result["GPUs"] = f"{spec.gpus:g} {gpu_model(program, item.cluster, spec)}"
    if spec.spot != "never":
        result["spot"] = spec.spot
    result["home"] = home_bytes(item, program)
    result["image"] = workspace_image(item, program)
    return result


KIND = Kind(
    model=Workspace,
    lower=lower,
    check=check,
    facts=facts,
    workload=WORKLOAD,
    impact=impact,
    owned=(REPLICAS,),
    identity=lambda item: item.spec.user,
)
