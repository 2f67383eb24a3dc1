"""Shared parts of commands about training jobs: the connection, and which job is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from avactl.base.exit_codes import MISSING, USAGE
from avactl.cli.common import exit_with

if TYPE_CHECKING:
    from avactl.kube.access import ClusterAccess
    from avactl.kube.client import Client
    from avactl.workbench.jobs.view import JobsView

Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Namespace.", show_default="that of the kubeconfig's context")
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="Training job: NAME or NAMESPACE/NAME.")]


async def load_view(client: Client, namespace: str, own: str) -> JobsView:
    """Return the view of a namespace, or of all; of the user's own if that is all that the API server shows.

    It has the progress of all jobs, also what scripts print.
    """
    from avactl.kube.client import ApiError
    from avactl.workbench.jobs.view import JobsView

    view = JobsView(client, namespace)
    try:
        await view.load()
    except ApiError as error:
        if not error.forbidden:
            raise
        if namespace:
            exit_with(f"this account is not permitted to read the jobs and pods of namespace {namespace}", MISSING)
        if not own:
            hint = "`-n NAMESPACE` shows the jobs of one namespace"
            exit_with("this account is not permitted to read the jobs of all namespaces", MISSING, hint)
        return await load_view(client, own, "")
    await view.read_logs()
    return view


def job_of(name: str, namespace: str, access: ClusterAccess) -> tuple[str, str]:
    """Return namespace and name of the job that a user means. Exits with USAGE if they are malformed."""
    if "/" in name:
        namespace, name = name.split("/", 1)
    namespace = namespace or access.namespace or "default"
    if not name or "/" in name or not f"{namespace}{name}".replace("-", "").replace(".", "").isalnum():
        exit_with("the name of the job is empty or malformed", USAGE, "write NAME, or NAMESPACE/NAME")
    return namespace, name


def no_job(namespace: str, name: str) -> NoReturn:
    """Exit with USAGE: there is no such job."""
    exit_with(f"no training job {name} in namespace {namespace}", USAGE, "`avactl jobs` lists those that you may see")
