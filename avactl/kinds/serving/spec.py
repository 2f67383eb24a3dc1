"""The ServingDeployment kind: a model server behind a Service."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.kinds.base import Env, Model, Resource
from avactl.kinds.exposure.spec import Expose
from avactl.kinds.fields.compute import Compute, PodUser, Spot
from avactl.kinds.fields.values import Bytes, ClusterRef, Count, Duration, Image, Name, ObjectUrl, Port, TeamRef, bad
from avactl.kinds.monitoring.spec import Notify
from avactl.kinds.pod_settings.spec import PodSettings

ResourceClass = Literal["gpu", "cpu", "io"]


class ServedModel(Model):
    """Model to serve. An init container downloads it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=63)] = Field(
        description="Model name that clients request."
    )
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=63)] = Field(
        description="Version. TensorFlow Serving and Triton require an integer."
    )
    url: ObjectUrl | None = Field(
        None,
        description="Location of the model files: a SavedModel for TensorFlow Serving, a model directory "
        "(`config.pbtxt`, "
        "`1/`) for Triton, a `.mar` file or a prefix that contains `NAME.mar` for TorchServe. Omit it if the image "
        "has them.",
    )
    secret: Name | None = Field(
        None, description="Secret with the store's credentials. Default: that of the team bucket that contains the URL."
    )
    size: Bytes = Field("10Gi", description="Volume size for the model files, in bytes.")


class Runtime(Model):
    """Model server. Built-in runtimes define their ports, probes and batching options."""

    name: Literal["tensorflowServing", "triton", "torchServe", "custom"] = Field(description="Which server.")
    image: Image = Field(description="Its image.")
    command: list[str] = Field(default_factory=list, description="Command. Default: the runtime's.")
    args: list[str] = Field(default_factory=list, description="Arguments appended to the runtime's own.")
    port: Port | None = Field(None, description="HTTP port. Default: the runtime's. Required for `custom`.")
    grpc_port: Port | None = Field(None, description="gRPC port. Default: the runtime's.")


class Replicas(Model):
    """Bounds for the autoscaler."""

    min: Count = Field(1, description="Fewest pods.")
    max: Count = Field(description="Most pods.")
    cpu_utilization: Annotated[int, Field(ge=1, le=100)] = Field(
        70, description="Target average CPU utilization of the autoscaler, as a percentage of the request."
    )


def _http_path(value: str) -> str:
    if not re.fullmatch(r"/\S*", value):
        path = re.sub(r"^https?://[^/]*", "", value)
        raise bad(f"`{value[:80]}` is not the path of a URL", f"write `/{path.strip().lstrip('/')[:80]}`")
    return value


HttpPath = Annotated[str, AfterValidator(_http_path), WithJsonSchema({"type": "string", "pattern": r"^/\S*$"})]


class Probe(Model):
    """Health check of a pod."""

    path: HttpPath = Field(description="HTTP path.")
    port: Port | None = Field(None, description="Port. Default: the HTTP port.")
    period: Duration = Field("10s", description="How often.")
    timeout: Duration = Field("2s", description="Timeout of one request.")
    startup: Duration = Field("10m", description="Maximum time to load the model.")


class Batching(Model):
    """Server-side batching in TensorFlow Serving or TorchServe: improves throughput at high load, adds up to
    `max_delay`."""

    max_size: Count = Field(description="Maximum number of requests per batch.")
    max_delay: Duration = Field("5ms", description="Maximum time that a request waits for a batch.")
    queue: Count = Field(100, description="Maximum number of queued batches.")


class ServingDeploymentSpec(PodUser):
    """A model server behind a Service."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the team's only cluster.")
    model: ServedModel = Field(description="Model to serve.")
    runtime: Runtime = Field(description="The server.")
    resource_class: ResourceClass | None = Field(
        None,
        description="Dominant resource. Services of different classes are co-located, services of one class are "
        "spread. "
        "Default: `gpu` with GPUs, else `cpu`.",
    )
    resources: Compute = Field(default_factory=Compute, description="CPU, memory and GPUs per pod.")
    replicas: Count | Replicas = Field(1, description="Number of pods, or bounds for an autoscaler.")
    env: Env = Field(default_factory=dict)
    pod: PodSettings | None = Field(None, description="Settings of the pods, with Kubernetes' key names.")
    probe: Probe | None = Field(None, description="Health check of a pod. Default: the runtime's.")
    batching: Batching | None = Field(None, description="Server-side batching.")
    spot: Spot = Field("never", description="Run pods on spot machines: `allow`, or `require` for nowhere else.")
    max_surge: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="Extra pods during a rollout; with 0, one pod fewer serves during the rollout."
    )
    notify: Notify | None = Field(None, description="Who is told of its state. Default: the team's `notify`.")
    drain: Duration = Field("30s", description="Time for a terminating pod to finish its requests.")
    expose_to: list[TeamRef] = Field(default_factory=list, description="Other teams whose pods may call the service.")
    expose: Expose | None = Field(
        None, description="Host under which the HTTP port is reached from outside. Default: only inside of the cluster."
    )


class ServingDeployment(Resource):
    """A model server behind a Service: TensorFlow Serving, Triton, TorchServe or a custom server.

    Compiles to a Deployment, a Service, a headless Service for client-side balancing, an autoscaler, a
    PodDisruptionBudget, a NetworkPolicy, an HTTPRoute or Ingress if it is exposed and, if the server reads options from
    files, a ConfigMap.
    """

    KIND: ClassVar[str] = "ServingDeployment"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["ServingDeployment"] = Field("ServingDeployment", description="`ServingDeployment`.")
    spec: ServingDeploymentSpec = Field(description="The service.")
