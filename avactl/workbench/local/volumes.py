"""Volumes of a pod as directories.

Paths in the pod's variables and arguments are replaced by these directories: without privileges, nothing can be mounted
at `/data`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from avactl.program.lowering.pods import HOME
from avactl.workbench.local.errors import LocalUsageError

Body = dict[str, Any]
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - every machine has it


class LocalVolumes(NamedTuple):
    """Directories of one pod."""

    mounts: dict[str, str]
    """Mount path → local directory."""
    files: dict[Path, tuple[str, int]]
    """Files of ConfigMaps: text and mode."""
    directories: list[Path]
    """Directories to create."""


def make_volumes(
    spec: Body,
    container: Body,
    own: Path,
    claims: Path,
    config_maps: Mapping[str, Mapping[str, str]],
    given: Mapping[str, str],
    translate: Callable[[str], str],
) -> LocalVolumes:
    """Return the directories of a pod.

    `own`: directory of the pod; `claims`: of the volumes that outlive a run. `given`: mount paths with a directory that
    exists, which win.
    """
    result = LocalVolumes({}, {}, [])
    sources = {volume["name"]: volume for volume in spec.get("volumes", ())}
    for mount in container.get("volumeMounts", ()):
        path, source = mount["mountPath"], sources[mount["name"]]
        if path in given:
            result.mounts[path] = given[path]
        elif path == HOME:
            # Images have no home for their user; the caller has one.
            result.mounts[path] = str(Path.home())
        elif "subPath" in mount or path == _SHARED_MEMORY:
            continue
        elif "persistentVolumeClaim" in source:
            _add_directory(result, path, claims / source["persistentVolumeClaim"]["claimName"])
        elif "emptyDir" in source:
            _add_directory(result, path, own / mount["name"])
        elif "configMap" in source:
            directory = own / mount["name"]
            _add_directory(result, path, directory)
            wanted = source["configMap"]
            data = config_maps.get(wanted["name"], {})
            keys = {item["key"]: item["path"] for item in wanted.get("items", ())} or {key: key for key in data}
            mode = wanted.get("defaultMode", 0o644)
            result.files.update(
                {directory / name: (translate(data[key]), mode) for key, name in keys.items() if key in data}
            )
    return result


def _add_directory(result: LocalVolumes, path: str, directory: Path) -> None:
    result.mounts[path] = str(directory)
    result.directories.append(directory)


def parse_mounts(texts: list[str]) -> dict[str, str]:
    """Return mount paths with directories from `/PATH=DIRECTORY`. Raises LocalUsageError."""
    result = {}
    for text in texts:
        path, equals, directory = text.partition("=")
        if not equals or not path.startswith("/") or not directory:
            raise LocalUsageError(f"--mount {text}: not PATH=DIRECTORY", "such as `--mount /data=./sample`")
        if not Path(directory).is_dir():
            raise LocalUsageError(f"--mount {text}: {directory} is not a directory")
        result[path] = str(Path(directory).resolve())
    return result
