"""The spec kinds as typed classes: `from avactl.kinds import TrainingJob`.

The parts of a kind (`Workers`, `StorageTier`, …) live in its module: `from avactl.kinds.training import Workers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avactl.kinds.cache_tier import CacheTier as CacheTier
    from avactl.kinds.cluster import Cluster as Cluster
    from avactl.kinds.dataset import Dataset as Dataset
    from avactl.kinds.kubernetes_objects import KubernetesObjects as KubernetesObjects
    from avactl.kinds.machine_type import MachineType as MachineType
    from avactl.kinds.node_pool import NodePool as NodePool
    from avactl.kinds.pipeline import Pipeline as Pipeline
    from avactl.kinds.processing import ProcessingJob as ProcessingJob
    from avactl.kinds.quota import Quota as Quota
    from avactl.kinds.serving import ServingDeployment as ServingDeployment
    from avactl.kinds.team import Team as Team
    from avactl.kinds.training import TrainingJob as TrainingJob
    from avactl.kinds.workspace import Workspace as Workspace
    from avactl.spec.schema.base import Metadata as Metadata


def __getattr__(name: str) -> Any:
    # Import kinds on demand, so that a command that needs one kind does not pay for ten. Lower-case names are
    # submodules: `from avactl.program import registry` calls this function first, then imports.
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # `from avactl.program import registry` would call this function again for `registry`, so use the full module path.
    if name == "Metadata":
        from avactl.spec.schema.base import Metadata

        return Metadata
    from avactl.program.registry import get_model

    try:
        return get_model(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
