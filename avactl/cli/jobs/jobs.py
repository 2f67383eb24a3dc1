"""`avactl jobs`: training jobs with their progress, once or live."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import OK, USAGE
from avactl.base.terminal import duration_text, json_output
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    Kubeconfig,
    age_text,
    connect,
    plain_text,
    with_client,
    write,
)
from avactl.cli.cluster.tables import make_cell, make_table, show_live
from avactl.cli.common import exit_with
from avactl.cli.jobs.session import load_view
from avactl.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from rich.console import RenderableType

    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget
    from avactl.workbench.jobs.state import TrainingJobState
    from avactl.workbench.jobs.view import JobsView

_STATE_COLOURS = {"running": "green", "queued": "yellow", "starting": "yellow", "failed": "red", "suspended": "dim"}


def jobs(
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", help="Only jobs of this namespace.", show_default="all that you may see"),
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the cluster until Ctrl-C.")] = False,
    format: OutputFormat = Output.text,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Show training jobs: state and why, workers, and progress, as a job master or the script tells it. Read-only.

    Without permission to list the jobs of all namespaces, those of the kubeconfig's own namespace are shown.
    """
    if watch and (format is Output.json or not sys.stdout.isatty()):
        exit_with("`--watch` needs a terminal, and prints a table", USAGE, "leave it out to print once")

    access = connect(kubeconfig, context, cluster)

    async def show(client: Client, target: IdentityTarget) -> None:
        view = await load_view(client, namespace, access.namespace)
        if watch:
            await show_live(lambda height: _lay_out_page(view, target, height), view.follow, view.explain_quietly)
        elif format is Output.json:
            listed = [job.as_json() for job in view.jobs()]
            sys.stdout.write(json_output({**target.as_json(), "jobs": listed, "hidden": view.hidden}))
        else:
            write(_lay_out_page(view, target))

    with_client(access, show, cluster, connections=0, interrupted=OK)


def _lay_out_page(view: JobsView, target: IdentityTarget, height: int | None = None) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    now, found = datetime.now(UTC), view.jobs()
    states = Counter(job.state for job in found)
    head = [f"{len(found)} training job{'' if len(found) == 1 else 's'}"]
    head += [f"{count} {state}" for state, count in states.items()]
    if view.namespace:
        head.insert(0, f"namespace {view.namespace}")
    head.insert(0, plain_text(str(target)))
    parts: list[RenderableType] = [Text(" · ".join(head), style="bold")]
    notes = []
    if view.hidden:
        notes.append("progress is not shown: this account is not permitted to read ConfigMaps")
    if view.silent is not None:
        silent = duration_text(monotonic() - view.silent)
        notes.append(f"no answer from the API server for {silent}; showing the last known state")
    shown = found if height is None else found[: max(1, height - 4 - len(notes))]
    if shown:
        parts += ["", _jobs_table(shown, now)]
    if len(shown) < len(found):
        parts.append(f"… and {len(found) - len(shown)} more (`avactl jobs` shows all)")
    return Group(*parts, *notes)


def _jobs_table(found: list[TrainingJobState], now: datetime) -> RenderableType:
    columns = (
        ("job", False),
        ("state", False),
        ("workers", True),
        ("gpus", True),
        ("progress", True),
        ("loss", True),
        ("records/s", True),
        ("eta", True),
        ("age", True),
        ("why", False),
    )
    rows = [
        (
            make_cell(f"{job.namespace}/{job.name}"),
            make_cell(job.state, _STATE_COLOURS.get(job.state, "")),
            _worker_counts(job),
            f"{job.gpus:g}" if job.gpus else "",
            *_progress_cells(job),
            age_text(job.created, now),
            make_cell(job_note(job, now)),
        )
        for job in found
    ]
    # Columns of which nothing is known are left out.
    shown = [number for number in range(len(columns)) if any(str(row[number]) for row in rows)]
    made = make_table(*(columns[number] for number in shown), gives=("job", "why"))
    for row in rows:
        made.add_row(*(row[number] for number in shown))
    return made


def _worker_counts(job: TrainingJobState) -> str:
    most = f"{job.least}–{job.most}" if job.least < job.most else str(job.most)
    return most if job.ended else f"{job.workers} of {most}"


def _progress_cells(job: TrainingJobState) -> tuple[str, str, str, str]:
    """Return progress, loss, speed and ETA, as far as they are known."""
    progress = job.progress
    if progress is None:
        return "", "", "", ""
    epoch, epochs = progress.epoch
    part = "" if progress.fraction is None else f"{100 * progress.fraction:.0f}%"
    if progress.steps is not None and progress.fraction is None:
        part = f"step {progress.steps.step:,}"
    if epoch and epochs != 1:
        part += f" epoch {epoch}" + (f"/{epochs}" if epochs else "")
    loss = "" if progress.loss is None else f"{progress.loss:.4g}"
    if job.state != "running":
        return part, loss, "", ""
    return part, loss, progress.rate, "" if progress.remaining is None else duration_text(progress.remaining)


def job_note(job: TrainingJobState, now: datetime) -> str:
    """Return the reason of a job's state, and what is unusual about a running one."""
    from avactl.workbench.jobs.state import unusual_conditions

    return "; ".join(filter(None, (job.why, *unusual_conditions(job, now))))
