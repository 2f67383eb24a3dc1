"""The ServingDeployment kind: a model behind an address."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.kinds.base import Env, Model, Resource
from avactl.kinds.fields.compute import Compute
from avactl.kinds.fields.values import Bytes, ClusterRef, Count, Duration, Image, Name, ObjectUrl, Port, TeamRef

ResourceClass = Literal["gpu", "cpu", "io"]


class ServedModel(Model):
    """What is served. An init container downloads it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=63)] = Field(
        description="Name that clients ask for."
    )
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=63)] = Field(
        description="Version. TensorFlow Serving and Triton want a whole number."
    )
    url: ObjectUrl | None = Field(
        None,
        description="Where its files are: a SavedModel for TensorFlow Serving, a model's directory (`config.pbtxt`, "
        "`1/`) for Triton, a `.mar` file or a prefix that holds `NAME.mar` for TorchServe. Left out where the image "
        "has them.",
    )
    secret: Name | None = Field(
        None, description="Secret with the store's credentials. Default: that of the team's bucket that holds the URL."
    )
    size: Bytes = Field("10Gi", description="Space for its files, bytes.")


class Runtime(Model):
    """The server. The ready ones know their ports, probes and batching options."""

    name: Literal["tensorflowServing", "triton", "torchServe", "custom"] = Field(description="Which server.")
    image: Image = Field(description="Its image.")
    command: list[str] = Field(default_factory=list, description="Command. Default: the runtime's.")
    args: list[str] = Field(default_factory=list, description="Arguments behind the runtime's own.")
    port: Port | None = Field(None, description="HTTP port. Default: the runtime's. Needed with `custom`.")
    grpc_port: Port | None = Field(None, description="gRPC port. Default: the runtime's.")


class Replicas(Model):
    """How many pods under an autoscaler."""

    min: Count = Field(1, description="Fewest pods.")
    max: Count = Field(description="Most pods.")
    cpu_utilization: Annotated[int, Field(ge=1, le=100)] = Field(
        70, description="Mean CPU use that the autoscaler holds, percent of the request."
    )


class Probe(Model):
    """How to tell that a pod serves."""

    path: Annotated[str, Field(pattern=r"^/\S*$")] = Field(description="HTTP path.")
    port: Port | None = Field(None, description="Port. Default: the HTTP port.")
    period: Duration = Field("10s", description="How often.")
    timeout: Duration = Field("2s", description="How long one answer may take.")
    startup: Duration = Field("10m", description="How long loading the model may take.")


class Batching(Model):
    """Requests put together by TensorFlow Serving or TorchServe: helps at high load, costs `max_delay` at low."""

    max_size: Count = Field(description="Most requests in one batch.")
    max_delay: Duration = Field("5ms", description="How long a request waits for others.")
    queue: Count = Field(100, description="Most batches that wait.")


class ServingDeploymentSpec(Model):
    """A model behind an address."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the only one that the team works on.")
    model: ServedModel = Field(description="What is served.")
    runtime: Runtime = Field(description="The server.")
    resource_class: ResourceClass | None = Field(
        None,
        description="What it needs most. Different classes are put together on machines, equal ones apart. "
        "Default: `gpu` with GPUs, else `cpu`.",
    )
    resources: Compute = Field(default_factory=Compute, description="CPU, memory and GPUs of one pod.")
    replicas: Count | Replicas = Field(1, description="How many pods: a number, or bounds for an autoscaler.")
    env: Env = Field(default_factory=dict)
    probe: Probe | None = Field(None, description="How to tell that a pod serves. Default: the runtime's.")
    batching: Batching | None = Field(None, description="Requests put together.")
    max_surge: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="Pods beyond `replicas` in a rollout; with 0, one pod less serves meanwhile."
    )
    drain: Duration = Field("30s", description="How long a pod that stops goes on with the requests it has.")
    expose_to: list[TeamRef] = Field(default_factory=list, description="Teams whose pods may call it beside the owner.")


class ServingDeployment(Resource):
    """A model behind an address: TensorFlow Serving, Triton, TorchServe or a server of your own.

    Compiles to a Deployment, a Service and a headless one for balancing on the client, an autoscaler, a
    PodDisruptionBudget, a NetworkPolicy and, where the server reads its options from files, a ConfigMap.
    """

    KIND: ClassVar[str] = "ServingDeployment"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["ServingDeployment"] = Field("ServingDeployment", description="`ServingDeployment`.")
    spec: ServingDeploymentSpec = Field(description="The service.")
