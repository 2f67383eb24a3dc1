"""NVIDIA Triton Inference Server.

Sources, at 2.71 (26.07): `src/command_line_parser.cc`, `docs/user_guide/model_repository.md`,
`docs/user_guide/model_management.md` and `docs/user_guide/metrics.md`.
"""

from __future__ import annotations

from math import ceil

from avactl.kinds.serving.parts.models import LIVE, MODELS
from avactl.kinds.serving.queries import mean, rate, share_of_failures, sum_of_pods
from avactl.kinds.serving.runtime import BatchingSupport, DynamicModels, ModelServer, ModelSource, ServingRuntime
from avactl.kinds.serving.spec import Batching, ServingDeploymentSpec
from avactl.spec.schema.values import duration_seconds

_POLL = 10
"""Seconds between two scans of the model repository."""


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> ModelServer:
    """Return the server of one model, or of a repository that it scans."""
    args = [
        f"--model-repository={MODELS if spec.model is not None else LIVE}",
        f"--http-port={ports['http']}",
        f"--grpc-port={ports['grpc']}",
        f"--metrics-port={ports['metrics']}",
    ]
    if spec.model is not None:
        path = f"{MODELS}/{spec.model.name}"
        ready = f"/v2/models/{spec.model.name}/versions/{spec.model.live[0]}/ready"
    else:
        path, ready = MODELS, "/v2/health/ready"
        args += [
            "--model-control-mode=poll",
            f"--repository-poll-secs={_POLL}",
            # A model that cannot be loaded must not take those that serve out of the Service, nor end the server.
            "--strict-readiness=false",
            "--exit-on-error=false",
        ]
    return ModelServer(
        command=["tritonserver"],
        args=args,
        ports=ports,
        model_path=path,
        ready=ready,
        live="/v2/health/live",
        metrics=(ports["metrics"], "/metrics"),
    )


def dynamic(spec: ServingDeploymentSpec) -> DynamicModels:
    """Return the directories of the repository: of each model its configuration, and its versions one by one."""
    sources: list[ModelSource] = []
    health: dict[str, tuple[str, ...]] = {}
    for model in spec.served:
        if model.url is not None:
            sources.append(ModelSource(model, model.url, model.name, "", unnumbered=True))
            sources += [ModelSource(model, model.url, f"{model.name}/{version}", version) for version in model.live]
        health[model.name] = tuple(f"/v2/models/{model.name}/versions/{version}/ready" for version in model.live)
    return DynamicModels(tuple(sources), health)


def _batching_hint(batching: Batching) -> str:
    delay = ceil(duration_seconds(batching.max_delay) * 1_000_000)
    return (
        f"remove `batching` and add to config.pbtxt: `max_batch_size: {batching.max_size}` and "
        f"`dynamic_batching {{ max_queue_delay_microseconds: {delay} }}`"
    )


_REQUESTS = "nv_inference_request"
RUNTIME = ServingRuntime(
    title="Triton",
    version="26.07",
    files="the model's directory: `config.pbtxt`, `1/`, …",
    ports={"http": 8000, "grpc": 8001, "metrics": 8002},
    aliases=("tritonserver",),
    numbered=True,
    error_rate=share_of_failures(rate(f"{_REQUESTS}_failure"), rate(f"{_REQUESTS}_success")),
    latency=mean(f"{_REQUESTS}_duration_us", f"{_REQUESTS}_success"),
    metrics={"queue": sum_of_pods("nv_inference_pending_request_count")},
    images=("tritonserver",),
    image="nvidia/tritonserver",
    parser="getopt",
    server=server,
    batching=BatchingSupport(why="Triton configures batching in the model's config.pbtxt", hint=_batching_hint),
    dynamic=dynamic,
)
