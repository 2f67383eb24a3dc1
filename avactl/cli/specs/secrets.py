"""`avactl secrets`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avactl.base.exit_codes import USAGE
from avactl.base.terminal import json_output
from avactl.cli.common import exit_with, open_repository, report_problems
from avactl.cli.completion import complete_cluster
from avactl.cli.environments import EnvironmentOption
from avactl.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from rich.table import Table

    from avactl.apply.doctor.secrets import SecretNeed


def secrets(
    path: Annotated[Path, typer.Argument(help="Repository.", show_default=".")] = Path(),
    cluster: Annotated[
        str, typer.Option(help="Only this cluster.", autocompletion=complete_cluster, show_default="all")
    ] = "",
    environment: EnvironmentOption = "",
    format: OutputFormat = Output.text,
) -> None:
    """List the Secrets that the specs need, with their keys, and the commands that create them. Shows no values."""
    from avactl.apply.doctor.secrets import needed_secrets
    from avactl.compiler import compile_tree
    from avactl.diagnostics.suggest import did_you_mean

    tree, _ = open_repository([path])
    compilation = compile_tree(tree)
    report_problems(compilation, tree)
    clusters = sorted({item.name for item in compilation.program.clusters()})
    if cluster and cluster not in clusters:
        hint = did_you_mean(cluster, clusters, "declared clusters")
        exit_with(f"cluster {cluster} is not declared in the specs", USAGE, hint)
    needs = [need for need in needed_secrets(compilation.manifests) if cluster in ("", need.cluster)]
    if format is Output.json:
        print(json_output({"secrets": [_data(need) for need in needs]}), end="")
        return
    if not needs:
        print("the specs need no Secrets")
    for index, name in enumerate(sorted({need.cluster for need in needs})):
        _print(name, [need for need in needs if need.cluster == name], first=index == 0)


def _data(need: SecretNeed) -> dict[str, Any]:
    return {
        "cluster": need.cluster,
        "namespace": need.namespace,
        "name": need.name,
        "type": need.type,
        "keys": sorted(need.keys),
        "optionalKeys": sorted(need.optional_keys),
        "oneOf": [list(each) for each in need.alternatives],
        "optional": need.optional,
        "usedBy": sorted(need.users),
        "command": need.command(),
    }


def booking_keys(need: SecretNeed) -> str:
    """Return the keys of a Secret in words; optional ones in brackets."""
    shown = [*sorted(need.keys), *(f"[{key}]" for key in sorted(need.optional_keys))]
    if need.alternatives:
        shown.append(" or ".join(" + ".join(each) for each in need.alternatives))
    return " ".join(shown) or "any"


def _table(needs: list[SecretNeed]) -> Table:
    from avactl.cli.cluster.tables import make_cell, make_table

    made = make_table(("namespace", False), ("secret", False), ("keys", False), ("used by", False), gives=("used by",))
    for need in needs:
        users = sorted(need.users)
        more = f" and {len(users) - 2} more" if len(users) > 2 else ""
        made.add_row(need.namespace, need.name, booking_keys(need), make_cell(", ".join(users[:2]) + more))
    return made


def _print(cluster: str, needs: list[SecretNeed], first: bool) -> None:
    from avactl.cli.cluster.cluster_session import write

    if not first:
        print()
    print(f"cluster {cluster} · {len(needs)} Secrets\n")
    write(_table(needs))
    if any(need.optional_keys for need in needs):
        print("\nkeys in [brackets] are optional")
    print("\nTo create them, with one FILE for each value:\n")
    for need in needs:
        print(f"  {need.command()}")
