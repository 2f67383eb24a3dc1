"""`avactl local run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import open_repository, report_problems
from avactl.cli.environments import EnvironmentOption


def run(
    file: Annotated[Path, typer.Argument(help="Spec file, or directory of a repository.")],
    name: Annotated[
        str, typer.Argument(help="Job or pipeline if there are several: NAME or TEAM/NAME.", show_default=False)
    ] = "",
    workers: Annotated[
        int | None, typer.Option(min=1, max=100_000, metavar="N", help="Number of workers. Default: the spec's.")
    ] = None,
    mount: Annotated[
        list[str], typer.Option(metavar="PATH=DIR", help="Use a directory for a mount path. Repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    environment: EnvironmentOption = "",
    directory: Annotated[
        Path, typer.Option("--directory", "-C", metavar="DIR", help="Checkout of the job's code.")
    ] = Path(),
) -> None:
    """Run a job, or the steps of a pipeline, as processes on this machine.

    They have the commands and the environment of its pods, without image and GPUs. Names of pods become loopback
    addresses, volumes become directories below `.avactl`. Ctrl-C ends all processes. The exit code is that of the job's
    leading pod.
    """
    from avactl.compiler import compile_tree
    from avactl.workbench.local.selection import select, select_pipelines
    from avactl.workbench.local.start import run as start
    from avactl.workbench.local.volumes import parse_mounts

    tree, asked = open_repository([file])
    compilation = compile_tree(tree)
    if not compilation.ok:
        report_problems(compilation, tree)
    files = [path for path in asked if file.is_file()] or [item.doc.file for item in compilation.program.items]
    pipelines = [] if workers else select_pipelines(compilation, set(files) if file.is_file() else (), name)
    if len(pipelines) == 1:
        from avactl.workbench.local.pipeline import run_pipeline

        item = pipelines[0]
        sys.exit(run_pipeline(item, compilation.program, compilation.manifests, directory, parse_mounts(mount)))
    selected = select(compilation, set(files) if file.is_file() else (), name, workers)
    sys.exit(start(selected, directory, parse_mounts(mount)))
