"""Serving runtimes: the record of one, and what it tells the rest of the compiler about the server of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from avactl.base.quantity import parse_quantity
from avactl.base.terminal import join_words
from avactl.kinds.serving.parts.models import ServedModel
from avactl.kinds.serving.runtime_facts import RuntimeFacts, facts_of, runtime_names
from avactl.kinds.serving.spec import Batching, ServingDeploymentSpec
from avactl.spec.schema.base import EnvSource

CONFIG = "/etc/avactl"
"""Mount path of `ModelServer.files`."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """Command, ports, probes and files of one service's server."""

    command: list[str]
    """Empty: that of the image."""
    args: list[str]
    ports: dict[str, int]
    """Ports by name: `http`, and `grpc` and `metrics` if the server has them."""
    model_path: str
    """Download directory of the files of `spec.model`; with `spec.models`, the directory of all."""
    ready: str | None = None
    """HTTP path that returns 2xx when the model serves. None: defined by the spec's probe."""
    live: str | None = None
    """HTTP path that returns 2xx while the process is healthy."""
    metrics: tuple[int, str] | None = None
    """Port and path of Prometheus metrics."""
    files: dict[str, str] = field(default_factory=dict)
    """Option files by name, under CONFIG; read at startup only."""
    env: dict[str, str | EnvSource] = field(default_factory=dict)
    worker: list[str] = field(default_factory=list)
    """Arguments on the other machines of a replica, which answer no requests; empty: a replica is one pod."""
    timeout: int = 2
    """Seconds that an answer to a probe may take, unless the spec says otherwise."""


class ModelSource(NamedTuple):
    """Directory of a model that is copied while the pods run."""

    model: ServedModel
    url: str
    """Its location."""
    target: str
    """Path below the directory of models."""
    below: str
    """Part of the store's path below the model's URL."""
    unnumbered: bool = False
    """Leave out directories with a number as name, the versions, which are sources of their own."""


@dataclass(frozen=True, slots=True)
class DynamicModels:
    """How a server loads and unloads the models of `spec.models` while it runs."""

    sources: tuple[ModelSource, ...]
    health: dict[str, tuple[str, ...]]
    """HTTP paths that return 2xx when the versions of a model serve, by the name of the model."""
    config: dict[str, str] = field(default_factory=dict)
    """Entry of each model in the list that the server reads again; empty: the server scans the directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSupport:
    """Support of a server for the keys of `batching`."""

    fields: tuple[str, ...] = ()
    """Fields of `Batching` that have an effect; empty: `batching` is refused."""
    why: str = ""
    """Why the others, or all, have none."""
    hint: Callable[[Batching], str] = lambda batching: ""
    """Returns what to do instead, if all are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """How the prefill and decode pods of a runtime find each other and transfer the KV cache."""

    router: tuple[str, ...]
    """Command of its router."""
    router_options: tuple[str, ...]
    connector: str
    """Name of the transfer in llm-d's routing sidecar."""
    port: int
    """Port that a pod listens on for transfers."""
    options: Callable[[str], list[str]]
    """Returns the server's options for a role."""
    env: Mapping[str, str | EnvSource] = field(default_factory=dict)
    prefill_annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations that tell routers the ports of prefill pods."""
    same_stages: bool = False
    """True if decode replicas can have several pipeline stages where prefill replicas have as many."""
    compares_models: bool = False
    """True if a decode pod refuses the KV cache of another version of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelSupport:
    """Support of a server for the keys of `llm` that not every one has options for."""

    options: Mapping[str, str] = field(default_factory=dict)
    """Options by field of `llm`: `tensor_parallel`, `pipeline_parallel`, `max_length` and `gpu_memory` (a share from 0
    to 1). A key without an option is refused; `llm.model_options` writes them."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of `options` and of `data_parallel` on the server's command line, with the name there."""
    data_parallel: str = "--data-parallel-size"
    """Option for the number of copies of the model in a replica, each on GPUs of its own."""
    adapters: bool = False
    """True if it serves LoRA adapters, as models of their own."""
    machines: bool = False
    """True if a replica can have several machines, in a LeaderWorkerSet."""
    even_stages: bool = False
    """True if machines must divide pipeline stages evenly, or stages the machines."""
    disaggregation: Disaggregation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRuntime(RuntimeFacts):
    """A kind of model server."""

    server: Callable[[ServingDeploymentSpec, dict[str, int]], ModelServer]
    """Returns the server of a spec. Arguments: spec, ports."""
    batching: BatchingSupport
    image: str = ""
    """Repository of the images of the server's makers, without a registry."""
    parser: Literal["", "getopt", "argparse"] = ""
    """Reader of its options: `getopt` also takes the beginning of a name; Python's `argparse` also `_` for `-`, and
    `no-` before it. Others take the names as they are."""
    dynamic: Callable[[ServingDeploymentSpec], DynamicModels] | None = None
    """Returns the models that it loads while it runs; None: it serves one model."""
    llm: LanguageModelSupport | None = None
    """None: it is no server of large language models."""

    @property
    def is_generic(self) -> bool:
        """True for servers that avactl does not know: ports and probe are those of the spec."""
        return "http" not in self.ports


def runtime(name: str) -> ServingRuntime:
    """Return a runtime by its name. Raises ModuleNotFoundError."""
    found = facts_of(name)
    assert isinstance(found, ServingRuntime)
    return found


def runtimes() -> dict[str, ServingRuntime]:
    """Return all runtimes by name."""
    return {name: runtime(name) for name in runtime_names()}


def runtime_of(spec: ServingDeploymentSpec) -> ServingRuntime:
    """Return the runtime of a spec."""
    return runtime(spec.runtime.name)


def names_with(has: Callable[[ServingRuntime], object]) -> list[str]:
    """Return the names of the runtimes that have something."""
    return [name for name, each in runtimes().items() if has(each)]


def titles_with(has: Callable[[ServingRuntime], object]) -> str:
    """Return the titles of the runtimes that have something, for messages."""
    return join_words([each.title for each in runtimes().values() if has(each)])


def server(spec: ServingDeploymentSpec) -> ModelServer:
    """Return the server of a spec."""
    return runtime_of(spec).server(spec, ports(spec))


def ports(spec: ServingDeploymentSpec) -> dict[str, int]:
    """Return all ports that the server listens on, by name."""
    result = dict(runtime_of(spec).ports)
    if spec.runtime.port is not None:
        result["http"] = spec.runtime.port
    if spec.runtime.grpc_port is not None:
        result["grpc"] = spec.runtime.grpc_port
    return result


def disaggregation_of(spec: ServingDeploymentSpec) -> Disaggregation:
    """Return how a service with `prefill` transfers the KV cache; only of runtimes that can."""
    language_models = runtime_of(spec).llm
    assert language_models is not None
    assert language_models.disaggregation is not None
    return language_models.disaggregation


def cores(spec: ServingDeploymentSpec) -> int:
    """Return the whole CPU cores of a pod, at least 1: a server that counts the machine's starts too many threads."""
    return max(1, int(parse_quantity(spec.resources.cpu)))


def model_directory(spec: ServingDeploymentSpec) -> str:
    """Return the directory of the model in the pod, for a server that is told it."""
    model = spec.served[0]
    return spec.directory(model) if model.is_fetched else str(model.path)
