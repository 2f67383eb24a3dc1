"""Shared parts of commands that read a cluster: the connection, and one clear line if it fails."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar
from urllib.parse import urlsplit

import typer

from avactl.base.exit_codes import MISSING, OK, USAGE
from avactl.base.gc_control import pause_gc
from avactl.base.installation import install_command
from avactl.base.terminal import duration_text, inert_text, shorten_middle, use_colour
from avactl.cli.common import exit_with
from avactl.cli.completion import complete_cluster
from avactl.contracts.names import SYSTEM_NAMESPACE
from avactl.kube.timestamps import seconds_since

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from avactl.kube.access import ClusterAccess
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget
    from avactl.scheduler.inspection.cluster_view import ClusterView

Kubeconfig = Annotated[Path | None, typer.Option(help="Kubeconfig file. Default: $KUBECONFIG or ~/.kube/config.")]
DaemonKubeconfig = Annotated[
    Path | None,
    typer.Option(help="Kubeconfig file. Default: the pod's service account, else $KUBECONFIG or ~/.kube/config."),
]
Context = Annotated[
    str, typer.Option(help="Context of the kubeconfig. Default: the one with the Cluster's name, else the current one.")
]
ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        help="Cluster that is meant: its context is used, and another is refused.",
        autocompletion=complete_cluster,
    ),
]
SystemNamespace = Annotated[str, typer.Option(help="Namespace of avactl's ConfigMaps.")]


INTERRUPTED = 130
_T = TypeVar("_T")
_WIDE_COLUMNS = 100_000
"""Width if the output is not a terminal."""
_MAX_TEXT_LENGTH = 4096
"""Maximum characters shown of a foreign text: an annotation may have 256 KiB."""


@contextmanager
def guard_imports() -> Iterator[None]:
    """Guard the imports of the Kubernetes client. Exits with MISSING if its packages are not installed."""
    try:
        with pause_gc():  # imports create no garbage, and a tenth of their time would go into looking for it
            yield
    except ModuleNotFoundError as error:
        exit_with(f"this command requires the package {error.name}", MISSING, install_command("cluster"))


def connect(kubeconfig: Path | None, context: str = "", cluster: str = "") -> ClusterAccess:
    """Return the API server's address and credentials: those of `context`, else of the context named as the Cluster.

    Exits with MISSING if packages are missing, or without a kubeconfig or the program that it names; with USAGE if the
    kubeconfig is invalid or has no such context.
    """
    with guard_imports():
        from avactl.kube import access, client  # noqa: F401 - the client needs more than the address does
    try:
        found = access.find(kubeconfig, context, cluster)
        if found.plugin is not None:
            found.plugin.renew()  # here, because it may ask a person to log in
        return found
    except access.AccessError as error:
        exit_with(str(error), error.exit_code, error.hint)


def chosen_context(kubeconfig: Path | None, context: str) -> str:
    """Return the context that is named, else the current one; empty without a kubeconfig.

    Exits with USAGE if the kubeconfig is invalid.
    """
    from avactl.base.kubeconfig import KubeconfigError, current_context

    try:
        return context or current_context(kubeconfig)
    except KubeconfigError as error:
        exit_with(str(error), error.exit_code, error.hint)


@contextmanager
def check_listen(listen: str) -> Iterator[None]:
    """Check `--listen` of a daemon, if it is not empty, and run the daemon in the block.

    Exits with USAGE if the address is invalid, with MISSING if it cannot listen there.
    """
    if not listen:
        yield
        return
    if not re.fullmatch(r".*:\d{1,5}", listen):
        exit_with(f"`--listen {listen}` is not HOST:PORT", USAGE, "`:8080` listens on all addresses")
    from avactl.kube.listen import ListenError

    try:
        yield
    except ListenError as error:
        exit_with(f"`--listen {listen}`: {error}", MISSING)


def with_client(
    access: ClusterAccess,
    work: Callable[[Client, IdentityTarget], Awaitable[_T]],
    cluster: str,
    system_namespace: str = SYSTEM_NAMESPACE,
    *,
    known: Collection[str] | None = None,
    agent: str = "avactl",
    connections: int = 128,
    interrupted: int = INTERRUPTED,
) -> _T:
    """Run `work` with a client of the API server. Exits with USAGE if it carries another Cluster than the one meant.

    `known`: other Clusters that it may carry. Exits with MISSING if the API server does not answer or denies a request,
    and with `interrupted` after Ctrl-C.
    """
    with guard_imports():
        from avactl.kube.client import ApiError, Client, UnreachableError
        from avactl.kube.identity import identify

    async def run() -> _T:
        async with Client(access, agent, connections) as client:
            return await work(client, await identify(client, cluster, system_namespace, known))

    try:
        return asyncio.run(run())
    except (ApiError, UnreachableError) as error:
        exit_refused(error, access)
    except KeyboardInterrupt:
        raise typer.Exit(interrupted) from None


def view_cluster(
    show: Callable[[ClusterView, IdentityTarget], Awaitable[None]],
    kubeconfig: Path | None,
    context: str,
    cluster: str,
    system_namespace: str,
    namespace: str = "",
    everything: bool = False,
    with_volumes: bool = False,
) -> None:
    """Run `show` on a view of the cluster. `everything`: it needs nodes and the pods of all namespaces.

    Exits with MISSING without a kubeconfig, or if the API server does not answer or denies the request.
    """
    with guard_imports():
        from avactl.scheduler.inspection.cluster_view import ClusterView

    async def work(client: Client, target: IdentityTarget) -> None:
        view = ClusterView(client, system_namespace, namespace, with_volumes)
        await view.load()
        _check_allowed(view, namespace, everything)
        await show(view, target)

    with_client(connect(kubeconfig, context, cluster), work, cluster, system_namespace, interrupted=OK)


def exit_refused(error: Exception, access: ClusterAccess) -> NoReturn:
    """Report that a request to the API server failed, and exit with MISSING."""
    from avactl.kube.client import ApiError, CredentialsError, UnreachableError, UntrustedError

    if isinstance(error, CredentialsError):
        exit_with(plain_text(str(error)), MISSING, error.hint)
    if isinstance(error, UntrustedError):
        hint = "does the kubeconfig's certificate-authority belong to another cluster?"
        exit_with(
            f"the certificate of the API server {access.url} is not trusted: {plain_text(str(error))}", MISSING, hint
        )
    if isinstance(error, ApiError) and error.status == 401:
        hint = "has the token or certificate expired? Log in again, or use another kubeconfig or context"
        exit_with(f"the API server {access.url} rejected the credentials (401 Unauthorized)", MISSING, hint)
    if isinstance(error, UnreachableError):
        hint = (
            "is this the right cluster, and is it running? `--kubeconfig`, $KUBECONFIG or `--context` selects another"
        )
        if access.proxy:
            hint = "is this the right proxy? $HTTPS_PROXY, $NO_PROXY and `proxy-url` in the kubeconfig select it"
        by = f" by the proxy {urlsplit(access.proxy).hostname}" if access.proxy else ""
        exit_with(f"no answer from the API server {access.url}{by}", MISSING, hint)
    exit_with(f"API server request failed: {plain_text(str(error))}", MISSING)


def _check_allowed(view: ClusterView, namespace: str, everything: bool) -> None:
    needed = ("nodes", "pods") if everything else () if namespace else ("pods",)
    for kind in needed:
        if kind in view.hidden:
            where = "pods of all namespaces" if kind == "pods" else kind
            hint = "" if everything else "`-n NAMESPACE` shows the jobs of one namespace"
            exit_with(f"this account is not permitted to read {where}", MISSING, hint)


def tell_target(target: IdentityTarget) -> None:
    """Print the context and the Cluster to standard error, for commands whose output is for programs."""
    print(inert_text(plain_text(str(target))), file=sys.stderr, flush=True)


def plain_text(text: str) -> str:
    """Return foreign text on one line of bounded length, without control characters."""
    text = shorten_middle(text, _MAX_TEXT_LENGTH)
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def make_console() -> Console:
    """Width of the terminal; of the content if there is no terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDE_COLUMNS
    return Console(highlight=False, markup=False, emoji=False, no_color=not use_colour(), width=width)


def write(*parts: RenderableType) -> None:
    """Print tables and lines to standard output; nothing is wrapped or truncated if it is not a terminal."""
    screen = make_console()
    if sys.stdout.isatty():
        screen.print(*parts, sep="\n")
        return
    with screen.capture() as capture:
        screen.print(*parts, sep="\n")
    print(inert_text("\n".join(line.rstrip() for line in capture.get().splitlines())))


def age_text(since: str, now: datetime) -> str:
    """Time since an API server timestamp, in its largest unit."""
    return duration_text(seconds_since(since, now))
