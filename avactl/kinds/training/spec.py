"""The TrainingJob kind: one run of training code."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from avactl.base.quantity import parse_quantity
from avactl.spec.schema.base import Env, Model, Resource
from avactl.spec.schema.compute import (
    Code,
    Compute,
    DatasetMount,
    GpuLinkCompute,
    HostNetwork,
    PodUser,
    Spot,
    StartWhen,
)
from avactl.spec.schema.monitoring import Notify
from avactl.spec.schema.pod_settings import PodSettings
from avactl.spec.schema.schedules import Schedule
from avactl.spec.schema.values import (
    AbsPath,
    Bytes,
    ClusterRef,
    Count,
    Duration,
    Image,
    Name,
    ObjectUrl,
    PodCpu,
    PositiveDuration,
    value_error,
)

Strategy = Literal["single", "parameterServer", "allReduce", "mpi", "elastic"]
Framework = Literal["pytorch", "tensorflow", "mxnet", "caffe", "custom"]
Priority = Literal["low", "normal", "high"]
SERVER_SHARE = Fraction(3, 4)
"""Share of a server's memory for parameters; the rest is for requests."""
MAX_SERVERS = 100_000


class OwnPod(Model):
    """Pod settings of one role."""

    pod: PodSettings | None = Field(
        None, description="Settings of these pods, in addition to those of the job's `pod`; the role's win."
    )


class Workers(GpuLinkCompute, OwnPod):
    """Pods that compute gradients."""

    replicas: Count = Field(1, description="Number of pods.")
    min: Count | None = Field(None, description="Minimum number of pods, for strategy `elastic`.")
    max: Count | None = Field(None, description="Maximum number of pods, for strategy `elastic`.")
    within: Annotated[str, Field(min_length=1, max_length=317)] | None = Field(
        None,
        description="Topology level from the cluster's `placement.levels`, such as topology.kubernetes.io/rack: all "
        "pods of the job must run in one domain of that level, or the job waits. Default: as close together as "
        "possible.",
    )


class Role(Compute, OwnPod):
    """Pods of another role: parameter servers, evaluator, MPI launcher."""

    replicas: Count = Field(1, description="Number of pods.")
    command: list[str] = Field(default_factory=list, description="Command. Default: the job's.")
    args: list[str] = Field(
        default_factory=list, description="Arguments. Default: the job's, if the command is the job's too."
    )


class Servers(Role):
    """Parameter servers."""

    parameters: Bytes | None = Field(
        None,
        description="Memory for parameters and their optimizer state on all servers, in bytes: there are as many "
        "servers as hold it in three quarters of their `memory`. Instead of `replicas`.",
    )

    @model_validator(mode="after")
    def _size(self) -> Self:
        if self.parameters is not None and "replicas" not in self.model_fields_set:
            needed = parse_quantity(self.parameters) / (parse_quantity(self.memory) * SERVER_SHARE)
            self.__dict__["replicas"] = min(max(1, ceil(needed)), MAX_SERVERS)
        return self


GroupName = Annotated[Name, Field(max_length=20)]


class WorkerGroup(GpuLinkCompute, OwnPod):
    """More workers, on other machines. Their indexes follow those of the workers before."""

    name: GroupName = Field(description="Name of the group; part of the pods' names.")
    replicas: Count = Field(1, description="Number of pods.")


class ServerGroup(Compute, OwnPod):
    """More parameter servers, on other machines. Their indexes follow those of the servers before."""

    name: GroupName = Field(description="Name of the group; part of the pods' names.")
    replicas: Count = Field(1, description="Number of pods.")


class Master(Model):
    """The job master: it hands out the data in tasks, knows which workers are alive, and keeps them in step."""

    cpu: PodCpu = Field("500m", description="CPU cores.")
    memory: Bytes = Field(
        "512Mi", description="Memory, in bytes. 1,000,000 tasks need about 150Mi, and 10,000,000 about 300Mi."
    )


class Stragglers(Model):
    """Workers of an elastic job that are far slower than the others."""

    action: Literal["replace", "report"] = Field(
        "replace",
        description="`replace`: such a worker leaves, and its Job makes a new pod, if possible on another node. "
        "`report`: `avactl jobs` shows it.",
    )
    below: Annotated[float, Field(ge=0.05, le=0.9)] = Field(
        0.5, description="Share of the median speed below which a worker is replaced."
    )
    after: Duration = Field("1m", description="How long it must be as slow as that.")


