"""`avactl dataset verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import PROBLEMS
from avactl.base.terminal import use_colour
from avactl.cli.common import TEXT, Format, render_machine
from avactl.cli.dataset.options import Endpoint, Follow

if TYPE_CHECKING:
    from avactl.datasets.verify import VerificationReport

_MAX_SHOWN_BYTES = 4 * 1024 * 1024
"""Largest manifest whose lines are shown, in bytes."""


def verify(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Manifest to check.")],
    store: Annotated[bool, typer.Option("--store", help="Compare names, sizes and ETags with the store.")] = False,
    content: Annotated[
        bool, typer.Option("--content", help="Read all content and compare checksums; includes --store.")
    ] = False,
    at: Annotated[
        str, typer.Option("--at", metavar="URL|DIR", help="Compare with a copy here; includes --store.")
    ] = "",
    prefix: Annotated[
        str,
        typer.Option(metavar="URL", help="Directory of all objects.", show_default="the one they have in common"),
    ] = "",
    format: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = TEXT,
    endpoint: Endpoint = "",
    follow: Follow = False,
) -> None:
    """Check a manifest: syntax, duplicates, and on request that the store still holds exactly these objects.

    Memory does not grow with the manifest. Exit codes: 0 all agrees, 1 it does not, 3 the store cannot be read.
    """
    from avactl.datasets.progress import PackProgress
    from avactl.datasets.verify import VerifyOptions
    from avactl.datasets.verify import verify_manifest as check

    options = VerifyOptions(prefix, store, content, at, endpoint, follow)
    with PackProgress(sys.stderr) as progress:
        report = check(manifest, options, progress)
    if format == TEXT:
        _print(report, manifest)
    elif format == "json":
        from avactl.base.terminal import json_output
        from avactl.datasets.verify import report_data

        sys.stdout.write(json_output(report_data(report)))
    else:
        sys.stdout.write(render_machine(report.problems, format))
    if report.counts:
        raise typer.Exit(PROBLEMS)


def _print(report: VerificationReport, manifest: Path) -> None:
    from avactl.datasets.verify import summary_lines
    from avactl.diagnostics.text import render_one

    small = report.problems and manifest.stat().st_size <= _MAX_SHOWN_BYTES
    text = manifest.read_text("utf-8", "replace") if small else None
    for problem in report.problems:
        sys.stdout.write(render_one(problem, lambda _: text, use_colour()) + "\n\n")
    hidden = report.counts.total() - len(report.problems)
    if hidden:
        sys.stdout.write(f"… and {hidden:,} more\n\n")
    sys.stdout.write("\n".join(summary_lines(report)) + "\n")
