"""The Workspace kind: a development environment."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.spec.schema.base import Env, Resource
from avactl.spec.schema.compute import TOLERATES, DatasetMount, GpuCount, GpuModel, PodUser, Spot, Tolerates
from avactl.spec.schema.exposure import Expose
from avactl.spec.schema.pod_settings import PodSettings
from avactl.spec.schema.values import AbsPath, Bytes, ClusterRef, Duration, Image, NodePoolRef, PodCpu, Port


class WorkspaceSpec(PodUser):
    """A long-running container of one user, with a persistent home directory."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the team's only cluster.")
    user: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^\S+$")] = Field(
        description="OIDC user who owns the workspace."
    )
    image: Image | None = Field(None, description="Image. Default: the team's.")
    command: list[str] = Field(default_factory=list, description="Command. Default: the image's.")
    args: list[str] = Field(default_factory=list, description="Arguments.")
    env: Env = Field(default_factory=dict)
    pod: PodSettings | None = Field(None, description="Settings of the pod, with Kubernetes' key names.")
    cpu: PodCpu | None = Field(None, description="CPU cores. Default: the team's.")
    memory: Bytes | None = Field(None, description="Memory, in bytes. Default: the team's.")
    gpus: GpuCount = Field(
        0, description="Number of GPUs, or a fraction of one (0.25, 0.5), which requires avactl's scheduler."
    )
    gpu: GpuModel | None = Field(None, description="GPU model; required for GPUs if the cluster has several models.")
    pool: NodePoolRef | None = Field(None, description="Node pool. Default: any.")
    tolerates: Tolerates = Field(default_factory=list, description=TOLERATES)
    storage: Bytes | None = Field(None, description="Size of the home directory, in bytes. Default: the team's.")
    home: AbsPath = Field(
        "/home/user", description="Mount path of the home directory; also HOME and the working directory."
    )
    shared_home: bool = Field(
        False,
        description="Let jobs on all nodes take code from the home directory: its volume is ReadWriteMany. Fixed when "
        "the volume is created.",
    )
    port: Port = Field(8888, description="Port of the image's editor.")
    expose: Expose | None = Field(
        None,
        description="Host under which the editor is reached from outside. The gateway or the editor must authenticate "
        "users.",
    )
    datasets: list[DatasetMount] = Field(default_factory=list, description="Datasets to mount.")
    idle_timeout: Duration = Field(
        "2h",
        description="Jupyter kernels and terminals idle for this long are stopped, which frees their host and GPU "
        "memory; `0s`: never. Other editors can read the value in seconds from AVACTL_IDLE_TIMEOUT.",
    )
    when_idle: Literal["keep", "stop"] = Field(
        "keep",
        description="`stop`: an editor without kernels, terminals and requests for `idleTimeout` ends, and the "
        "workspace stops once its editor ends with exit code 0. Its home is kept; `kubectl scale statefulset NAME "
        "--replicas=1` starts it. Needs avactl's scheduler. `keep`: the pod keeps its GPUs until `running: false`.",
    )
    preemptible: bool = Field(
        False,
        description="Allow workloads of the team with higher priority to preempt the workspace, idle or not. GPUs that "
        "the team has borrowed can be reclaimed in any case.",
    )
    spot: Spot = Field(
        "never",
        description="Run on spot machines: `allow`, or `require` for nowhere else. Needs `preemptible: true`, because "
        "sessions end with their machine.",
    )
    running: bool = Field(True, description="Run the workspace. The home directory is kept while it is stopped.")
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What happens to the home directory when the spec is deleted."
    )


class Workspace(Resource):
    """A user's development container with a persistent home directory.

    Compiles to a StatefulSet, a Service, a PersistentVolumeClaim, a NetworkPolicy, the editor's ConfigMap and, if it
    is exposed, a Service for the gateway with an HTTPRoute or Ingress.
    """

    KIND: ClassVar[str] = "Workspace"
    SCOPE: ClassVar[Literal["team"]] = "team"
    MEMBER_PATH: ClassVar[tuple[str, str]] = ("spec", "user")
    kind: Literal["Workspace"] = Field("Workspace", description="`Workspace`.")
    spec: WorkspaceSpec = Field(description="The workspace.")

    @property
    def member(self) -> str:
        """The user."""
        return self.spec.user
