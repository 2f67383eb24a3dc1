"""The model servers: their command lines, ports, probes and option files.

Sources: TensorFlow Serving `model_servers/main.cc`, `g3doc/serving_config.md` and `session_bundle_config.proto`;
Triton `src/command_line_parser.cc` and `docs/user_guide/model_repository.md`; TorchServe `docs/configuration.md` and
`docs/token_authorization_api.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from avactl.kinds.fields.values import seconds
from avactl.kinds.lowering.k8s import compact
from avactl.quantity import quantity

CONFIG = "/etc/avactl"
"""Mount path of `Server.files`."""
MODELS = "/models"
"""Directory of downloaded models; TensorFlow Serving images use it too."""
TORCHSERVE_STORE = "/home/model-server/model-store"
"""Model store of the TorchServe image."""


@dataclass(frozen=True, slots=True)
class Server:
    """Command, ports, probes and files of one service's server."""

    command: list[str]
    args: list[str]
    ports: dict[str, int]
    """Ports by name: `http`, and `grpc` and `metrics` if the server has them."""
    model_path: str
    """Download directory of the model files."""
    ready: str | None = None
    """HTTP path that returns 2xx when the model serves. None: defined by the spec's probe."""
    live: str | None = None
    """HTTP path that returns 2xx while the process is healthy."""
    metrics: tuple[int, str] | None = None
    """Port and path of Prometheus metrics."""
    files: dict[str, str] = field(default_factory=dict)
    """Option files by name, under CONFIG."""
    env: dict[str, str] = field(default_factory=dict)
    scratch: str | None = None
    """Directory that the server writes to."""


def server(spec: Any) -> Server:
    """Return the server of a `ServingDeploymentSpec`."""
    return _SERVERS[spec.runtime.name](spec)


def default_ports(runtime: str) -> dict[str, int]:
    """Default ports of a runtime by name, including those that only the runtime's own options can change."""
    return dict(_PORTS[runtime])


_PORTS: dict[str, dict[str, int]] = {
    "tensorflowServing": {"http": 8501, "grpc": 8500},
    "triton": {"http": 8000, "grpc": 8001, "metrics": 8002},
    # 8081 and 7071 are the management APIs, bound to localhost.
    "torchServe": {"http": 8080, "grpc": 7070, "metrics": 8082, "management": 8081, "grpc-management": 7071},
    "custom": {},
}


def ports(spec: Any) -> dict[str, int]:
    """All ports that the server listens on, by name."""
    result = default_ports(spec.runtime.name)
    if spec.runtime.port is not None:
        result["http"] = spec.runtime.port
    if spec.runtime.grpc_port is not None:
        result["grpc"] = spec.runtime.grpc_port
    return result


def _cores(spec: Any) -> int:
    """Whole CPU cores of a pod, at least 1. A server that counts the machine's cores starts too many threads."""
    return max(1, int(quantity(spec.resources.cpu)))


def _tensorflow_serving(spec: Any) -> Server:
    model, offered = spec.model, ports(spec)
    base = f"{MODELS}/{model.name}"
    path = "/monitoring/prometheus/metrics"
    files = {"monitoring.config": f'prometheus_config {{ enable: true, path: "{path}" }}\n'}
    args = [
        f"--port={offered['grpc']}",
        f"--rest_api_port={offered['http']}",
        f"--model_name={model.name}",
        f"--model_base_path={base}",
        f"--monitoring_config_file={CONFIG}/monitoring.config",
    ]
    if spec.batching is not None:
        batching = spec.batching
        files["batching.config"] = (
            f"max_batch_size {{ value: {batching.max_size} }}\n"
            f"batch_timeout_micros {{ value: {ceil(seconds(batching.max_delay) * 1_000_000)} }}\n"
            f"max_enqueued_batches {{ value: {batching.queue} }}\n"
            f"num_batch_threads {{ value: {_cores(spec)} }}\n"
        )
        args += ["--enable_batching=true", f"--batching_parameters_file={CONFIG}/batching.config"]
    return Server(
        command=["tensorflow_model_server"],
        args=args,
        ports=offered,
        # The server treats the numbered directories under its base path as versions.
        model_path=f"{base}/{model.version}",
        ready=f"/v1/models/{model.name}/versions/{model.version}",
        live=f"/v1/models/{model.name}",
        metrics=(offered["http"], path),
        files=files,
    )