class HealthCheck(Model):
    """A test of the nodes before training starts: the workers test each other by all-reduces of small groups."""

    size: Bytes = Field("64Mi", description="Bytes that each all-reduce sums, or that are exchanged without PyTorch.")
    timeout: PositiveDuration = Field("2m", description="Time for one test.")
    wait: Duration = Field(
        "15m",
        description="How long the workers wait for one that has not started, such as a replaced one. Then they start "
        "unchecked, with a warning; if that worker had failed the test, the job fails.",
    )
    replacements: Annotated[int, Field(ge=0, le=1000)] = Field(
        4, description="Failing workers that are replaced at most, if possible on other nodes. Then the job fails."
    )
    slow: Literal["report", "replace"] = Field(
        "report", description="What happens to slow workers: a line in the log, or the same as to failing ones."
    )
    below: Annotated[float, Field(ge=0.05, le=0.9)] = Field(
        0.5, description="Share of the median speed below which a worker is slow."
    )


class Mpi(Model):
    """The MPI library of the image."""

    implementation: Literal["openmpi", "mpich", "intel"] = Field(
        "openmpi", description="`openmpi`: Open MPI 3 to 5; `mpich`: MPICH; `intel`: Intel MPI. It starts the ranks."
    )


def _not_a_directory(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("/"):
        hint = "write the size of a volume at /checkpoint, `volume: 100Gi`, or a URL: `path: s3://BUCKET/DIRECTORY`"
        raise value_error(f"`{value[:80]}` is a directory, not an object-store URL", hint)
    return value


class Checkpoint(Model):
    """Checkpoint location. The code reads AVACTL_CHECKPOINT_PATH, _EVERY (seconds) and _KEEP."""

    path: Annotated[ObjectUrl, BeforeValidator(_not_a_directory)] | None = Field(
        None, description="Directory in an object store."
    )
    volume: Bytes | None = Field(
        None,
        description="Size of a persistent volume mounted at /checkpoint, in bytes, instead of `path`. It holds data.",
    )
    every: PositiveDuration = Field("30m", description="How often.")
    keep: Count = Field(3, description="Number of checkpoints to keep.")
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What happens to the volume when the job is deleted."
    )

    @property
    def directory(self) -> str:
        """`path` without a slash at the end; "" for a volume."""
        return (self.path or "").rstrip("/")


class TensorBoard(Model):
    """A TensorBoard for the job."""

    logdir: str = Field("/logs", description="Log directory: a path on the job's log volume, or an object-store URL.")
    storage: Bytes = Field("10Gi", description="Size of the log volume, in bytes, if `logdir` is a path.")
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What happens to the log volume when the job is deleted."
    )


def _of_team(value: Any) -> Any:
    if isinstance(value, str) and "/" in value:
        raise value_error(
            f"`{value[:80]}` is not the name of a job", f"write `{value[:80].rpartition('/')[2]}`: jobs of the team"
        )
    return value


JobName = Annotated[Name, BeforeValidator(_of_team)]


