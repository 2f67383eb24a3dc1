"""The model servers: what a runtime tells the rest of the compiler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from avactl.base.quantity import quantity
from avactl.kinds.serving.parts.models import ServedModel
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.spec.schema.base import EnvSource

CONFIG = "/etc/avactl"
"""Mount path of `Server.files`."""
STARTUP, LLM_STARTUP = 600, 1800
"""Default limits for the start of servers, and of language-model servers, in seconds."""


@dataclass(frozen=True, slots=True)
class Server:
    """Command, ports, probes and files of one service's server."""

    command: list[str]
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
    scratch: str | None = None
    """Directory that the server writes to."""
    startup: int = STARTUP
    """Seconds that the server may take to load its models, unless the spec says otherwise."""
    timeout: int = 2
    """Seconds that an answer to a probe may take, unless the spec says otherwise."""


class Source(NamedTuple):
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
class Dynamic:
    """How a server loads and unloads the models of `spec.models` while it runs."""

    sources: tuple[Source, ...]
    health: dict[str, tuple[str, ...]]
    """HTTP paths that return 2xx when the versions of a model serve, by the name of the model."""
    config: dict[str, str] = field(default_factory=dict)
    """Entry of each model in the list that the server reads again; empty: the server scans the directory."""


def cores(spec: ServingDeploymentSpec) -> int:
    """Whole CPU cores of a pod, at least 1. A server that counts the machine's cores starts too many threads."""
    return max(1, int(quantity(spec.resources.cpu)))
