"""A new spec repository: `avactl init`. Files of `template/`; a leading `dot-` becomes a dot."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from avactl import __version__
from avactl.compiler.json_schema import schemas

REQUIREMENTS = "stacks/requirements.txt"
"""Names the version of avactl that the repository is compiled with."""


class ScaffoldError(Exception):
    """The repository cannot be made there."""


def _files(directory: Traversable, prefix: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in sorted(directory.iterdir(), key=lambda e: e.name):
        name = "." + entry.name.removeprefix("dot-") if entry.name.startswith("dot-") else entry.name
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            found |= _files(entry, f"{prefix}{name}/")
        else:
            found[prefix + name] = entry.read_bytes()
    return found


def template() -> dict[str, bytes]:
    """The files of a new repository by path."""
    files = _files(resources.files("avactl.scaffold") / "template")
    files[REQUIREMENTS] = files[REQUIREMENTS].replace(b"==VERSION", f"=={__version__}".encode())
    for name, text in schemas().items():
        files[f".avactl/schemas/{name}"] = text.encode()
    return files


def create(directory: Path) -> list[str]:
    """Write a new repository; returns its files. Nothing that is there is overwritten. Raises ScaffoldError."""
    files = template()
    taken = [path for path in files if (directory / path).exists()]
    if taken:
        raise ScaffoldError(f"{directory / taken[0]} is there already")
    for path, data in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return sorted(files)
