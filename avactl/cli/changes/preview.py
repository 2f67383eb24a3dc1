"""`avactl preview`, and parts shared with `avactl up`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import CHANGES, USAGE
from avactl.base.terminal import inert_text
from avactl.cli.cluster.cluster_session import chosen_context, connect, guard_imports, plain_text, with_client
from avactl.cli.common import exit_with, open_repository, report_problems
from avactl.cli.completion import complete_stack
from avactl.cli.environments import EnvironmentOption, SourceOption

if TYPE_CHECKING:
    from avactl.apply.pulumi.engine import Session
    from avactl.kube.identity import IdentityTarget

PathArgument = Annotated[Path, typer.Argument(help="Repository.")]
StackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stack", "-s", help="CLUSTER or CLUSTER.TEAM; repeatable. Default: all.", autocompletion=complete_stack
    ),
]
KubeconfigOption = Annotated[Path | None, typer.Option(help="Kubeconfig. Default: KUBECONFIG, or ~/.kube/config.")]
ContextOption = Annotated[
    list[str] | None,
    typer.Option(help="Kubeconfig context; CLUSTER=CONTEXT for several clusters. Default: the cluster's name."),
]
RefreshOption = Annotated[bool, typer.Option("--refresh", help="Check for drift first.")]
CarriesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLUSTER", help="Another Cluster that the Kubernetes cluster carries: beside this one, or renamed."
    ),
]
AdoptOption = Annotated[bool, typer.Option("--adopt", help="Adopt objects that already exist in the cluster.")]


def preview(
    path: PathArgument = Path(),
    stack: StackOption = None,
    environment: EnvironmentOption = "",
    source: SourceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    refresh: RefreshOption = False,
    adopt: AdoptOption = False,
    carries: CarriesOption = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 4 if `up` would change something.")] = False,
) -> None:
    """Show the changes that `up` would make, using the Pulumi engine."""
    changed = False

    def show(session: Session) -> None:
        nonlocal changed
        print_head(session, kubeconfig, carries, refresh)
        changed |= print_preview(session)

    each_stack(path, stack or (), kubeconfig, context or (), adopt, show)
    if exit_code and changed:
        raise typer.Exit(CHANGES)


def each_stack(
    path: Path,
    asked: Iterable[str],
    kubeconfig: Path | None,
    contexts: Iterable[str],
    adopt: bool,
    act: Callable[[Session], None],
    *,
    apply: bool = False,
) -> None:
    """Compile a repository and open its stacks one by one; `apply`: only stacks applied from here."""
    from avactl.apply.pulumi import engine
    from avactl.compiler import compile_tree

    tree, _ = open_repository([path])
    if kubeconfig is not None and not kubeconfig.is_file():
        exit_with(f"{kubeconfig}: no such file", USAGE)
    compilation = compile_tree(tree)
    report_problems(compilation, tree)
    engine.require_engine()
    stacks = engine.find_stacks(compilation, asked, apply=apply)
    chosen = _contexts_by_cluster(contexts, {name.cluster for name in stacks})
    options = engine.EngineOptions(tree.root, kubeconfig, chosen, adopt)
    for name in stacks:
        act(engine.Session(compilation, name, options))


def _contexts_by_cluster(contexts: Iterable[str], clusters: set[str]) -> dict[str, str]:
    """Return the kubeconfig context by cluster, as `--context` says."""
    chosen: dict[str, str] = {}
    for text in contexts:
        cluster, equals, name = text.partition("=")
        if equals and cluster in clusters:
            chosen[cluster] = name
        elif len(clusters) == 1:
            chosen[next(iter(clusters))] = text
        else:
            hint = f"write CLUSTER={text}: {', '.join(sorted(clusters))}"
            exit_with(f"--context {text}: name the cluster", USAGE, hint)
    return chosen


def identify_stack(
    session: Session, kubeconfig: Path | None, carries: list[str] | None, *, apply: bool
) -> IdentityTarget:
    """Return the cluster of a stack. Raises WrongClusterError if it carries other Clusters.

    If the API server does not answer, exits with MISSING if it is to be applied; a preview goes on.
    """
    with guard_imports():
        from avactl.kube import access
        from avactl.kube.client import ApiError, Client, UnreachableError
        from avactl.kube.identity import IdentityTarget, identify
    cluster = session.name.cluster
    # As the engine does, take the account of the pod only if there is no kubeconfig.
    context = session.context or chosen_context(kubeconfig, "")
    namespace = session.compilation.program.cluster_spec(cluster).system_namespace

    async def identified(_: Client, target: IdentityTarget) -> IdentityTarget:
        return target

    if apply:
        found = connect(kubeconfig, context)
        return with_client(found, identified, cluster, namespace, known=carries or ())

    async def ask() -> IdentityTarget:
        async with Client(access.find(kubeconfig, context), connections=2) as client:
            return await identify(client, cluster, namespace, carries or ())

    try:
        return asyncio.run(ask())
    except (access.AccessError, ApiError, UnreachableError) as error:
        return IdentityTarget(context, cluster, plain_text(str(error)))


def print_head(
    session: Session, kubeconfig: Path | None, carries: list[str] | None, refresh: bool, *, apply: bool = False
) -> None:
    """Print the stack, its cluster and its notes; refresh it to find drift. Raises WrongClusterError."""
    from avactl.apply.pulumi.engine_report import object_of, spec_of

    target = identify_stack(session, kubeconfig, carries, apply=apply)
    print(inert_text(plain_text(f"stack {session.name} · {target}")), flush=True)
    if session.unfinished:
        print("  the last run did not finish: `up` first reads from the cluster what it did", flush=True)
    if refresh:
        session.refresh()
    for (kind, team, name), former in session.renamed.items():
        print(f"  {kind} {team}/{name} was {spec_of(former).partition(' ')[2]}")
    for entry in session.kept:
        print(f"  = {object_of(entry.urn)}: its spec was deleted; it holds data and is kept")
    sys.stdout.flush()


def print_preview(session: Session) -> bool:
    """Print the changes that `up` would make to a stack; return True if there are any."""
    from avactl.apply.pulumi.engine_report import report_lines, report_summary

    found = session.preview()
    for line in report_lines(found):
        print(f"  {line}")
    print(f"  {report_summary(found)}")
    return bool(found.changes or session.renamed)
