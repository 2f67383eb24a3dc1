"""Which files of a repository hold specs."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable

CONFIG_FILE = "avactl.yaml"


def _covers(pattern: str, path: str) -> bool:
    pattern = pattern.removeprefix("./").rstrip("/")
    return pattern in (".", "", path) or path.startswith(f"{pattern}/") or fnmatch.fnmatchcase(path, pattern)


def spec_files(include: Iterable[str], exclude: Iterable[str], paths: Collection[str]) -> list[str]:
    """The paths that hold specs: YAML files, and Python files so that those not allowed are told.

    A directory with a `Pulumi.yaml` is a Pulumi project, and holds none.
    """
    projects = tuple(path.removesuffix("Pulumi.yaml") for path in paths if path.endswith("/Pulumi.yaml"))
    return [
        path
        for path in paths
        if path.endswith((".yaml", ".yml", ".py"))
        and path != CONFIG_FILE
        and not path.startswith(projects)
        and any(_covers(pattern, path) for pattern in include)
        and not any(_covers(pattern, path) for pattern in exclude)
    ]
