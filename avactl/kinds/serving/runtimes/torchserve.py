"""TorchServe, which is no longer maintained.

Sources, at 0.12.0: `docs/configuration.md` and `docs/token_authorization_api.md`; the end of maintenance: `README.md`
of pytorch/serve, "Limited Maintenance".
"""

from __future__ import annotations

from math import ceil

from avactl.kinds.serving.parts.models import MODELS
from avactl.kinds.serving.runtimes.server import CONFIG, Server
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.spec.schema.values import seconds

PORTS = {"http": 8080, "grpc": 7070, "metrics": 8082, "management": 8081, "grpc-management": 7071}
"""8081 and 7071 are the management APIs, bound to localhost."""
TORCHSERVE_STORE = "/home/model-server/model-store"
"""Model store of the TorchServe image."""


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> Server:
    """Return the server of one archive."""
    model = spec.served[0]
    store = TORCHSERVE_STORE if not model.is_fetched else MODELS
    last = (model.url or "").rstrip("/").rpartition("/")[2]
    archive = last if last.endswith(".mar") else f"{model.name}.mar"
    # Each worker loads the model again, and TorchServe starts one per machine core by default.
    workers = spec.resources.gpus or 1
    options: dict[str, str | int] = {
        "inference_address": f"http://0.0.0.0:{ports['http']}",
        "management_address": f"http://127.0.0.1:{ports['management']}",
        "metrics_address": f"http://0.0.0.0:{ports['metrics']}",
        "grpc_inference_address": "0.0.0.0",  # noqa: S104 - who may call is the NetworkPolicy's to say
        "grpc_inference_port": ports["grpc"],
        "grpc_management_address": "127.0.0.1",
        "grpc_management_port": ports["grpc-management"],
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
            f'{{"{model.name}": {{"{model.live[0]}": {{"defaultVersion": true, "marName": "{archive}", '
            f'"minWorkers": {workers}, "maxWorkers": {workers}, "batchSize": {batching.max_size}, '
            f'"maxBatchDelay": {ceil(seconds(batching.max_delay) * 1000)}}}}}}}'
        )
    scratch = "/tmp"  # noqa: S108 - in the container
    return Server(
        command=["torchserve"],
        args=["--start", "--foreground", "--ncs", "--ts-config", f"{CONFIG}/config.properties"],
        ports={name: port for name, port in ports.items() if name in ("http", "grpc", "metrics")},
        model_path=MODELS,
        ready="/ping",
        live="/ping",
        metrics=(ports["metrics"], "/metrics"),
        files={"config.properties": "".join(f"{key}={value}\n" for key, value in options.items())},
        # The image's own directories belong to a different user from the pod's.
        env={"TEMP": scratch, "LOG_LOCATION": f"{scratch}/logs", "METRICS_LOCATION": f"{scratch}/logs"},
        scratch=scratch,
    )
