"""Servers that avactl does not know."""

from __future__ import annotations

from avactl.kinds.serving.parts.models import MODELS
from avactl.kinds.serving.runtime import BatchingSupport, ModelServer, ServingRuntime
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.lowering.k8s import drop_none


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> ModelServer:
    """Return a server that is told its model by variables."""
    model = spec.served[0]
    path = f"{MODELS}/{model.name}/{model.live[0]}"
    return ModelServer(
        command=[],
        args=[],
        ports=ports,
        model_path=path,
        env=drop_none(
            AVACTL_MODEL_NAME=model.name,
            AVACTL_MODEL_VERSION=model.live[0],
            AVACTL_MODEL_PATH=path if model.is_fetched else model.path,
        ),
    )


RUNTIME = ServingRuntime(
    title="a custom server",
    version="",
    files="anything",
    aliases=("kserve", "tgi"),
    takes_path=True,
    versioned=True,
    server=server,
    batching=BatchingSupport(
        why="avactl cannot configure batching of custom runtimes",
        hint=lambda batching: "remove `batching` and configure the server through `args` or `env`",
    ),
)
