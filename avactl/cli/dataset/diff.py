"""`avactl dataset diff`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.exit_codes import CHANGES
from avactl.base.terminal import use_colour
from avactl.cli.options import Output, OutputFormat


def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Manifest of the old version.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Manifest of the new version.")],
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of changes shown; 0: all.")] = 50,
    format: OutputFormat = Output.text,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 4 if there are changes.")] = False,
) -> None:
    """Compare two manifests: objects added, removed, changed and relabeled, with counts and bytes.

    Versions in different directories are compared by the paths below these. Memory does not grow with the manifests.
    """
    from avactl.datasets.compare import compare
    from avactl.datasets.comparison_output import write_json, write_text
    from avactl.datasets.progress import PackProgress

    with PackProgress(sys.stderr, silent=not limit and sys.stdout.isatty()) as progress:
        comparison = compare(old, new, progress)
        changes = comparison.changes(progress)
        if format is Output.json:
            write_json(sys.stdout, comparison, changes, limit)
        else:
            write_text(sys.stdout, comparison, changes, limit, use_colour())
    if exit_code and comparison.differs:
        raise typer.Exit(CHANGES)
