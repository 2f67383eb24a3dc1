"""`avactl status`: everything in a cluster that is not at rest."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from avactl.base.terminal import count_text, join_words
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    Kubeconfig,
    SystemNamespace,
    connect,
    guard_imports,
    plain_text,
)
from avactl.cli.cluster.tables import Once, make_cell, make_table, show_status
from avactl.cli.options import Output, OutputFormat
from avactl.contracts.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from avactl.kube.client import Client
    from avactl.workbench.jobs.state import TrainingJobState
    from avactl.workbench.unsettled import Unsettled

_T = TypeVar("_T")
_COMMANDS = {
    "promotion": "avactl delivery status",
    "pipeline": "avactl delivery status",
    "rollout": "avactl serving status",
    "job": "avactl jobs",
}
"""The commands that show all of each kind."""


class _Page(NamedTuple):
    applied: list[str]
    """The commits that `avactl reconcile` has applied last, one line each."""
    unsettled: list[Unsettled]
    at_rest: dict[str, int]
    """Kind → number, of the kinds that the account may read."""
    notes: list[str]
    """Lines about data that the account may not read."""


def status(
    format: OutputFormat = Output.text,
    once: Once = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Only rollouts and jobs of this namespace.", show_default="all")
    ] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
) -> None:
    """Show what is not at rest: promotions, pipelines, rollouts, and jobs that wait or failed; with the reasons.

    Live until Ctrl-C. Read-only. What this account may not read is left out, with a line that says so.
    """
    with guard_imports():
        from avactl.daemons.serving.daemon import list_services

    access = connect(kubeconfig, context, cluster)

    async def read(client: Client) -> _Page:
        notes: list[str] = []
        scopes = tuple(dict.fromkeys((namespace, namespace or access.namespace)))
        applied, maps = await _read_allowed(
            "promotions and pipelines", (system_namespace,), lambda own: _read_system(client, own), notes
        ) or ([], None)
        services = await _read_allowed("rollouts", scopes, lambda scope: list_services(client, scope), notes)
        jobs = await _read_allowed("jobs", scopes, lambda scope: _read_jobs(client, scope), notes)
        return _assemble(applied, maps, services, jobs, notes)

    show_status(access, cluster, read, _lay_out_page, _as_json, format, once, system_namespace)


async def _read_allowed(
    what: str, scopes: tuple[str, ...], read: Callable[[str], Awaitable[_T]], notes: list[str]
) -> _T | None:
    """Return the result of `read` for the first namespace that this account may read; "" means all namespaces.

    Returns None, and adds a note, if there is none. Raises ApiError and UnreachableError for other failures.
    """
    from avactl.kube.client import ApiError

    for index, scope in enumerate(scopes):
        try:
            found = await read(scope)
        except ApiError as error:
            if not error.forbidden:
                raise
        else:
            if index:
                notes.append(f"only {what} of namespace {scope}: this account may not read those of all namespaces")
            return found
    notes.append(f"{what} are not shown: this account may not read them in {scopes[-1] or 'all namespaces'}")
    return None


async def _read_system(client: Client, namespace: str) -> tuple[list[str], list[dict[str, Any]]]:
    from avactl.apply.reconcile.inventory import list_inventories
    from avactl.daemons.delivery import status as pipelines

    applied = []
    for record in await list_inventories(client, namespace):
        where = f"cluster {record.cluster}: commit {record.commit}"
        done = "is applied" if record.complete else "is not applied completely; `avactl reconcile --dry-run` says why"
        applied.append(f"{where} {done}")
    return applied, await pipelines.read(client, namespace)


async def _read_jobs(client: Client, namespace: str) -> list[TrainingJobState]:
    from avactl.workbench.jobs.view import JobsView

    view = JobsView(client, namespace)
    await view.load()
    return view.jobs()


def _assemble(
    applied: list[str],
    maps: list[dict[str, Any]] | None,
    services: list[dict[str, Any]] | None,
    jobs: list[TrainingJobState] | None,
    notes: list[str],
) -> _Page:
    from avactl.daemons.delivery.status import pipeline_entries, promotion_entries
    from avactl.daemons.serving.status import service_entries
    from avactl.workbench import unsettled

    now, today = time.time(), datetime.now(UTC)
    found: dict[str, list[Unsettled | None]] = {}
    if maps is not None:
        found["promotion"] = [unsettled.unsettled_promotion(each, now) for each in promotion_entries(maps)]
        found["pipeline"] = [unsettled.unsettled_pipeline(each, now) for each in pipeline_entries(maps)]
    if services is not None:
        found["rollout"] = [unsettled.unsettled_rollout(each, now) for each in service_entries(services)]
    if jobs is not None:
        found["job"] = [unsettled.unsettled_job(each, today) for each in jobs]
    rows = [row for each in found.values() for row in each if row is not None]
    return _Page(applied, rows, {kind: each.count(None) for kind, each in found.items()}, notes)


def _as_json(page: _Page) -> dict[str, Any]:
    rows = [{**row._asdict(), "command": _COMMANDS[row.kind]} for row in page.unsettled]
    return {"applied": page.applied, "unsettled": rows, "atRest": page.at_rest, "notes": page.notes}


def _lay_out_page(page: _Page) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = [*map(plain_text, page.applied)]
    if page.unsettled:
        table = make_table(("what", False), ("state", False), ("for", False), ("why", False), gives=("what", "why"))
        for row in page.unsettled:
            cells = (f"{row.kind} {row.name}", row.state, row.lasts, row.why)
            table.add_row(*map(make_cell, cells))
        parts.append(table)
    counts = [count_text(count, kind) for kind, count in page.at_rest.items() if count]
    commands = dict.fromkeys(_COMMANDS[kind] for kind, count in page.at_rest.items() if count)
    if counts:
        shown = join_words([f"`{command}`" for command in commands], "and")
        verb = "is" if sum(page.at_rest.values()) == 1 else "are"
        parts.append(f"{join_words(counts, 'and')} {verb} at rest ({shown})")
    elif not page.unsettled and page.at_rest:
        parts.append(f"no {join_words([f'{kind}s' for kind in page.at_rest], 'or')}")
    return Group(*parts, *map(plain_text, page.notes))
