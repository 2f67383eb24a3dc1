"""`avactl models`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avactl.base.exit_codes import MISSING, USAGE
from avactl.base.terminal import json_output
from avactl.cli.common import exit_with, open_repository, report_problems
from avactl.cli.environments import EnvironmentOption
from avactl.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from avactl.compiler import Compilation
    from avactl.contracts.delivery import VersionLineage
    from avactl.daemons.delivery.models import DeliveredModel

Endpoint = Annotated[str, typer.Option(help="URL of an S3 service. Default: AWS_ENDPOINT_URL.")]


def models(
    name: Annotated[str, typer.Argument(help="Model: NAME or TEAM/NAME.", show_default="all")] = "",
    path: Annotated[Path, typer.Option("--specs", metavar="DIR", help="Directory of the specs.")] = Path(),
    offline: Annotated[bool, typer.Option("--offline", help="Only what the specs say: ask no object store.")] = False,
    endpoint: Endpoint = "",
    environment: EnvironmentOption = "",
    format: OutputFormat = Output.text,
) -> None:
    """List versions of models: what they were made from, their metrics, and which services serve them."""
    from avactl.daemons.delivery.models import model_entries, published_versions
    from avactl.datasets.errors import DatasetError, ObjectStoreError

    chosen = find(compile_specs(path), name)
    known: list[tuple[DeliveredModel, dict[int, VersionLineage]]] = []
    failed = ""
    for model in chosen:
        versions = {}
        if model.directory and not offline:
            try:
                versions = published_versions(model.directory, endpoint)
            except (DatasetError, ObjectStoreError) as error:
                failed = f"{model.directory}: {error}"
        known.append((model, versions))
    found = model_entries(known)
    if format is Output.json:
        sys.stdout.write(json_output(found))
    else:
        _write(found)
    if failed:
        exit_with(failed, MISSING, "set the store's credentials, or `--offline` for what the specs say")


def compile_specs(path: Path) -> Compilation:
    """Compile the specs of a directory; exits if they have errors."""
    from avactl.compiler import compile_tree

    tree, _ = open_repository([path])
    compilation = compile_tree(tree)
    if not compilation.ok:
        report_problems(compilation, tree)
    return compilation


def find(compilation: Compilation, name: str) -> list[DeliveredModel]:
    """Return the models of that name, or all; exits if there is none."""
    from avactl.daemons.delivery.models import list_models as suitable_models
    from avactl.diagnostics.suggest import did_you_mean

    every = suitable_models(compilation.program)
    found = [each for each in every if not name or name in (each.name, str(each))]
    if not found and name:
        exit_with(f"no model is named {name}", USAGE, did_you_mean(name, [each.name for each in every], "models"))
    return found


def _write(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from avactl.cli.cluster.cluster_session import plain_text, write

    if not found:
        print("no models with a URL")
        return
    table = Table("model", "version", "metrics", "from", "commit", "served by", box=None, pad_edge=False)
    for each in found:
        metrics = ", ".join(
            f"{key} {value:.6g}" for key, value in each["metrics"].items() if type(value) in (int, float)
        )
        cells = (each["model"], each["version"], metrics, each["cause"], each["commit"][:10], ", ".join(each["served"]))
        table.add_row(*map(plain_text, cells))
    write(table)