def _triton(spec: Any) -> Server:
    model, offered = spec.model, ports(spec)
    return Server(
        command=["tritonserver"],
        args=[
            f"--model-repository={MODELS}",
            f"--http-port={offered['http']}",
            f"--grpc-port={offered['grpc']}",
            f"--metrics-port={offered['metrics']}",
        ],
        ports=offered,
        model_path=f"{MODELS}/{model.name}",
        ready=f"/v2/models/{model.name}/versions/{model.version}/ready",
        live="/v2/health/live",
        metrics=(offered["metrics"], "/metrics"),
    )


def _torchserve(spec: Any) -> Server:
    model, offered = spec.model, ports(spec)
    store = TORCHSERVE_STORE if model.url is None else MODELS
    last = (model.url or "").rstrip("/").rpartition("/")[2]
    archive = last if last.endswith(".mar") else f"{model.name}.mar"
    # Each worker loads the model again, and TorchServe starts one per machine core by default.
    workers = spec.resources.gpus or 1
    options: dict[str, str | int] = {
        "inference_address": f"http://0.0.0.0:{offered['http']}",
        "management_address": f"http://127.0.0.1:{offered['management']}",
        "metrics_address": f"http://0.0.0.0:{offered['metrics']}",
        "grpc_inference_address": "0.0.0.0",  # noqa: S104 - who may call is the NetworkPolicy's to say
        "grpc_inference_port": offered["grpc"],
        "grpc_management_address": "127.0.0.1",
        "grpc_management_port": offered["grpc-management"],
        "metrics_mode": "prometheus",
        # The keys would be random and differ between pods behind one address.
        "disable_token_authorization": "true",
        "default_workers_per_model": workers,
        "model_store": store,
        "load_models": f"{model.name}={archive}",
    }
    if spec.batching is not None:
        batching = spec.batching
        options["job_queue_size"] = batching.queue * batching.max_size
        options["models"] = (
            f'{{"{model.name}": {{"{model.version}": {{"defaultVersion": true, "marName": "{archive}", '
            f'"minWorkers": {workers}, "maxWorkers": {workers}, "batchSize": {batching.max_size}, '
            f'"maxBatchDelay": {ceil(seconds(batching.max_delay) * 1000)}}}}}}}'
        )
    scratch = "/tmp"  # noqa: S108 - in the container
    return Server(
        command=["torchserve"],
        args=["--start", "--foreground", "--ncs", "--ts-config", f"{CONFIG}/config.properties"],
        ports={name: port for name, port in offered.items() if name in ("http", "grpc", "metrics")},
        model_path=MODELS,
        ready="/ping",
        live="/ping",
        metrics=(offered["metrics"], "/metrics"),
        files={"config.properties": "".join(f"{key}={value}\n" for key, value in options.items())},
        # The image's own directories belong to a different user from the pod's.
        env={"TEMP": scratch, "LOG_LOCATION": f"{scratch}/logs", "METRICS_LOCATION": f"{scratch}/logs"},
        scratch=scratch,
    )


def _custom(spec: Any) -> Server:
    model = spec.model
    path = f"{MODELS}/{model.name}/{model.version}"
    return Server(
        command=[],
        args=[],
        ports=ports(spec),
        model_path=path,
        env=compact(
            AVACTL_MODEL_NAME=model.name,
            AVACTL_MODEL_VERSION=model.version,
            AVACTL_MODEL_PATH=path if model.url is not None else None,
        ),
    )


_SERVERS: dict[str, Callable[[Any], Server]] = {
    "tensorflowServing": _tensorflow_serving,
    "triton": _triton,
    "torchServe": _torchserve,
    "custom": _custom,
}
