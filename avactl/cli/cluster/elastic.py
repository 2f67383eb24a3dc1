"""`avactl elastic`: the master of an elastic job, and the library of its workers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.exit_codes import MISSING, USAGE
from avactl.cli.cluster.cluster_session import DaemonKubeconfig, connect, guard_imports
from avactl.cli.common import exit_with

_MAX_RUN = 253
elastic = typer.Typer(add_completion=False, rich_markup_mode=None, help="Run the master of an elastic job.")


@elastic.callback()
def _root() -> None:
    pass


@elastic.command()
def library(
    directory: Annotated[Path, typer.Argument(help="Directory, which is created if missing.", show_default=False)],
) -> None:
    """Copy the worker library, for pods whose image does not have it.

    `python DIRECTORY health_check …` then runs its module `avactl_worker.health_check`.
    """
    with guard_imports():
        from avactl.daemons.elastic.library import copy_library
    try:
        copy_library(directory)
    except OSError as error:
        exit_with(f"cannot copy the worker library to {directory}: {error}", MISSING)


@elastic.command()
def master(
    state: Annotated[
        Path, typer.Option(help="File for the job's state; created if missing. The next master goes on from it.")
    ],
    listen: Annotated[str, typer.Option(help="HOST:PORT for the workers.")] = "127.0.0.1:2380",
    http: Annotated[str, typer.Option(help="HOST:PORT for /metrics, /livez and /readyz; empty: disabled.")] = "",
    config_map: Annotated[
        str,
        typer.Option(metavar="NAMESPACE/NAME", help="ConfigMap for a copy of the state, used if the file is lost."),
    ] = "",
    run: Annotated[
        str, typer.Option(help="Run of the job. The state of another run in the ConfigMap is used only with --resume.")
    ] = "",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on where another run stopped, unless that run had processed all its data."),
    ] = False,
    staleness: Annotated[
        int | None,
        typer.Option(
            min=0, help="Steps that a worker's clock may be ahead of the slowest. Default: as the workers ask."
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=20_000,
            help="Workers that must have joined the clock before the first of them begins a step. Without it, a worker "
            "that starts early is ahead of those that have not joined yet by more than any bound.",
        ),
    ] = 1,
    gradients: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=20_000,
            help="Gradients of a step that count: the first ones. The next step begins when they are pushed, and "
            "later workers are told. Default: all.",
        ),
    ] = None,
    replace_stragglers: Annotated[
        str,
        typer.Option(
            metavar="MIN:SHARE:SECONDS",
            help="Tell a job's worker pod to leave that works at less than SHARE of the median speed for "
            "SECONDS, if more than MIN workers run: another pod takes its place.",
        ),
    ] = "",
    kubeconfig: DaemonKubeconfig = None,
) -> None:
    """Hand out the data of a job to workers that come and go, until SIGTERM or Ctrl-C.

    Workers connect with the avactl-worker library, to $AVACTL_MASTER. The connection is not encrypted or
    authenticated: listen on an address that only the job's workers can reach.
    """
    with guard_imports():
        from avactl.daemons.elastic import daemon
        from avactl.daemons.elastic.state.store import LostStateError, StateStoreError
        from avactl.daemons.elastic.workers import StragglerDetector
        from avactl.kube.listen import ListenError
    if not re.fullmatch(r".+:\d{1,5}", listen):
        exit_with(f"`--listen {listen}` is not HOST:PORT", USAGE, "`0.0.0.0:2380` listens on all addresses")
    if not re.fullmatch(r"(.*:\d{1,5})?", http):
        exit_with(f"`--http {http}` is not HOST:PORT", USAGE, "`:8080` listens on all addresses")
    place = tuple(config_map.split("/"))
    if config_map and (len(place) != 2 or not all(place)):
        exit_with(f"`--config-map {config_map}` is not NAMESPACE/NAME", USAGE)
    if len(run) > _MAX_RUN:
        exit_with(f"`--run` has more than {_MAX_RUN} characters", USAGE)
    stragglers = None
    if replace_stragglers:
        slow = re.fullmatch(r"(\d{1,9}):(0\.\d{1,9}):(\d{1,9}(?:\.\d{1,9})?)", replace_stragglers)
        if slow is None:
            message = f"`--replace-stragglers {replace_stragglers}` is not MIN:SHARE:SECONDS"
            exit_with(
                message, USAGE, "`2:0.5:60`: below half of the median speed for a minute, if more than 2 workers run"
            )
        stragglers = StragglerDetector(int(slow[1]), float(slow[2]), float(slow[3]))
    copy = (place[0], place[-1]) if config_map else None
    options = daemon.MasterOptions(listen, state, copy, run, resume, staleness, gradients, workers, stragglers, http)
    access = connect(kubeconfig) if config_map else None
    try:
        asyncio.run(daemon.run(options, access))
    except ListenError as error:
        exit_with(str(error), MISSING)
    except (StateStoreError, LostStateError) as error:
        exit_with(str(error), MISSING)
