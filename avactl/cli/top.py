"""`avactl top`: teams, pools and jobs of a cluster, live in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avactl.cli.common import colour
from avactl.cli.viewing import Context, Kubeconfig, SystemNamespace, age, span, viewing

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from avactl.scheduler.overview import Job, Pool, Team
    from avactl.scheduler.view import View

_PAUSE = 0.5
"""Seconds between two pictures at least."""
_CLOCK = 5.0
"""Seconds after which ages are brought up to date."""
_NOWHERE = re.compile(r"^fits on none of \d+ nodes: ")
"""What most reasons begin with; what follows tells more, and a line is short."""
_PLAIN = 160
"""Columns where the output is not a terminal."""


def top(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Jobs of this namespace only.", show_default="all")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Print once; so it does where this is no terminal.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="`table`, or `json` (once, and complete).")] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    system_namespace: SystemNamespace = "avactl-system",
) -> None:
    """Teams with their quotas, pools, and the jobs that run and wait: live, until Ctrl-C. Reads only."""
    from avactl.cli.common import USAGE, fail

    if output not in ("table", "json"):
        fail(f"`--output {output}` is neither table nor json", USAGE)
    live = output == "table" and not once and sys.stdout.isatty()

    async def show(view: View) -> None:
        if live:
            await _live(view, namespace)
        elif output == "json":
            print(_json(view, namespace))
        else:
            _console().print(_page(view, namespace))

    viewing(show, kubeconfig, context, system_namespace, namespace)


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PLAIN
    return Console(highlight=False, markup=False, no_color=not colour(), width=width)


async def _live(view: View, namespace: str) -> None:
    from rich.live import Live

    console, changed = _console(), asyncio.Event()
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        following = asyncio.ensure_future(view.follow(changed.set))
        try:
            while not following.done():
                screen.update(_page(view, namespace, console.height), refresh=True)
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _CLOCK)
                await asyncio.sleep(_PAUSE)
        finally:
            following.cancel()
    await following


def _facts(view: View, namespace: str) -> tuple[list[Team], list[Pool], list[Job]]:
    """Teams and pools only where all that they count is shown."""
    from avactl.placement.fragmentation import Measure
    from avactl.scheduler import overview

    view.fresh()
    fleet, pods = view.fleet, list(view.pods())
    mine = [pod for pod in pods if not namespace or pod.namespace == namespace]
    jobs = overview.jobs(fleet, mine, view.messages)
    if view.hidden.keys() & {"pods", "nodes"}:
        return [], [], jobs
    measure = Measure(view.expected().shares(), len(fleet.state.resources))
    return overview.teams(fleet, pods), overview.pools(fleet, measure), jobs


def _json(view: View, namespace: str) -> str:
    import json

    teams, pools, jobs = _facts(view, namespace)
    data: dict[str, Any] = {
        "cluster": view.cluster,
        "teams": [team._asdict() for team in teams],
        "pools": [pool._asdict() for pool in pools],
        "jobs": [job._asdict() | {"waiting": job.waiting} for job in jobs],
        "hidden": view.hidden,
    }
    return json.dumps(data, indent=2)


def _page(view: View, namespace: str, height: int | None = None) -> RenderableType:
    """Everything, or as many jobs as there are lines."""
    from rich.console import Group
    from rich.text import Text

    teams, pools, jobs = _facts(view, namespace)
    total, used = sum(pool.gpus for pool in pools), sum(pool.used for pool in pools)
    running, waiting = sum(job.running for job in jobs), sum(job.waiting for job in jobs)
    head = [view.cluster] if view.cluster else []
    if pools:
        head += [f"{sum(pool.machines for pool in pools)} machines", f"{_number(used)} of {total} GPUs in use"]
    head += [
        f"{_count(running, 'pod')} {'runs' if running == 1 else 'run'}",
        f"{waiting} {'waits' if waiting == 1 else 'wait'}",
    ]
    parts: list[RenderableType] = [Text(" · ".join(head), style="bold"), ""]
    lines = 2
    if teams:
        parts += [_teams(teams), ""]
        lines += len(teams) + 2
    if pools:
        parts += [_pools(pools), ""]
        lines += len(pools) + 2
    hidden = _hidden(view)
    if view.silent is not None:
        hidden.append(
            f"the API server does not answer since {span(monotonic() - view.silent)}: this is how it was then"
        )
    lines += len(hidden)
    most = len(jobs) if height is None else max(3, height - lines - 2)
    shown = jobs if len(jobs) <= most else jobs[: most - 1]
    parts.append(_jobs(shown) if jobs else "no jobs with GPUs, and none that wait")
    if len(shown) < len(jobs):
        parts.append(f"… and {len(jobs) - len(shown)} more (`avactl top --once` shows all)")
    return Group(*parts, *hidden)


def _hidden(view: View) -> list[str]:
    """What is missing from the page, in one line."""
    if "pods" in view.hidden:
        return ["teams and pools are not shown: this account may read the pods of this namespace only"]
    if "nodes" in view.hidden:
        return ["teams and pools are not shown: this account may not read nodes"]
    if "configmaps" in view.hidden:
        return ["quotas and GPU links are not known: this account may not read the ConfigMaps of the system namespace"]
    return []


def _table(*columns: tuple[str, bool]) -> Table:
    """Columns by name and whether they are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for name, number in columns:
        table.add_column(name, justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    return table


def _teams(teams: list[Team]) -> Table:
    names = ("team", False), ("gpu", False), ("used", True), ("guaranteed", True), ("borrowed", True), ("waiting", True)
    table = _table(*names)
    for team in teams:
        most = "" if team.borrow == 0 or team.guaranteed is None else f" of {_number(team.borrow)}"
        table.add_row(
            team.name, team.model or "any", _number(team.used),
            "" if team.guaranteed is None else _number(team.guaranteed),
            "" if team.guaranteed is None else _number(team.borrowed) + most,
            _number(team.waiting) if team.waiting else "",
            style="yellow" if team.waiting else None,
        )  # fmt: skip
    return table


def _pools(pools: list[Pool]) -> Table:
    table = _table(
        ("pool", False), ("gpu", False), ("machines", True), ("away", True), ("gpus", True), ("used", True),
        ("free", True), ("whole free", True), ("fragmented", True),
    )  # fmt: skip
    for pool in pools:
        lost = "" if pool.lost is None else f"{_number(pool.lost)} ({100 * pool.lost / max(pool.free, 1e-9):.0f}%)"
        table.add_row(
            pool.name or "(none)", pool.model, str(pool.machines), str(pool.away or ""), str(pool.gpus),
            _number(pool.used), _number(pool.free), str(pool.whole), lost if pool.free else "",
        )  # fmt: skip
    return table


def _jobs(jobs: list[Job]) -> Table:
    from rich.text import Text

    now = datetime.now(UTC)
    table = _table(
        ("job", False), ("kind", False), ("team", False), ("pods", True), ("gpus", True), ("gpu", False), ("age", True),
    )  # fmt: skip
    # The one column that gives way where the terminal is narrow.
    table.add_column("state", overflow="ellipsis")
    for job in jobs:
        pods = str(job.pods) if job.running in (0, job.pods) else f"{job.running} of {job.pods}"
        state = "runs" if not job.waiting else f"waits: {_NOWHERE.sub('', job.why)}" if job.why else "waits"
        table.add_row(
            _short(f"{job.namespace}/{job.name}"), job.kind, job.team, pods,
            _number(job.gpus) if job.gpus else "", job.model, age(job.since, now),
            Text(state, no_wrap=True, overflow="ellipsis"), style="yellow" if job.waiting else None,
        )  # fmt: skip
    return table


def _number(value: float | None) -> str:
    return "any" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _short(name: str, most: int = 48) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
