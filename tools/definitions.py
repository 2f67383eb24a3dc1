"""CustomResourceDefinitions of other projects, from their Go modules, for tests against a real API server."""

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tools.controlplane import BuildError, UnavailableError, progress
from tools.controlplane.build import cache_dir, make_once


class Release(NamedTuple):
    """A version of a Go module, its checksum in the notation of go.sum, and the folder of its definitions."""

    module: str
    version: str
    checksum: str
    folder: str


GATEWAY_API = Release(
    "sigs.k8s.io/gateway-api", "v1.7.0", "h1:duVnm7nO6oXfMMUWfcDoBph47CYR/ME3NGxccOVglaY=", "config/crd/standard"
)
PROMETHEUS_OPERATOR = Release(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    "example/prometheus-operator-crd",
)
KEDA = Release(
    "github.com/kedacore/keda/v2", "v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=", "config/crd/bases"
)


INFERENCE_EXTENSION = Release(
    "sigs.k8s.io/gateway-api-inference-extension",
    "v1.6.0",
    "h1:cjtwMJYcTnLXBYE5ffR1/hHhn7U1aIFfe2RITYmOXVA=",
    "config/crd/bases",
)
LEADER_WORKER_SET = Release(
    "sigs.k8s.io/lws", "v0.9.0", "h1:DcJCgxjjoGOx//QHZkeKpyiblxYq70aCRZNYSfykWyI=", "config/crd/bases"
)


class _Loader(yaml.CSafeLoader):
    """Reads the value `=`, a type of its own in YAML 1.1, as text. The files have megabytes: Python's takes seconds."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: str(node.value))


@cache
def definitions(release: Release, *plurals: str) -> tuple[Mapping[str, Any], ...]:
    """Return the definitions of the kinds with these plural names, fetched once into the cache of all runs.

    Raises UnavailableError without Go, BuildError if the module cannot be fetched or is not the pinned one.
    """
    folder = cache_dir() / "definitions" / f"{_short(release.module)}-{release.version}"
    make_once(folder, f"waiting for another fetch of {release.module}", lambda aside: _fetch(release, aside))
    files = {path.stem.rpartition("_")[2]: path for path in folder.glob("*_*.yaml")}  # GROUP_PLURAL.yaml
    return tuple(yaml.load(files[plural].read_bytes(), _Loader) for plural in plurals)


def _short(module: str) -> str:
    """Return the last word of a module's path that says which it is: a major version does not."""
    words = module.split("/")
    return words[-2] if words[-1] in ("v2", "v3") else words[-1]


def _fetch(release: Release, folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise UnavailableError(f"the definitions of {release.module} are unavailable: Go is not on PATH")
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOWORK": "off"}
    command = [go, "mod", "download", "-json", f"{release.module}@{release.version}"]
    with progress.step(f"fetching {release.module}", f"fetched {release.module}"):
        done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False)
    # Go refuses a module that needs a newer Go, after it has fetched the archive: definitions need none of its code.
    told = _answer(done.stdout)
    if not ("Zip" in told and "Sum" in told):
        raise BuildError(f"{' '.join(command[1:])} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    if told["Sum"] != release.checksum:
        raise BuildError(f"{release.module} {release.version} has checksum {told['Sum']}, not {release.checksum}")
    folder.mkdir()
    prefix = f"{release.module}@{release.version}/{release.folder}/"
    with zipfile.ZipFile(told["Zip"]) as archive:
        for name in archive.namelist():
            file = name.removeprefix(prefix)
            if name.startswith(prefix) and "/" not in file and file.endswith(".yaml"):
                (folder / file).write_bytes(archive.read(name))


def _answer(text: str) -> dict[str, Any]:
    """Return what Go says of a module; {} if it says nothing."""
    try:
        found: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return found
