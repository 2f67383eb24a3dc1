"""The Workspace kind: a place to edit and debug."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.kinds.base import Env, Model, Resource
from avactl.kinds.fields.compute import DatasetMount, GpuModel
from avactl.kinds.fields.values import AbsPath, Bytes, ClusterRef, Cpu, Duration, Image, NodePoolRef, Port


class WorkspaceSpec(Model):
    """A long-running container of one user, with a home directory that stays."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the only one that the team works on.")
    user: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^\S+$")] = Field(
        description="OIDC user who owns it."
    )
    image: Image | None = Field(None, description="Image. Default: the team's.")
    command: list[str] = Field(default_factory=list, description="Command. Default: the image's.")
    args: list[str] = Field(default_factory=list, description="Arguments.")
    env: Env = Field(default_factory=dict)
    cpu: Cpu | None = Field(None, description="CPU cores. Default: the team's.")
    memory: Bytes | None = Field(None, description="Memory, bytes. Default: the team's.")
    gpus: Annotated[float | int, Field(ge=0, le=16)] = Field(
        0, description="GPUs: a whole number, or a fraction of one (0.25, 0.5), which needs avactl's scheduler."
    )
    gpu: GpuModel | None = Field(None, description="GPU model; needed with GPUs where the cluster has several.")
    pool: NodePoolRef | None = Field(None, description="Node pool. Default: any.")
    storage: Bytes | None = Field(None, description="Home directory, bytes. Default: the team's.")
    home: AbsPath = Field("/home/user", description="Where the home is mounted; also HOME and the working directory.")
    port: Port = Field(8888, description="Port that the image's editor listens on.")
    datasets: list[DatasetMount] = Field(default_factory=list, description="Datasets to mount.")
    idle_timeout: Duration = Field(
        "2h",
        description="Jupyter kernels and terminals that were idle for so long are ended, which frees their memory and "
        "that of their GPUs; `0s`: never. The pod and its GPUs stay until `running: false`. Other editors find the "
        "seconds in AVACTL_IDLE_TIMEOUT.",
    )
    running: bool = Field(True, description="Whether it runs. The home stays when it does not.")
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What becomes of the home directory when the spec is deleted."
    )


class Workspace(Resource):
    """A user's own container to edit and debug in, with a home directory that stays.

    Compiles to a StatefulSet, a Service, a PersistentVolumeClaim, a NetworkPolicy and the editor's ConfigMap.
    """

    KIND: ClassVar[str] = "Workspace"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["Workspace"] = Field("Workspace", description="`Workspace`.")
    spec: WorkspaceSpec = Field(description="The workspace.")
