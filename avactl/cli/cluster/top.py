"""`avactl top`: teams, pools and jobs of a cluster, live in the terminal."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avactl.base.terminal import duration_text, json_output
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    Kubeconfig,
    SystemNamespace,
    age_text,
    plain_text,
    view_cluster,
    write,
)
from avactl.cli.cluster.tables import make_cell, make_table, show_live
from avactl.cli.options import Output, OutputFormat
from avactl.contracts.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from avactl.kube.identity import IdentityTarget
    from avactl.scheduler.inspection.cluster_view import ClusterView
    from avactl.scheduler.inspection.usage import JobUsage, PoolUsage, TeamLine

_MAX_NODES = 5
"""Maximum number of lines about nodes that fail pods."""
_MIN_JOBS = 6
"""Minimum number of lines for jobs: larger tables above shrink first."""


def top(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Only jobs of this namespace.", show_default="all")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Print once; default if the output is not a terminal.")] = False,
    format: OutputFormat = Output.text,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
) -> None:
    """Show teams with their quotas, pools, and running and pending jobs, live until Ctrl-C. Read-only."""
    follows = format is Output.text and not once and sys.stdout.isatty()

    async def show(view: ClusterView, target: IdentityTarget) -> None:
        if follows:
            await show_live(lambda height: _lay_out_page(view, target, namespace, height), view.follow)
        elif format is Output.json:
            sys.stdout.write(_json_text(view, target, namespace))
        else:
            write(_lay_out_page(view, target, namespace))

    view_cluster(show, kubeconfig, context, cluster, system_namespace, namespace)


def _collect_facts(view: ClusterView, namespace: str) -> tuple[list[TeamLine], list[PoolUsage], list[JobUsage]]:
    """Include teams and pools only if all the data that they summarize is readable."""
    from avactl.hardware.placement.fragmentation import Measure
    from avactl.scheduler.inspection import usage

    view.fresh()
    cache, pods = view.cache, list(view.pods())
    mine = [pod for pod in pods if not namespace or pod.namespace == namespace]
    jobs = usage.jobs(cache, mine, view.messages)
    if view.hidden.keys() & {"pods", "nodes"}:
        return [], [], jobs
    measure = Measure(view.expected().shares(), len(cache.tables.state.resources))
    return usage.teams(cache, pods), usage.pools(cache, measure), jobs


def _json_text(view: ClusterView, target: IdentityTarget, namespace: str) -> str:
    teams, pools, jobs = _collect_facts(view, namespace)
    data: dict[str, Any] = {
        **target.as_json(),
        "teams": [team._asdict() for team in teams],
        "pools": [pool._asdict() for pool in pools],
        "jobs": [job._asdict() | {"waiting": job.waiting} for job in jobs],
        "failingNodes": {
            node: [{"job": pod.owner, "reason": pod.reason} for pod in failed]
            for node, failed in view.cache.tables.failed.suspects().items()
        },
        "unusableGpus": _unusable_gpus(view),
        "nodeFaults": {
            name: [fault._asdict() for fault in info.faults]
            for name, info in sorted(view.cache.tables.nodes.items())
            if info.faults
        },
        "hidden": view.hidden,
        "broken": view.broken,
    }
    return json_output(data)


def _lay_out_page(
    view: ClusterView, target: IdentityTarget, namespace: str, height: int | None = None
) -> RenderableType:
    """Lay out the page: everything, or as many jobs as lines are left."""
    from rich.console import Group
    from rich.text import Text

    teams, pools, jobs = _collect_facts(view, namespace)
    total, used = sum(pool.gpus for pool in pools), sum(pool.used for pool in pools)
    running, waiting = sum(job.running for job in jobs), sum(job.waiting for job in jobs)
    head = [plain_text(str(target))]
    if pools:
        head += [f"{sum(pool.machines for pool in pools)} machines", f"{_format_number(used)} of {total} GPUs in use"]
    head += [
        "1 pod runs" if running == 1 else f"{running} pods run",
        f"{waiting} {'waits' if waiting == 1 else 'wait'}",
    ]
    parts: list[RenderableType] = [Text(" · ".join(head), style="bold"), ""]
    hidden = _hidden_notes(view)
    if view.silent is not None:
        hidden.append(
            f"no answer from the API server for {duration_text(monotonic() - view.silent)}; "
            "showing the last known state"
        )
    rows = [len(teams), len(pools), len(jobs)]
    if height is not None:
        # Each table has a header line, the first two also an empty line; the page begins with two lines.
        rows = _share_lines(rows, height - 2 - len(hidden) - 2 * bool(teams) - 2 * bool(pools) - 1)
    if teams:
        kept = _most_relevant_teams(teams, rows[0])
        parts += [_teams_table([team for team in teams if team in kept], len(teams) - len(kept)), ""]
    if pools:
        parts += [_pools_table(pools[: rows[1]], len(pools) - min(len(pools), rows[1])), ""]
    parts.append(_jobs_table(jobs[: rows[2]]) if jobs else "no jobs with GPUs and no pending jobs")
    if rows[2] < len(jobs):
        parts.append(f"… and {len(jobs) - rows[2]} more (`avactl top --once` shows all)")
    return Group(*parts, *hidden)


def _most_relevant_teams(teams: list[TeamLine], most: int) -> list[TeamLine]:
    """Return the most relevant teams if not all fit: those with waiting pods, and the largest."""
    waiting, used = Counter[str](), Counter[str]()
    for team in teams:
        waiting[team.name] += team.waiting > 0
        used[team.name] += round(team.used + team.waiting)
    return sorted(
        teams, key=lambda team: (not waiting[team.name], -used[team.name], team.name, not team.used + team.waiting)
    )[:most]


def _share_lines(wanted: list[int], lines: int) -> list[int]:
    """Return each table's rows for the available lines, the last table first; a truncated table adds a line."""
    *above, jobs = wanted
    left, rows = lines - min(jobs, _MIN_JOBS), list(above)
    while sum(rows) + sum(shown < all_ for shown, all_ in zip(rows, above, strict=True)) > left and max(rows) > 1:
        rows[rows.index(max(rows))] -= 1
    left = lines - sum(rows) - sum(shown < all_ for shown, all_ in zip(rows, above, strict=True))
    return [*rows, jobs if jobs <= left else max(1, left - 1)]


