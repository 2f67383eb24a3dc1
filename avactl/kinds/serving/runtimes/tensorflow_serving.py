"""TensorFlow Serving.

Sources, at 2.20.0: `model_servers/main.cc`, `model_servers/server.cc`, `g3doc/serving_config.md`,
`config/model_server_config.proto`, `config/log_collector_config.proto` and `session_bundle_config.proto`; metrics:
`servables/tensorflow/util.cc`.
"""

from __future__ import annotations

from math import ceil

from avactl.kinds.serving.parts.models import LIVE, MODELS, ServedModel
from avactl.kinds.serving.queries import p99, rate, share
from avactl.kinds.serving.runtime import (
    CONFIG,
    BatchingSupport,
    DynamicModels,
    ModelServer,
    ModelSource,
    ServingRuntime,
    cores,
)
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.spec.schema.values import duration_seconds

METRICS = "/monitoring/prometheus/metrics"
MODEL_LIST = f"{MODELS}/models.config"
"""List of models; beside them, because it is replaced only after the files that it names are there."""
_POLL = 10
"""Seconds between two readings of the list of models."""


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> ModelServer:
    """Return the server of one model with one version, or of a list of models that it reads again."""
    files = {"monitoring.config": f'prometheus_config {{ enable: true, path: "{METRICS}" }}\n'}
    args = [f"--port={ports['grpc']}", f"--rest_api_port={ports['http']}"]
    if spec.model is not None:
        model = spec.model
        base = f"{MODELS}/{model.name}"
        # The server treats the numbered directories under its base path as versions.
        path = f"{base}/{model.live[0]}"
        ready, live = f"/v1/models/{model.name}/versions/{model.live[0]}", f"/v1/models/{model.name}"
        args += [f"--model_name={model.name}", f"--model_base_path={base}"]
    else:
        # Liveness and readiness do not name a model: the list changes while the pods run.
        path, ready, live = MODELS, METRICS, METRICS
        args += [
            f"--model_config_file={MODEL_LIST}",
            f"--model_config_file_poll_wait_seconds={_POLL}",
            # Labels stand in the list from the start, when no version is loaded yet.
            "--allow_version_labels_for_unavailable_models=true",
        ]
    args.append(f"--monitoring_config_file={CONFIG}/monitoring.config")
    if spec.batching is not None:
        batching = spec.batching
        files["batching.config"] = (
            f"max_batch_size {{ value: {batching.max_size} }}\n"
            f"batch_timeout_micros {{ value: {ceil(duration_seconds(batching.max_delay) * 1_000_000)} }}\n"
            f"max_enqueued_batches {{ value: {batching.queue} }}\n"
            f"num_batch_threads {{ value: {cores(spec)} }}\n"
        )
        args += ["--enable_batching=true", f"--batching_parameters_file={CONFIG}/batching.config"]
    return ModelServer(
        command=["tensorflow_model_server"],
        args=args,
        ports=ports,
        model_path=path,
        ready=ready,
        live=live,
        metrics=(ports["http"], METRICS),
        files=files,
    )


def dynamic(spec: ServingDeploymentSpec) -> DynamicModels:
    """Return an entry of the list for each model, with a `specific` version policy and its labels."""
    entries: dict[str, str] = {}
    sources: list[ModelSource] = []
    health: dict[str, tuple[str, ...]] = {}
    for model in spec.served:
        listed = model.live
        if model.url is not None:
            sources += [
                ModelSource(model, model.url, f"{model.name}/{version}", _directory(model, version))
                for version in listed
            ]
        health[model.name] = tuple(f"/v1/models/{model.name}/versions/{version}" for version in listed)
        lines = [
            f'    name: "{model.name}"',
            f'    base_path: "{LIVE}/{model.name}"',
            '    model_platform: "tensorflow"',
            f"    model_version_policy {{ specific {{ {' '.join(f'versions: {version}' for version in listed)} }} }}",
            *(f'    version_labels {{ key: "{key}" value: {value} }}' for key, value in sorted(model.labels.items())),
        ]
        entries[model.name] = "  config {\n" + "\n".join(lines) + "\n  }\n"
    return DynamicModels(tuple(sources), health, entries)


def _directory(model: ServedModel, version: str) -> str:
    """Part of the URL below which a version is: `url` is the version itself, or has all of them."""
    return "" if model.version is not None else version


_REQUESTS = ":tensorflow:serving:request_count"
RUNTIME = ServingRuntime(
    title="TensorFlow Serving",
    version="2.20.0",
    files="the SavedModel",
    ports={"http": 8501, "grpc": 8500},
    aliases=("tf-serving", "tfserving"),
    # The server also has ModelService, with which clients could replace models, and the profiler.
    grpc_services=("tensorflow.serving.PredictionService",),
    numbered=True,
    versioned=True,
    labels=True,
    error_rate=share(rate(_REQUESTS, ',status!="OK"'), rate(_REQUESTS)),
    latency=p99(":tensorflow:serving:request_latency"),
    images=("tensorflow/serving", "tensorflow-serving"),
    name_options=("--model_name",),
    image="tensorflow/serving",
    server=server,
    batching=BatchingSupport(fields=("max_size", "max_delay", "queue")),
    dynamic=dynamic,
)
