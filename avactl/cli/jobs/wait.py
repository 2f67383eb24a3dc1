"""`avactl wait`: wait for the end of a training job."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import OK, USAGE
from avactl.base.terminal import inert_text
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    Kubeconfig,
    connect,
    plain_text,
    tell_target,
    with_client,
)
from avactl.cli.common import exit_with
from avactl.cli.jobs.session import JobName, Namespace, job_of, no_job

if TYPE_CHECKING:
    from avactl.kube.access import ClusterAccess
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget
    from avactl.workbench.jobs.state import TrainingJobState

FAILED, DELETED, TIMED_OUT = 5, 6, 124
"""Exit codes, besides those of all commands. 124 is that of timeout(1)."""


def wait(
    name: JobName,
    namespace: Namespace = "",
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest wait, such as `90m`.", show_default="none")
    ] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Wait until a training job has ended. If the API server does not answer, try again until it does.

    Exit code: 0 the job has succeeded · 5 it has failed · 6 it was deleted · 124 timeout.
    """
    from avactl.spec.schema.values import parse_duration

    try:
        seconds = parse_duration(timeout, "--timeout") if timeout else None
    except ValueError as error:
        exit_with(str(error), USAGE)

    access = connect(kubeconfig, context, cluster)

    async def work(client: Client, target: IdentityTarget) -> int:
        tell_target(target)
        return await _wait(client, access, name, namespace, seconds)

    sys.exit(with_client(access, work, cluster, connections=0))


async def _wait(client: Client, access: ClusterAccess, name: str, namespace: str, seconds: float | None) -> int:
    from avactl.workbench.jobs.view import JobsView
    from avactl.workbench.jobs.waiting import wait_for_end

    place = job_of(name, namespace, access)
    view = JobsView(client, *place)
    await view.load()
    if not view.jobs():
        no_job(*place)
    last = ""

    def told(job: TrainingJobState | None) -> None:
        nonlocal last
        now = "no answer from the API server; trying again"
        if job is not None:
            now = f"{job.state}: {job.why}" if job.why else job.state
        if now != last:
            print(inert_text(f"{'/'.join(place)}  {plain_text(now)}"), flush=True)
        last = now

    try:
        async with asyncio.timeout(seconds):
            job = await wait_for_end(view, told)
    except TimeoutError:
        print(f"{'/'.join(place)}  not ended in time", flush=True)
        return TIMED_OUT
    if job is None:
        print(f"{'/'.join(place)}  deleted", flush=True)
        return DELETED
    return OK if job.state == "succeeded" else FAILED
