"""The Quota kind: a team's share of a cluster."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.spec.schema.base import Model, Resource
from avactl.spec.schema.compute import GpuModel
from avactl.spec.schema.values import AnyBytes, ClusterRef, Count, Cpu

Gpus = Annotated[int, Field(ge=0, le=1_000_000)]


class GpuQuota(Model):
    """Quota for one GPU model."""

    gpu: GpuModel = Field(description="GPU model.")
    guaranteed: Gpus = Field(description="GPUs reserved for the team; lent out when idle, reclaimed on demand.")
    borrow: Gpus = Field(0, description="GPUs beyond the guarantee that the team may borrow while they are idle.")
    weight: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="Relative share of idle GPUs among borrowing teams."
    )
    per_member: Gpus | None = Field(
        None,
        description="GPUs that one member of the team may use at a time, by `metadata.member` of specs, `user` of "
        "workspaces, and the account that creates other pods; the rest of their work waits. Specs without a member "
        "have no such limit. Needs avactl's scheduler. Default: the whole quota.",
    )


class Shape(Model):
    """Whole machines: `2 × 8 H100` counts as 16 guaranteed GPUs that stay together."""

    machines: Count = Field(description="Number of machines.")
    gpus: Annotated[int, Field(ge=1, le=16)] = Field(description="GPUs per machine.")
    gpu: GpuModel = Field(description="GPU model.")


class QuotaSpec(Model):
    """Resource limits of a team on one cluster."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the team's only cluster.")
    gpus: list[GpuQuota] = Field(
        default_factory=list,
        description="GPUs by model. Models listed neither here nor in `shapes` are not available to the team.",
    )
    shapes: list[Shape] = Field(default_factory=list, description="Whole machines, guaranteed in addition to `gpus`.")
    cpu: Cpu | None = Field(None, description="Total CPU cores. Default: no limit.")
    memory: AnyBytes | None = Field(None, description="Total memory, in bytes. Default: no limit.")
    storage: AnyBytes | None = Field(
        None, description="Total storage requested by volumes, in bytes. Default: no limit."
    )
    pods: Count | None = Field(None, description="Total number of pods. Default: no limit.")
    pod_max_cpu: Cpu | None = Field(None, description="Maximum CPU cores per container.")
    pod_max_memory: AnyBytes | None = Field(None, description="Maximum memory per container, in bytes.")


class Quota(Resource):
    """Resource limits of a team: GPUs by model (guaranteed and borrowed), CPU, memory, storage.

    Compiles to the team's leaf of the scheduler's quota tree, and to a ResourceQuota and a LimitRange in each of the
    team's namespaces. With the scheduler, the ResourceQuota limits storage and pods only; Kubernetes counts per
    namespace.
    A team without a quota on a cluster has no limits there.
    """

    KIND: ClassVar[str] = "Quota"
    SCOPE: ClassVar[Literal["team"]] = "team"
    PLATFORM_OWNED: ClassVar[bool] = True
    kind: Literal["Quota"] = Field("Quota", description="`Quota`.")
    spec: QuotaSpec = Field(description="The quota.")
