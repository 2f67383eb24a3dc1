"""The TrainingJob kind: one run of training code."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.kinds.base import Env, Model, Resource
from avactl.kinds.fields.compute import Code, Compute, DatasetMount, GpuLinkCompute
from avactl.kinds.fields.values import AbsPath, Bytes, ClusterRef, Count, Duration, Image, ObjectUrl

Strategy = Literal["single", "parameterServer", "allReduce", "mpi", "elastic"]
Framework = Literal["pytorch", "tensorflow", "mxnet", "caffe", "custom"]
Priority = Literal["low", "normal", "high"]


class Workers(GpuLinkCompute):
    """The pods that compute gradients."""

    replicas: Count = Field(1, description="How many pods.")
    min: Count | None = Field(None, description="Fewest pods that may run, with strategy `elastic`.")
    max: Count | None = Field(None, description="Most pods that may run, with strategy `elastic`.")
    within: Annotated[str, Field(min_length=1, max_length=317)] | None = Field(
        None,
        description="Level of the cluster's `placement.levels`, e.g. topology.kubernetes.io/rack, of which one domain "
        "must hold all pods of the job; it waits for one. Default: as near as they fit.",
    )


class Role(Compute):
    """Pods with another task: parameter servers, evaluator, MPI launcher."""

    replicas: Count = Field(1, description="How many pods.")
    command: list[str] = Field(default_factory=list, description="Command. Default: the job's.")
    args: list[str] = Field(
        default_factory=list, description="Arguments. Default: the job's, where the command is the job's too."
    )


class Checkpoint(Model):
    """Where the job saves itself. The code reads AVACTL_CHECKPOINT_PATH, _EVERY (seconds) and _KEEP."""

    path: ObjectUrl | None = Field(None, description="Directory in an object store.")
    volume: Bytes | None = Field(None, description="Or a volume of this size, bytes, at /checkpoint. It holds data.")
    every: Duration = Field("30m", description="How often.")
    keep: Count = Field(3, description="How many are kept.")
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What becomes of the volume when the job is deleted."
    )


class TensorBoard(Model):
    """A TensorBoard beside the job."""

    logdir: str = Field("/logs", description="Log directory: a path on the job's log volume, or an object-store URL.")
    storage: Bytes = Field("10Gi", description="Size of the log volume, bytes, where logdir is a path.")
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What becomes of the log volume when the job is deleted."
    )


class TrainingJobSpec(Model):
    """One run of training code."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the only one that the team works on.")
    framework: Framework = Field("pytorch", description="Framework; decides how pods find each other.")
    strategy: Strategy = Field("single", description="How the work is spread over pods.")
    image: Image = Field(description="Image of all roles.")
    command: list[str] = Field(
        default_factory=list,
        description="Command. Default: the image's. A Python command is started by torchrun with PyTorch and strategy "
        "`allReduce` or `elastic`, and by mpirun with `mpi`.",
    )
    args: list[str] = Field(default_factory=list, description="Arguments.")
    env: Env = Field(default_factory=dict)
    code: Code | None = Field(None, description="Where the code comes from, when it is not in the image.")
    workers: Workers = Field(default_factory=Workers, description="The pods that compute gradients.")
    servers: Role | None = Field(None, description="Parameter servers, with strategy `parameterServer`.")
    launcher: Role | None = Field(None, description="The pod that runs mpirun, with strategy `mpi`.")
    evaluator: Role | None = Field(None, description="A pod that evaluates checkpoints, with TensorFlow.")
    consistency: Literal["bsp", "ssp", "asp"] = Field(
        "bsp", description="Parameter server: wait for all, run at most `staleness` steps ahead, or wait for nobody."
    )
    staleness: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="Steps that the fastest worker may be ahead, with `consistency: ssp`."
    )
    slots_per_worker: Count | None = Field(None, description="MPI slots of one worker. Default: its GPUs, or 1.")
    datasets: list[DatasetMount] = Field(default_factory=list, description="Datasets to mount.")
    checkpoint: Checkpoint | None = Field(None, description="Where the job saves itself.")
    priority: Priority = Field("normal", description="Who goes first in the team. All give way to services.")
    preemptible: bool = Field(True, description="Whether it may be stopped for others and go on later.")
    retries: Annotated[int, Field(ge=0, le=1000)] = Field(3, description="Restarts of failed pods before it fails.")
    timeout: Duration | None = Field(None, description="Longest run.")
    ttl: Duration | None = Field(None, description="How long it stays after its end. Default: the cluster's.")
    tensorboard: TensorBoard | None = Field(None, description="A TensorBoard beside it.")
    log_volume: AbsPath | None = Field(None, description="Mount the TensorBoard log volume here. Default: its logdir.")
    on_change: Literal["replace", "finish"] = Field(
        "replace",
        description="What becomes of a run that is under way when a change makes it another one. `replace`: it is "
        "stopped, and the new one goes on from its checkpoint. `finish`: it ends first; `avactl reconcile` alone can "
        "wait so long, Pulumi, Flux and Argo CD replace.",
    )
    suspended: bool = Field(False, description="Whether it waits for somebody to start it.")


class TrainingJob(Resource):
    """One run of training code: on one GPU, one machine, with parameter servers, all-reduce, MPI, or elastic.

    Compiles to indexed Jobs, headless Services for addresses, ConfigMaps, a PodDisruptionBudget and the RBAC that
    the strategy needs.
    """

    KIND: ClassVar[str] = "TrainingJob"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["TrainingJob"] = Field("TrainingJob", description="`TrainingJob`.")
    spec: TrainingJobSpec = Field(description="The job.")
