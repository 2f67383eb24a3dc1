"""`avactl doctor`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avactl.base.exit_codes import INCOMPLETE, USAGE
from avactl.base.terminal import count_text, inert_text, json_output
from avactl.cli.cluster.cluster_session import (
    Context,
    Kubeconfig,
    chosen_context,
    connect,
    guard_imports,
    plain_text,
    with_client,
    write,
)
from avactl.cli.common import exit_with, open_repository, report_problems
from avactl.cli.completion import complete_cluster
from avactl.cli.environments import EnvironmentOption
from avactl.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from rich.table import Table

    from avactl.apply.doctor.model import DoctorFinding
    from avactl.apply.doctor.needs import ProgramNeeds
    from avactl.kube.access import ClusterAccess
    from avactl.kube.identity import IdentityTarget

_STATE_STYLES = {"ok": "green", "warning": "yellow", "missing": "bold red", "unknown": "yellow"}


def doctor(
    path: Annotated[Path, typer.Argument(help="Repository.", show_default=".")] = Path(),
    cluster: Annotated[
        str,
        typer.Option(
            help="Declared cluster to compare with. Default: the only one, or the context's name.",
            autocompletion=complete_cluster,
        ),
    ] = "",
    account: Annotated[
        str,
        typer.Option("--as", metavar="USER", help="Check the rights of this user or system:serviceaccount:NS:NAME."),
    ] = "",
    environment: EnvironmentOption = "",
    format: OutputFormat = Output.text,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Check a cluster against the specs: versions, APIs, storage, nodes, devices, Secrets, claims, ConfigMaps, images,
    rights. Read-only.

    Exit codes: 0 nothing is missing · 1 the specs have errors · 2 usage error · 3 the cluster is unreachable · 5
    something is missing.
    """
    from avactl.compiler import compile_tree

    tree, _ = open_repository([path])
    compilation = compile_tree(tree)
    report_problems(compilation, tree)
    with guard_imports():
        from avactl.apply.doctor.needs import needs_of
    declared = sorted(item.name for item in compilation.program.clusters())
    name = _choose_cluster(cluster, declared, chosen_context(kubeconfig, context))
    access = connect(kubeconfig, context, name)
    needs = needs_of(compilation, name)
    rights = bool(account) or not needs.applied_by
    applier = replace(access, headers=(("Impersonate-User", account),)) if account else access
    namespace = compilation.program.cluster_spec(name).system_namespace
    target, version, findings = _collect_findings(access, name, namespace, needs, rights, applier)
    if format is Output.json:
        data: dict[str, Any] = {
            **target.as_json(),
            "server": access.url,
            "version": version,
            "findings": [each._asdict() | {"state": each.state.value} for each in findings],
        }
        print(json_output(data), end="")
    else:
        print(inert_text(f"{plain_text(str(target))} · {access.url}\n"))
        write(_findings_table(findings))
        print(f"\n{_summary_text(findings)}")
        if not rights:
            print(f"rights: {needs.applied_by} applies the objects; `--as system:serviceaccount:NS:NAME` checks it")
    if any(each.state.value == "missing" for each in findings):
        raise typer.Exit(INCOMPLETE)


def _choose_cluster(asked: str, declared: list[str], context: str) -> str:
    from avactl.diagnostics.suggest import did_you_mean

    if asked and asked not in declared:
        hint = did_you_mean(asked, declared, "declared clusters")
        exit_with(f"cluster {asked} is not declared in the specs", USAGE, hint)
    if not declared:
        exit_with("the specs declare no cluster", USAGE)
    if not asked and len(declared) > 1 and context not in declared:
        exit_with(f"the specs declare several clusters: {', '.join(declared)}", USAGE, "`--cluster` selects one")
    return asked or (declared[0] if len(declared) == 1 else context)


def _collect_findings(
    access: ClusterAccess, cluster: str, namespace: str, needs: ProgramNeeds, rights: bool, applier: ClusterAccess
) -> tuple[IdentityTarget, str, list[DoctorFinding]]:
    """Exits with USAGE if the cluster carries another Cluster. Exits with MISSING if the API server does not answer."""
    from avactl.apply.doctor import checks, live
    from avactl.kube.client import Client

    async def look(client: Client, target: IdentityTarget) -> tuple[IdentityTarget, live.Live]:
        async with Client(applier, connections=16) as other:
            return target, await live.read(client, needs, other if rights else None)

    target, found = with_client(access, look, cluster, namespace, connections=16)
    return target, found.version, checks.check(needs, found, rights)


def _findings_table(findings: list[DoctorFinding]) -> Table:
    from rich.text import Text

    from avactl.cli.cluster.tables import make_table

    made = make_table(("check", False), ("state", False), ("finding", False), gives=("finding",))
    shown = ""
    for each in findings:
        words = Text(plain_text(each.message), overflow="fold")
        if each.remedy:
            words.append(f"\n→ {plain_text(each.remedy)}", style="dim")
        state = Text(each.state.value, style=_STATE_STYLES[each.state.value])
        made.add_row("" if each.check == shown else each.check, state, words)
        shown = each.check
    return made


def _summary_text(findings: list[DoctorFinding]) -> str:
    count = Counter(each.state.value for each in findings)
    parts = [f"{count['missing']} missing" if count["missing"] else "nothing is missing"]
    parts += [count_text(count["warning"], "warning")] if count["warning"] else []
    parts += [f"{count['unknown']} could not be checked"] if count["unknown"] else []
    return ", ".join(parts)
