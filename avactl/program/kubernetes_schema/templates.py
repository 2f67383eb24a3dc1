"""Pods in objects of Kubernetes' own kinds."""

from __future__ import annotations

from typing import Any


def template_path(kind: str) -> tuple[str, ...] | None:
    """Return the path of the pod in a manifest of this kind; None if it has none."""
    if kind == "Pod":
        return ()
    if kind == "CronJob":
        return ("spec", "jobTemplate", "spec", "template")
    return ("spec", "template") if kind in ("Deployment", "StatefulSet", "ReplicaSet", "Job", "DaemonSet") else None


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path of mappings; an empty mapping if there is none."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
