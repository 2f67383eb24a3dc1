"""The ServingDeployment kind: a model server behind a Service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from avactl.diagnostics.suggest import one_of
from avactl.kinds.serving.parts.models import ADAPTERS, LIVE, MODELS, Adapter, ServedModel, exactly_one
from avactl.kinds.serving.parts.picker import EndpointPicker
from avactl.kinds.serving.parts.prefill import Prefill
from avactl.kinds.serving.parts.promotion import PromoteFrom
from avactl.kinds.serving.parts.rollout import Rollout
from avactl.kinds.serving.parts.scaling import ServerMetrics
from avactl.kinds.serving.runtime_facts import RETIRED, facts_of, runtime_names
from avactl.spec.schema.base import ConfigMapKey, Env, Model, Resource
from avactl.spec.schema.compute import Compute, DatasetMount, PodUser, Spot, StartWhen
from avactl.spec.schema.exposure import ExposePorts
from avactl.spec.schema.monitoring import Notify
from avactl.spec.schema.pod_settings import PodSettings
from avactl.spec.schema.values import (
    AbsPath,
    Bytes,
    ClusterRef,
    Count,
    Duration,
    Image,
    Percent,
    Port,
    PositiveDuration,
    TeamRef,
    value_error,
)

ResourceClass = Literal["gpu", "cpu", "io"]
if TYPE_CHECKING:
    RuntimeName = str
else:
    RuntimeName = Literal[runtime_names()]


class LanguageModel(Model):
    """Options of runtimes of large language models."""

    machines: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Machines that one replica is split over, with a pod on each: for models that need more GPUs than "
        "a machine has. More than one needs `leaderWorkerSet` of the Cluster.",
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="GPUs that each layer is split over. Default: the GPUs of one pod."
    )
    pipeline_parallel: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None,
        description="Stages that the layers are divided into. Default: `machines`, or what `tensorParallel` leaves; 1 "
        "with `prefill`.",
    )
    prefill: Prefill | None = Field(
        None,
        description="Disaggregated prefill: separate pods process prompts, and the others decode. Needs "
        "`leaderWorkerSet` of the Cluster. Default: each pod does both.",
    )
    endpoint_picker: EndpointPicker | None = Field(
        None,
        description="Program that chooses a pod for each request from the gateway: the route's backend is an "
        "InferencePool. Default: the gateway spreads requests itself.",
    )
    max_length: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="Maximum tokens of a request and its answer. Default: the model's."
    )
    gpu_memory: Percent | None = Field(
        None, description="Share of each GPU's memory for the model and its cache. Default: the server's."
    )
    adapters: Annotated[list[Adapter], Field(max_length=64)] = Field(
        default_factory=list, description="LoRA adapters of the model."
    )
    max_adapters: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="Adapters that one batch may use; more take GPU memory."
    )
    max_rank: Annotated[int, Field(ge=1, le=512)] = Field(16, description="Highest rank of an adapter.")


class Runtime(Model):
    """Model server. Built-in runtimes define their ports, probes and batching options."""

    name: RuntimeName = Field(description="Which server; `custom` is any other.")
    image: Image = Field(description="Its image.")
    command: list[str] = Field(default_factory=list, description="Command. Default: the runtime's.")
    args: list[str] = Field(default_factory=list, description="Arguments appended to the runtime's own.")
    port: Port | None = Field(None, description="HTTP port. Default: the runtime's. Required for `custom`.")
    grpc_port: Port | None = Field(None, description="gRPC port. Default: the runtime's.")

    @field_validator("name", mode="before")
    @classmethod
    def _known_name(cls, value: Any) -> Any:
        if not isinstance(value, str) or value in runtime_names():
            return value
        word = value.casefold()
        for name, retired in RETIRED.items():
            if word == name.casefold():
                raise value_error(f"{retired.title} is no longer supported: {retired.why}", retired.instead)
        meant = next((name for name in runtime_names() if word in facts_of(name).aliases), None)
        if meant is not None:
            expected = f"expected {one_of(runtime_names())}, got string `{value}`"
            raise value_error(expected, f"did you mean `{meant}`?", meant)
        return value


class Replicas(Model):
    """Bounds for the autoscaler."""

    min: Annotated[int, Field(ge=0, le=100_000)] = Field(
        1,
        description="Fewest pods. With 0, the last one stops after `idle`, and the next request starts one: needs "
        "KEDA, `expose`, and `requests` or `queued` in `exposure` of the Cluster.",
    )
    idle: Duration | None = Field(
        None, description="With `min: 0`: time without requests after which the last pod stops. Default: `15m`."
    )
    max: Count = Field(description="Most pods.")
    cpu_utilization: Annotated[int, Field(ge=1, le=100)] = Field(
        70, description="Target average CPU utilization of the autoscaler, as a percentage of the request."
    )
    metrics: ServerMetrics | None = Field(
        None,
        description="Targets by metrics of the server, if the runtime has them, or by queries of your own, instead of "
        "the CPU: needs KEDA, and `prometheus` in `monitoring` of the Cluster.",
    )


def _http_path(value: str) -> str:
    if not re.fullmatch(r"/\S*", value):
        path = re.sub(r"^https?://[^/]*", "", value)
        raise value_error(f"`{value[:80]}` is not the path of a URL", f"write `/{path.strip().lstrip('/')[:80]}`")
    return value


HttpPath = Annotated[str, AfterValidator(_http_path), WithJsonSchema({"type": "string", "pattern": r"^/\S*$"})]


class Probe(Model):
    """Health check of a pod."""

    path: HttpPath = Field(description="HTTP path.")
    port: Port | None = Field(None, description="Port. Default: the HTTP port.")
    period: PositiveDuration = Field("10s", description="How often.")
    timeout: PositiveDuration = Field("2s", description="Timeout of one request.")
    startup: PositiveDuration = Field("10m", description="Maximum time to load the model.")


class Script(Model):
    """Program that checks the server: exit code 0 is healthy. Set one of `configMap` and `image`."""

    model_config = exactly_one("configMap", "image")

    config_map: ConfigMapKey | None = Field(None, description="ConfigMap and key with the script.")
    image: Image | None = Field(
        None, description="Image with the program, which an init container copies into the pod with its `cp`."
    )
    path: AbsPath | None = Field(None, description="Path of the program in `image`.")
    args: Annotated[list[str], Field(max_length=64)] = Field(default_factory=list, description="Its arguments.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.config_map is None) == (self.image is None):
            raise value_error("a script has either `configMap` or `image`", "write `configMap: {name: …, key: …}`")
        if (self.image is None) != (self.path is None):
            raise value_error("`image` and `path` belong together", "write `image: …, path: /check`")
        return self


class Check(Model):
    """One health check of a pod. Set one of `path` and `script`."""

    model_config = exactly_one("path", "script")

    path: HttpPath | None = Field(None, description="HTTP path that returns 2xx.")
    port: Port | None = Field(None, description="Port of `path`. Default: the HTTP port.")
    script: Script | None = Field(None, description="Program that runs in the server's container.")
    period: PositiveDuration = Field("10s", description="How often.")
    timeout: PositiveDuration = Field("5s", description="Timeout of one check; a script that takes longer is killed.")
    failures: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None,
        description="Failed checks in a row before the pod is restarted (startup, liveness) or gets no requests "
        "(readiness). Default: 3 of readiness, 6 of liveness, and as many as fit the runtime's time to start.",
    )

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        if (self.path is None) == (self.script is None):
            raise value_error("a check has either `path` or `script`", "write `path: /health`")
        if self.script is not None and self.port is not None:
            raise value_error("`port` is that of `path`, and a script has none", "remove `port`")
        return self


class Probes(Model):
    """Health checks of a pod, each on its own. Default of each: the runtime's."""

    startup: Check | None = Field(
        None, description="Has the server started? Until then nothing else is checked. Default: as readiness."
    )
    readiness: Check | None = Field(None, description="Does the pod get requests?")
    liveness: Check | None = Field(None, description="Is the server healthy? If not, it is restarted.")


