"""The model servers: their command lines, ports, probes and option files, one module for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from avactl.kinds.serving.runtimes import custom, sglang, tensorflow_serving, torchserve, triton, vllm
from avactl.kinds.serving.runtimes.server import CONFIG, LLM_STARTUP, STARTUP, Dynamic, Server, Source
from avactl.kinds.serving.spec import ServingDeploymentSpec

__all__ = [
    "CONFIG", "LLM", "RUNTIMES", "Dynamic", "Runtime", "Server", "Source", "default_ports", "default_startup",
    "ports", "server",
]  # fmt: skip


class Runtime(NamedTuple):
    """A kind of model server."""

    title: str
    """Its name in messages."""
    ports: dict[str, int]
    """Default ports by name, including those that only the runtime's own options can change."""
    server: Callable[[ServingDeploymentSpec, dict[str, int]], Server]
    dynamic: Callable[[ServingDeploymentSpec], Dynamic] | None = None
    """Models that it loads while it runs; None: it serves one model."""
    numbered: bool = False
    """Versions are numbers, the names of directories."""


RUNTIMES: dict[str, Runtime] = {
    "tensorflowServing": Runtime(
        "TensorFlow Serving", tensorflow_serving.PORTS, tensorflow_serving.server, tensorflow_serving.dynamic, True
    ),
    "triton": Runtime("Triton", triton.PORTS, triton.server, triton.dynamic, True),
    "torchServe": Runtime("TorchServe", torchserve.PORTS, torchserve.server),
    "vllm": Runtime("vLLM", vllm.PORTS, vllm.server),
    "sglang": Runtime("SGLang", sglang.PORTS, sglang.server),
    "custom": Runtime("a custom server", custom.PORTS, custom.server),
}
LLM = ("vllm", "sglang")
"""Runtimes of large language models."""


def server(spec: ServingDeploymentSpec) -> Server:
    """Return the server of a `ServingDeploymentSpec`."""
    return RUNTIMES[spec.runtime.name].server(spec, ports(spec))


def default_startup(runtime: str) -> int:
    """Seconds that a server may take to start, unless the spec says otherwise."""
    return LLM_STARTUP if runtime in LLM else STARTUP


def default_ports(runtime: str) -> dict[str, int]:
    """Default ports of a runtime by name, including those that only the runtime's own options can change."""
    return dict(RUNTIMES[runtime].ports)


def ports(spec: ServingDeploymentSpec) -> dict[str, int]:
    """All ports that the server listens on, by name."""
    result = default_ports(spec.runtime.name)
    if spec.runtime.port is not None:
        result["http"] = spec.runtime.port
    if spec.runtime.grpc_port is not None:
        result["grpc"] = spec.runtime.grpc_port
    return result
