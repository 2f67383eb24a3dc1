"""Scaffolding of a new spec repository for `avactl init`.

Files of `template/` and pipelines of forges, or of `examples/`, a link to those of the source tree.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from avactl import __version__
from avactl.base.templates import read_files
from avactl.compiler.json_schema import schema_files
from avactl.workbench.scaffold.choice import ScaffoldChoice, adapt_template, requirement_line

REQUIREMENTS = "stacks/requirements.txt"
"""The avactl that compiles the repository; without Pulumi, it and the lock are in the root."""
LOCK = "stacks/requirements.lock"
"""The packages that it depends on, pinned with hashes."""


class ScaffoldError(Exception):
    """The repository cannot be created there."""


def template_files(choice: ScaffoldChoice | None = None) -> dict[str, bytes]:
    """Return the files of a new repository by path."""
    choice = choice or ScaffoldChoice()
    files = read_files(resources.files("avactl.workbench.scaffold") / "template")
    files[REQUIREMENTS] = files[REQUIREMENTS].replace(b"AVACTL", requirement_line(choice, __version__).encode())
    (engine,) = re.findall(rb"^pulumi==(\S+)", files[LOCK], re.MULTILINE)
    files = adapt_template(files, choice, engine.decode())
    for name, text in schema_files().items():
        files[f".avactl/schemas/{name}"] = text.encode()
    return files


def example_names() -> list[str]:
    """Return the names of the example repositories."""
    return sorted(entry.name for entry in (resources.files("avactl.workbench.scaffold") / "examples").iterdir())


def example_files(name: str) -> dict[str, bytes]:
    """Return the files of an example repository by path. Raises ScaffoldError."""
    if name not in example_names():
        raise ScaffoldError(f"no example `{name}`; there are: {', '.join(example_names())}")
    return read_files(resources.files("avactl.workbench.scaffold") / "examples" / name)


def create(directory: Path, files: dict[str, bytes] | None = None) -> list[str]:
    """Write a new repository, by default `template_files()`; return its files.

    Existing files are never overwritten. Raises ScaffoldError.
    """
    files = template_files() if files is None else files
    taken = [path for path in files if (directory / path).exists()]
    if taken:
        raise ScaffoldError(f"{directory / taken[0]} already exists")
    for path, data in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return sorted(files)
