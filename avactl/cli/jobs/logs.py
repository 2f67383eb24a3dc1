"""`avactl logs`: what the pods of a training job print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import USAGE
from avactl.cli.cluster.cluster_session import ClusterName, Context, Kubeconfig, connect, tell_target, with_client
from avactl.cli.common import exit_with
from avactl.cli.jobs.session import JobName, Namespace, job_of, no_job
from avactl.diagnostics.suggest import one_of

if TYPE_CHECKING:
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget


def logs(
    name: JobName,
    role: Annotated[str, typer.Option(help="Only pods of this role, such as `worker`.", show_default="all")] = "",
    index: Annotated[int | None, typer.Option(min=0, help="Only pods of this index.", show_default="all")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Last lines of each pod.", show_default="all")] = None,
    namespace: Namespace = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Print the logs of a training job: all pods together, in time order, each line with its role and index.

    With --follow, pods that start later are included, restarts are shown, and lost connections are resumed.
    """

    access = connect(kubeconfig, context, cluster)

    async def work(client: Client, target: IdentityTarget) -> None:
        from avactl.workbench.jobs.log_stream import JobLogs, LogSelection, TooManyPodsError
        from avactl.workbench.jobs.view import JobsView
        from avactl.workbench.local.output import LocalOutput

        tell_target(target)
        place = job_of(name, namespace, access)
        view = JobsView(client, *place)
        await view.load()
        found = view.jobs()
        if not found:
            no_job(*place)
        roles = {each.name: each.wanted for each in found[0].roles}
        if role and role not in roles:
            exit_with(f"the job has no role `{role}`", USAGE, f"its roles: {one_of(list(roles), 8)}")
        if index is not None and index >= max(roles[role] if role else 0, 0 if role else max(roles.values())):
            exit_with(f"the job has no pod with index {index}", USAGE, "indices begin with 0")
        labels = [f"{each}-{number}" for each, wanted in roles.items() for number in (0, wanted - 1)]
        told = JobLogs(view, LogSelection(role, index), LocalOutput(labels), tail)
        try:
            await (told.follow() if follow else told.show())
        except TooManyPodsError as error:
            exit_with(str(error), USAGE, "choose with `--role` and `--index`")

    with_client(access, work, cluster, connections=0)