def _hidden_notes(view: ClusterView) -> list[str]:
    """Return notes about missing data, one per line."""
    broken = [
        f"ConfigMap {plain_text(name)} is invalid and ignored: {plain_text(why)}" for name, why in view.broken.items()
    ]
    return [*_bad_nodes(view), *_unseen_parts(view), *sorted(broken)]


def _bad_nodes(view: ClusterView) -> list[str]:
    from avactl.scheduler.cache.failed_pods import describe

    suspects = view.cache.tables.failed.suspects()
    failing = [f"node {plain_text(node)}: {plain_text(describe(suspects[node]))}" for node in sorted(suspects)]
    unusable = [
        f"node {plain_text(node)}: no pod gets its GPUs: {plain_text(why)}"
        for node, why in sorted(_unusable_gpus(view).items())
    ]
    faulty = [f"node {plain_text(node)}: {plain_text(why)}" for node, why in sorted(_faulty_nodes(view).items())]
    return [
        *_first_lines(faulty, "nodes with faults"),
        *_first_lines(failing, "nodes that fail pods"),
        *_first_lines(unusable, "nodes whose GPUs no pod gets"),
    ]


def _first_lines(lines: list[str], what: str) -> list[str]:
    more = len(lines) - _MAX_NODES
    return lines if more <= 0 else [*lines[:_MAX_NODES], f"… and {more} more {what}"]


def _faulty_nodes(view: ClusterView) -> dict[str, str]:
    """Return the nodes that report faults, with these and what follows for pods."""
    from avactl.scheduler.cache.node_faults import describe_faulty_nodes

    return describe_faulty_nodes(view.cache.tables)


