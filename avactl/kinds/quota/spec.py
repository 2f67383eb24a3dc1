"""The Quota kind: how much of a cluster a team may use."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.kinds.base import Model, Resource
from avactl.kinds.fields.compute import GpuModel
from avactl.kinds.fields.values import AnyBytes, ClusterRef, Count, Cpu

Gpus = Annotated[int, Field(ge=0, le=1_000_000)]


class GpuQuota(Model):
    """GPUs of one model."""

    gpu: GpuModel = Field(description="GPU model.")
    guaranteed: Gpus = Field(description="GPUs that the team gets back within a reclaim when it wants them.")
    borrow: Gpus = Field(0, description="GPUs beyond that it may take while others leave them idle.")
    weight: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Share of idle GPUs against other teams.")


class Shape(Model):
    """Whole machines: `2 × 8 H100` counts as 16 guaranteed GPUs that stay together."""

    machines: Count = Field(description="How many machines.")
    gpus: Annotated[int, Field(ge=1, le=16)] = Field(description="GPUs on each.")
    gpu: GpuModel = Field(description="GPU model.")


class QuotaSpec(Model):
    """How much a team may use on one cluster."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the only one that the team works on.")
    gpus: list[GpuQuota] = Field(
        default_factory=list,
        description="GPUs by model. A model that stands neither here nor in `shapes` is not for the team.",
    )
    shapes: list[Shape] = Field(default_factory=list, description="Whole machines, guaranteed beside the GPUs above.")
    cpu: Cpu | None = Field(None, description="CPU cores in all; no limit if left out.")
    memory: AnyBytes | None = Field(None, description="Memory in all, bytes; no limit if left out.")
    storage: AnyBytes | None = Field(None, description="Storage requested by volumes in all, bytes.")
    pods: Count | None = Field(None, description="Pods in all.")
    pod_max_cpu: Cpu | None = Field(None, description="CPU cores of one container at the most.")
    pod_max_memory: AnyBytes | None = Field(None, description="Memory of one container at the most, bytes.")


class Quota(Resource):
    """What a team may use: GPUs by model, guaranteed and borrowed, CPU, memory, storage.

    Compiles to a ResourceQuota and a LimitRange in each of the team's namespaces, and to the team's leaf of the
    scheduler's quota tree. Kubernetes counts by namespace: over several namespaces only the scheduler counts exactly.
    A team without a quota on a cluster has no limits there.
    """

    KIND: ClassVar[str] = "Quota"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["Quota"] = Field("Quota", description="`Quota`.")
    spec: QuotaSpec = Field(description="The quota.")
