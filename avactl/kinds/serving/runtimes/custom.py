"""Servers that avactl does not know."""

from __future__ import annotations

from typing import Any

from avactl.kinds.serving.models import MODELS, has_files, versions
from avactl.kinds.serving.runtimes.server import Server
from avactl.program.lowering.k8s import compact

PORTS: dict[str, int] = {}


def server(spec: Any, ports: dict[str, int]) -> Server:
    """Return a server that is told its model by variables."""
    model = spec.model
    path = f"{MODELS}/{model.name}/{versions(model)[0]}"
    return Server(
        command=[],
        args=[],
        ports=ports,
        model_path=path,
        env=compact(
            AVACTL_MODEL_NAME=model.name,
            AVACTL_MODEL_VERSION=versions(model)[0],
            AVACTL_MODEL_PATH=path if has_files(model) else model.path,
        ),
    )