class TrainingJobSpec(PodUser):
    """One run of training code."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the team's only cluster.")
    framework: Framework = Field("pytorch", description="Framework, which determines how pods discover each other.")
    strategy: Strategy = Field("single", description="Parallelization strategy.")
    image: Image = Field(description="Image of all roles.")
    command: list[str] = Field(
        default_factory=list,
        description="Command. Default: the image's. A Python command is launched by torchrun for PyTorch with strategy "
        "`allReduce`, or `elastic` with several GPUs per pod, and by mpirun or mpiexec.hydra for `mpi`.",
    )
    args: list[str] = Field(default_factory=list, description="Arguments.")
    env: Env = Field(default_factory=dict)
    pod: PodSettings | None = Field(None, description="Settings of the pods, with Kubernetes' key names.")
    code: Code | None = Field(None, description="Source of the code, if it is not in the image.")
    workers: Workers = Field(default_factory=Workers, description="Pods that compute gradients.")
    worker_groups: list[WorkerGroup] = Field(
        default_factory=list,
        max_length=16,
        description="More workers on other machines, for strategies `allReduce`, `parameterServer` and `mpi`.",
    )
    servers: Servers | None = Field(None, description="Parameter servers, for strategy `parameterServer`.")
    server_groups: list[ServerGroup] = Field(
        default_factory=list, max_length=16, description="More parameter servers on other machines."
    )
    launcher: Role | None = Field(None, description="Pod that runs mpirun, for strategy `mpi`.")
    evaluator: Role | None = Field(None, description="Pod that evaluates checkpoints, for TensorFlow.")
    master: Master | None = Field(
        None, description="Size of the job master, for strategy `elastic`, `consistency: ssp` and `backupWorkers`."
    )
    stragglers: Stragglers | None = Field(
        None,
        description="Replacement of slow workers, for strategy `elastic`. Default: one that works at less than half of "
        "the median speed for a minute is replaced, if more than `workers.min` run.",
    )
    consistency: Literal["bsp", "ssp", "asp"] = Field(
        "bsp",
        description="Parameter-server consistency: synchronous (`bsp`), at most `staleness` steps ahead (`ssp`), or "
        "asynchronous (`asp`). For `ssp`, the code calls the clock of the job master before each step.",
    )
    staleness: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="Maximum lead of the fastest worker, in steps, for `consistency: ssp`."
    )
    backup_workers: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0,
        description="Number of workers that a step does not wait for, for `consistency: bsp`: with 10 workers and 1 "
        "backup worker, the first 9 gradients of a step count. The code asks the clock of the job master before it "
        "pushes a gradient.",
    )
    health_check: HealthCheck | None = Field(
        None,
        description="Test of the nodes before training starts, for strategy `allReduce`; `{}` with the defaults. A "
        "worker that fails twice is replaced, if possible on another node. Default: none.",
    )
    mpi: Mpi | None = Field(None, description="MPI library, for strategy `mpi`. Default: Open MPI.")
    slots_per_worker: Count | None = Field(None, description="MPI slots per worker. Default: its number of GPUs, or 1.")
    host_network: HostNetwork | None = Field(
        None,
        description="Run the pods in the network of their machines. At most one pod that listens on the job's port "
        "runs on a machine. Needs `hostNetwork: true` in the namespace of the Team.",
    )
    datasets: list[DatasetMount] = Field(default_factory=list, description="Datasets to mount.")
    start_when: StartWhen | None = Field(None, description="What the pods wait for before they start.")
    locality: Literal["prefer", "require"] | None = Field(
        None,
        description="`prefer`: place pods on nodes whose cache worker holds most of the mounted datasets. `require`: "
        "only on nodes that hold a part of each. Needs the scheduler and the cache daemon. Default: anywhere.",
    )
    after: list[JobName] = Field(
        default_factory=list,
        max_length=16,
        description="Jobs of the team that must have succeeded before this one starts. Needs the scheduler.",
    )
    schedule: Schedule | None = Field(
        None, description="Run at certain times, for strategy `single`. Default: once, when the spec is applied."
    )
    checkpoint: Checkpoint | None = Field(None, description="Where and how often the job saves checkpoints.")
    priority: Priority = Field("normal", description="Scheduling priority within the team. Services preempt all jobs.")
    preemptible: bool = Field(True, description="Allow preemption; the job resumes later.")
    spot: Spot = Field(
        "never",
        description="Run workers on spot machines: `allow`, or `require` for nowhere else. An elastic job keeps its "
        "first `workers.min` workers off them; its other workers prefer them. Other roles never run there.",
    )
    restart_from_start: bool = Field(
        False,
        description="Let a job without a checkpoint run on spot machines: it then loses all of its work at times.",
    )
    retries: Annotated[int, Field(ge=0, le=1000)] = Field(
        3, description="Restarts of failed pods before the job fails."
    )
    timeout: PositiveDuration | None = Field(
        None,
        description="Longest run. With avactl's scheduler it counts from the start of the pods, and anew after a "
        "restart; otherwise from the creation of the job.",
    )
    ttl: Duration | None = Field(
        None, description="How long the job is kept after it ends. Default: the cluster's `defaultJobTtl`."
    )
    tensorboard: TensorBoard | None = Field(None, description="TensorBoard for the job.")
    log_volume: AbsPath | None = Field(
        None, description="Mount path of TensorBoard's log volume. Default: its `logdir`."
    )
    on_change: Literal["replace", "finish"] = Field(
        "replace",
        description="What happens to an active run when a change requires a new one. `replace`: stop it; the new run "
        "resumes from its checkpoint. `finish`: let it finish first; only `avactl reconcile` can "
        "wait; Pulumi, Flux and Argo CD replace it.",
    )
    notify: Notify | None = Field(None, description="Who is told of its state. Default: the team's `notify`.")
    suspended: bool = Field(False, description="Create the job without starting it.")


class TrainingJob(Resource):
    """One training run: on one GPU, one machine, or distributed: parameter servers, all-reduce, MPI, or elastic.

    Compiles to indexed Jobs, headless Services for addresses, ConfigMaps, a PodDisruptionBudget and the RBAC that
    the strategy needs.
    """

    KIND: ClassVar[str] = "TrainingJob"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["TrainingJob"] = Field("TrainingJob", description="`TrainingJob`.")
    spec: TrainingJobSpec = Field(description="The job.")
