"""The options `--environment` and `--source` of commands that compile a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import ENVIRONMENT, SOURCE, choose_environment, choose_source
from avactl.spec.repository.tree import DirTree, find_root


def _complete_environment(incomplete: str) -> list[str]:
    from avactl.compiler.config import load_config

    config, _ = load_config(DirTree(find_root(Path())))
    return [name for name in config.environments if name.startswith(incomplete)]


EnvironmentOption = Annotated[
    str,
    typer.Option(
        "--environment",
        metavar="NAME",
        help=ENVIRONMENT,
        callback=choose_environment,
        autocompletion=_complete_environment,
        show_default=False,
    ),
]
"""The name; a command need not use it, because it is chosen for the process."""

SourceOption = Annotated[
    str, typer.Option("--source", metavar="SOURCE", help=SOURCE, callback=choose_source, show_default=False)
]
"""Likewise chosen for the process."""
