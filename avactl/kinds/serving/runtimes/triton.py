"""NVIDIA Triton Inference Server.

Sources, at 2.59 (25.06): `src/command_line_parser.cc`, `docs/user_guide/model_repository.md` and
`docs/user_guide/model_management.md`.
"""

from __future__ import annotations

from avactl.kinds.serving.parts.models import LIVE, MODELS
from avactl.kinds.serving.runtimes.server import Dynamic, Server, Source
from avactl.kinds.serving.spec import ServingDeploymentSpec

PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
_POLL = 10
"""Seconds between two scans of the model repository."""


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> Server:
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
    return Server(
        command=["tritonserver"],
        args=args,
        ports=ports,
        model_path=path,
        ready=ready,
        live="/v2/health/live",
        metrics=(ports["metrics"], "/metrics"),
    )


def dynamic(spec: ServingDeploymentSpec) -> Dynamic:
    """Return the directories of the repository: of each model its configuration, and its versions one by one."""
    sources: list[Source] = []
    health: dict[str, tuple[str, ...]] = {}
    for model in spec.served:
        if model.url is not None:
            sources.append(Source(model, model.url, model.name, "", unnumbered=True))
            sources += [Source(model, model.url, f"{model.name}/{version}", version) for version in model.live]
        health[model.name] = tuple(f"/v2/models/{model.name}/versions/{version}/ready" for version in model.live)
    return Dynamic(tuple(sources), health)
