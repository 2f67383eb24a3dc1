"""Pipelines of a new repository, as files of a forge's package."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from avactl.base.templates import read_files, substitute
from avactl.forges.forge import PipelineOptions


class PipelineFile(NamedTuple):
    """One file of the pipelines: the repositories that get it, and its changes."""

    applies: bool = False
    """Only if pipelines apply stacks."""
    publishes: bool = False
    """Only if pipelines publish rendered objects."""
    environments: tuple[tuple[str, str], ...] = ()
    """Changes for a repository with environments: text and replacement, in which `ENVIRONMENT_NAMES` stands for their
    names. A text that the file lacks is an error."""


MATRIX = "    strategy: {fail-fast: false, matrix: {environment: [ENVIRONMENT_NAMES]}}\n"
"""A job for each environment, in workflows with the syntax of GitHub Actions."""
PUBLISHED_BRANCHES = ("the branch `rendered`", "the branches `rendered-ENVIRONMENT`")
"""Change of a comment in pipelines that publish."""


def read_template(forge: str, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the files in `template/` of a forge's package, with parameters replaced by their values.

    Raises LookupError for a parameter that no file has.
    """
    data = read_files(resources.files(f"avactl.forges.{forge}") / "template")
    files = {path: text.decode() for path, text in data.items()}
    for name, value in parameters.items():
        if not any(name in text for text in files.values()):
            raise LookupError(f"the pipelines of {forge} have no {name}")
        files = {path: text.replace(name, value) for path, text in files.items()}
    return files


def choose_files(
    template: Mapping[str, str], files: Mapping[str, PipelineFile], options: PipelineOptions
) -> dict[str, str]:
    """Return the files of a template that a repository needs, adapted to its environments."""
    chosen = {}
    for path, file in files.items():
        if (options.applies or not file.applies) and (options.publishes or not file.publishes):
            chosen[path] = template[path]
            for old, new in file.environments if options.environments else ():
                new = new.replace("ENVIRONMENT_NAMES", ", ".join(options.environments))
                chosen[path] = substitute(chosen[path], old, new)
    return chosen