def _unusable_gpus(view: ClusterView) -> dict[str, str]:
    """Return the nodes whose GPUs pods do not get, with the reason; those with faults have lines of their own."""
    nodes = view.cache.tables.nodes
    return {
        name: info.describe_unusable_gpus()
        for name, info in nodes.items()
        if info.unusable_gpus is not None and not info.faults
    }


def _unseen_parts(view: ClusterView) -> list[str]:
    if "pods" in view.hidden:
        return ["teams and pools are not shown: this account can read the pods of this namespace only"]
    if "nodes" in view.hidden:
        return ["teams and pools are not shown: this account is not permitted to read nodes"]
    if "configmaps" in view.hidden:
        return ["quotas and GPU links are unknown: no permission to read ConfigMaps of the system namespace"]
    if "policy" in view.hidden:
        return [f"racks and possibly quotas are unknown: {plain_text(view.hidden['policy'])}; try `--system-namespace`"]
    return []


def _teams_table(teams: list[TeamLine], more: int) -> Table:
    names = ("team", False), ("gpu", False), ("used", True), ("guaranteed", True), ("borrowed", True), ("waiting", True)
    shown = make_table(*names, gives=("team",))
    for team in teams:
        most = "" if team.borrow == 0 or team.guaranteed is None else f" of {_format_number(team.borrow)}"
        shown.add_row(
            make_cell(team.name),
            plain_text(team.model) or "any",
            _format_number(team.used),
            "" if team.guaranteed is None else _format_number(team.guaranteed),
            "" if team.guaranteed is None else _format_number(team.borrowed) + most,
            _format_number(team.waiting) if team.waiting else "",
            style="yellow" if team.waiting else None,
        )
    if more:
        shown.add_row(make_cell(f"… and {more} more"))
    return shown


def _pools_table(pools: list[PoolUsage], more: int) -> Table:
    shown = make_table(
        ("pool", False),
        ("gpu", False),
        ("machines", True),
        ("away", True),
        ("gpus", True),
        ("used", True),
        ("free", True),
        ("whole free", True),
        ("fragmented", True),
        gives=("pool",),
    )
    for pool in pools:
        lost = (
            "" if pool.lost is None else f"{_format_number(pool.lost)} ({100 * pool.lost / max(pool.free, 1e-9):.0f}%)"
        )
        shown.add_row(
            make_cell(pool.name or "(none)"),
            plain_text(pool.model),
            str(pool.machines),
            str(pool.away or ""),
            str(pool.gpus),
            _format_number(pool.used),
            _format_number(pool.free),
            str(pool.whole),
            lost if pool.free else "",
        )
    if more:
        shown.add_row(make_cell(f"… and {more} more"))
    return shown


def _jobs_table(jobs: list[JobUsage]) -> Table:
    now = datetime.now(UTC)
    shown = make_table(
        ("job", False),
        ("kind", False),
        ("team", False),
        ("pods", True),
        ("gpus", True),
        ("gpu", False),
        ("age", True),
        ("state", False),
        gives=("job", "team", "state"),
    )
    for job in jobs:
        pods = str(job.pods) if job.running in (0, job.pods) else f"{job.running} of {job.pods}"
        shown.add_row(
            make_cell(f"{job.namespace}/{job.name}"),
            job.kind,
            make_cell(job.team),
            pods,
            _format_number(job.gpus) if job.gpus else "",
            plain_text(job.model),
            age_text(job.since, now),
            make_cell(_job_state(job)),
            style="yellow" if job.waiting else None,
        )
    return shown


def _job_state(job: JobUsage) -> str:
    if not job.waiting:
        return "runs"
    return f"pending: {plain_text(job.why)}" if job.why else "pending"


def _format_number(value: float | None) -> str:
    return "any" if value is None else f"{round(value, 3) + 0:.4g}" if value < 1000 else f"{value:.0f}"