class Batching(Model):
    """Server-side batching: improves throughput at high load, and may add up to `max_delay`. Which keys have an effect
    depends on the runtime: servers of language models add requests to a running batch, and have only `max_size`."""

    max_size: Count = Field(description="Maximum number of requests per batch.")
    max_delay: Duration = Field("5ms", description="Maximum time that a request waits for a batch.")
    queue: Count = Field(100, description="Maximum number of queued batches.")


class ServingDeploymentSpec(PodUser):
    """A model server behind a Service. Set one of `model` and `models`."""

    model_config = exactly_one("model", "models")

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the team's only cluster.")
    model: ServedModel | None = Field(None, description="Model to serve.")
    models: Annotated[list[ServedModel], Field(min_length=1, max_length=64)] | None = Field(
        None,
        description="Models to serve, for runtimes that load and unload them without a restart.",
    )
    models_size: Bytes = Field(
        "100Gi", description="Volume size for the files of all `models`, in bytes: a change starts new pods."
    )
    runtime: Runtime = Field(description="The server.")
    llm: LanguageModel | None = Field(None, description="Options of runtimes of large language models.")
    start_when: StartWhen | None = Field(
        None, description="Condition for starting pods. Default: start immediately and fill the cache while loading."
    )
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
    probes: Probes | None = Field(None, description="Startup, readiness and liveness apart, instead of `probe`.")
    balance: Literal["service", "headless", "gateway"] | None = Field(
        None,
        description="How requests reach the pods: by one address (`service`), by the addresses of all pods, among "
        "which clients choose (`headless`), or by the gateway of `expose`. Only the objects for it are compiled. "
        "Default: both Services.",
    )
    batching: Batching | None = Field(None, description="Server-side batching.")
    spot: Spot = Field("never", description="Run pods on spot machines: `allow`, or `require` for nowhere else.")
    max_surge: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="Extra pods during a rollout; with 0, one pod fewer serves during the rollout."
    )
    rollout: Rollout | None = Field(
        None, description="How a new version takes over: `rolling`, `canary` or `blueGreen`. Default: `rolling`."
    )
    promote_from: PromoteFrom | None = Field(
        None, description="Service of the team whose version this one gets once it is proven. Default: none."
    )
    notify: Notify | None = Field(None, description="Who is told of its state. Default: the team's `notify`.")
    drain: Duration = Field("30s", description="Time for a terminating pod to finish its requests.")
    expose_to: list[TeamRef] = Field(default_factory=list, description="Other teams whose pods may call the service.")
    expose: ExposePorts | None = Field(
        None,
        description="Hosts for the HTTP and the gRPC port, reachable from outside. Default: only inside the cluster.",
    )

    @field_validator("replicas", mode="before")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if type(value) is int and value == 0:
            raise value_error(
                "`0` is below 1", "write `replicas: {min: 0, max: 4}` for no pods while there are no requests"
            )
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.model is None) == (self.models is None):
            raise value_error("a service has either `model` or `models`", "write `model: {name: …, version: …}`")
        return self

    @property
    def served(self) -> list[ServedModel]:
        """The models, in the order of the spec."""
        return [self.model] if self.model is not None else list(self.models or ())

    @property
    def places(self) -> list[tuple[tuple[str | int, ...], ServedModel | Adapter]]:
        """Models and adapters, with their paths in the document."""
        found: list[tuple[tuple[str | int, ...], ServedModel | Adapter]]
        if self.model is not None:
            found = [(("spec", "model"), self.model)]
        else:
            found = [(("spec", "models", index), model) for index, model in enumerate(self.served)]
        adapters = self.llm.adapters if self.llm is not None else ()
        return [*found, *((("spec", "llm", "adapters", index), each) for index, each in enumerate(adapters))]

    def directory(self, model: ServedModel | Adapter) -> str:
        """Directory of a model's or adapter's files in the pod."""
        if isinstance(model, Adapter):
            return f"{ADAPTERS}/{model.name}"
        base = MODELS if self.model is not None else LIVE
        # Servers that compare their models do it by the path: they use the KV cache of another one with the same path.
        disaggregated = self.llm is not None and self.llm.prefill is not None
        if facts_of(self.runtime.name).versioned or disaggregated:
            return f"{base}/{model.name}/{model.live[0]}"
        return f"{base}/{model.name}"

    @property
    def datasets(self) -> list[DatasetMount]:
        """Datasets of the models and adapters, as they are mounted."""
        return [
            DatasetMount(name=each.dataset.name, version=each.dataset.version, mount=self.directory(each))
            for _, each in self.places
            if each.dataset is not None
        ]

    @property
    def grpc_services(self) -> tuple[str, ...]:
        """gRPC services that `expose` admits; empty: all."""
        chosen = self.expose.grpc.services if self.expose is not None and self.expose.grpc is not None else None
        return tuple(chosen) if chosen is not None else facts_of(self.runtime.name).grpc_services


class ServingDeployment(Resource):
    """A model server behind a Service, of one of the built-in runtimes or a custom one.

    Compiles to a Deployment, LeaderWorkerSet or DisaggregatedSet, a Service, a headless Service for client-side
    balancing, an autoscaler, a PodDisruptionBudget, a NetworkPolicy, an HTTPRoute, GRPCRoute or Ingress if it is
    exposed and, if the server reads options from files, a ConfigMap.
    """

    KIND: ClassVar[str] = "ServingDeployment"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["ServingDeployment"] = Field("ServingDeployment", description="`ServingDeployment`.")
    spec: ServingDeploymentSpec = Field(description="The service.")
