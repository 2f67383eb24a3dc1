"""`avactl defrag`: let a pending job start by moving as few pods as possible."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import MISSING, PROBLEMS, USAGE
from avactl.base.terminal import duration_text, inert_text, json_output
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    Kubeconfig,
    SystemNamespace,
    plain_text,
    view_cluster,
    write,
)
from avactl.cli.common import exit_with
from avactl.cli.options import Output, OutputFormat
from avactl.contracts.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from avactl.hardware.placement.request import Request
    from avactl.kube.identity import IdentityTarget
    from avactl.scheduler.defrag.planner import DefragPlan, PlannedMove
    from avactl.scheduler.inspection.cluster_view import ClusterView
    from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup


def defrag(
    job: Annotated[str | None, typer.Argument(help="Pending job: NAME or NAMESPACE/NAME.", show_default=False)] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace.")] = "default",
    gpus: Annotated[int, typer.Option(min=1, max=16, help="Without a job: GPUs per pod.")] = 8,
    gpu: Annotated[str, typer.Option(help="Without a job: GPU model.", show_default="any")] = "",
    pods: Annotated[int, typer.Option(min=1, max=10_000, help="Without a job: number of pods.")] = 1,
    cpu: Annotated[str, typer.Option(help="Without a job: CPU cores per pod.")] = "0",
    memory: Annotated[str, typer.Option(help="Without a job: memory per pod.")] = "0",
    yes: Annotated[bool, typer.Option("--yes", help="Apply the moves. By default nothing is changed.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="With --yes: seconds to wait for the job to be placed.")
    ] = 300.0,
    format: OutputFormat = Output.text,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
) -> None:
    """Propose the fewest pod moves that let a job, or the pods described by options, start; `--yes` applies them.

    Only pods of preemptible jobs with checkpoints are moved. They resume elsewhere from their last checkpoint.
    """
    if job is not None and "/" in job:
        namespace, job = job.split("/", 1)
    if yes and job is None:
        exit_with("`--yes` needs a job, because the freed capacity is reserved for it", USAGE)

    async def show(view: ClusterView, target: IdentityTarget) -> None:
        from avactl.scheduler.defrag import planner
        from avactl.scheduler.objects.node_rules import RuleError

        unit: QueuedPodGroup | None = None
        try:
            if job is None:
                asked = _make_request(view, gpus, gpu, cpu, memory)
                plan = planner.for_request(view, asked, pods)
                title = f"{pods} pod{'' if pods == 1 else 's'} with {gpus} {gpu or 'GPUs'}"
            else:
                unit = planner.unit_of(view, namespace, job)
                plan, title = planner.for_unit(view, unit), f"{namespace}/{job}"
        except (planner.NoPlanError, RuleError) as error:
            exit_with(plain_text(str(error)), PROBLEMS)
        _print(target, title, plan, format, yes)
        if yes and unit is not None and plan.moves:
            await _move_pods(view, unit, plan, timeout)

    view_cluster(show, kubeconfig, context, cluster, system_namespace, everything=True, with_volumes=True)


def _make_request(view: ClusterView, gpus: int, gpu: str, cpu: str, memory: str) -> Request:
    from avactl.base.quantity import resource_amount
    from avactl.diagnostics.suggest import did_you_mean
    from avactl.scheduler.defrag import planner

    known = planner.models(view)
    if gpu and gpu not in known:
        exit_with(f"the cluster has no GPU `{gpu}`", USAGE, did_you_mean(gpu, known, "GPU models"))
    try:
        return planner.request(view, gpus, gpu, resource_amount("cpu", cpu), resource_amount("memory", memory))
    except ValueError as error:
        exit_with(f"`--cpu {cpu} --memory {memory}`: {error}", USAGE)


def _print(target: IdentityTarget, title: str, plan: DefragPlan, format: Output, yes: bool) -> None:
    if format is Output.json:
        moves = [
            {
                "pod": move.pod.key,
                "job": move.job,
                "gpus": move.gpus,
                "from": move.source,
                "to": move.target,
                "lostSeconds": move.lost,
                "withIt": move.with_it,
            }
            for move in plan.moves
        ]
        sys.stdout.write(
            json_output({**target.as_json(), "for": title, "moves": moves, "places": sorted(set(plan.places.values()))})
        )
        return
    print(inert_text(plain_text(str(target))))
    nodes = sorted(set(plan.places.values()))
    shown = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    if not plan.moves:
        print(f"{title}: already fits ({shown}); no moves needed")
        return
    _print_table(plan.moves)
    gpus, count = sum(move.gpus for move in plan.moves), len(plan.moves)
    print(f"\n{title}: {count} move{'' if count == 1 else 's'} ({gpus:g} GPUs) free capacity on {shown}")
    if not yes:
        print("nothing was changed; `--yes` applies the moves. Target nodes are estimates: the scheduler decides")


def _print_table(moves: list[PlannedMove]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for column in ("pod", "job", "gpus", "from", "to", "loses"):
        table.add_column(column, justify="right" if column == "gpus" else "left", overflow="fold")
    for move in moves:
        gang = f", and the {move.with_it} others of its gang" if move.with_it else ""
        loses = f"at most {duration_text(move.lost)} of work{gang}"
        table.add_row(move.pod.key, move.job, f"{move.gpus:g}", move.source, move.target, loses)
    write(table)


async def _move_pods(view: ClusterView, unit: QueuedPodGroup, plan: DefragPlan, timeout: float) -> None:
    from avactl.scheduler.defrag.executor import DefragExecutor, StoppedError

    mover = DefragExecutor(view.client, view, unit, plan, lambda text: print(plain_text(text), flush=True))
    try:
        placed = await mover.run(timeout)
    except StoppedError as error:
        exit_with(f"nothing was moved: {plain_text(str(error))}", MISSING)
    if not placed:
        exit_with(
            f"the job was not placed within {timeout:g} s", MISSING, "the scheduler keeps trying; see `avactl why`"
        )
    print(f"the job is placed on {', '.join(mover.nodes())}")
