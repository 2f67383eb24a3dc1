"""`avactl delivery`: the daemon of pipelines, their state, and the steps that publish models."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from avactl.base.exit_codes import USAGE
from avactl.base.terminal import count_text, duration_text, join_words
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    DaemonKubeconfig,
    Kubeconfig,
    check_listen,
    connect,
    guard_imports,
    plain_text,
)
from avactl.cli.cluster.tables import Once, show_status
from avactl.cli.common import exit_with
from avactl.cli.environments import EnvironmentOption
from avactl.cli.options import Output, OutputFormat
from avactl.contracts.names import SYSTEM_NAMESPACE
from avactl.forges import find_forge, forge_names

if TYPE_CHECKING:
    from rich.console import RenderableType

    from avactl.kube.client import Client

delivery = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Run the daemon of pipelines and promotions, show them, and publish models.",
)
To = Annotated[str, typer.Option("--to", help="Directory of the version: URL/NUMBER.")]
Endpoint = Annotated[str, typer.Option(help="URL of an S3 service. Default: AWS_ENDPOINT_URL.")]


@delivery.command()
def stage(
    to: To,
    source: Annotated[str, typer.Option("--from", help="Directory where the training has saved.")],
    output: Annotated[
        str, typer.Option("--model", help="File or directory below it; `*` in its last name: the highest number.")
    ] = "",
    marker: Annotated[str, typer.Option(help="File that completes a directory.")] = "",
    rejected: Annotated[
        str | None,
        typer.Option(
            help="Output of a running job that was rejected before and is not copied again. With this option, it "
            "is not an error if no output is complete."
        ),
    ] = None,
    result: Annotated[
        str,
        typer.Option(
            help="File for the result: `copied OUTPUT`; `unchanged` if the newest output is already published; "
            "`rejected` if it is that of `--rejected`; or `none`."
        ),
    ] = "",
    endpoint: Endpoint = "",
) -> None:
    """Copy a model to the directory of a version, with the SHA-256 of each file. It is not published yet."""
    from avactl.daemons.delivery import publish
    from avactl.daemons.delivery.decide import COPIED, NONE, REJECTED, UNCHANGED
    from avactl.datasets.stores.opening import open_store
    from avactl.datasets.text import size_text

    versions = open_store(to.rstrip("/").rpartition("/")[0], endpoint) if "/" in to.rstrip("/") else None
    own, target = open_store(source, endpoint), open_store(to, endpoint)
    try:
        done = publish.stage_version(own, target, output, marker, versions, rejected or "")
    except publish.UnchangedError as error:
        print(error)
        text = UNCHANGED
    except publish.RejectedError as error:
        print(error)
        text = REJECTED
    except publish.NoOutputError as error:
        if rejected is None:
            raise
        print(error)
        text = NONE
    else:
        print(f"{to}: {count_text(done.files, 'file')}, {size_text(done.bytes)}")
        text = f"{COPIED}{done.source}"
    if result:
        Path(result).write_text(text)


@delivery.command()
def seal(
    to: To,
    keep: Annotated[int, typer.Option(min=0, help="Published versions to keep; 0: all.")] = 0,
    keep_versions: Annotated[str, typer.Option(help="Numbers of versions that are kept in any case: `3,7`.")] = "",
    endpoint: Endpoint = "",
) -> None:
    """Publish a staged version: write lineage.json, of the JSON object in AVACTL_LINEAGE, and remove old versions."""
    from avactl.contracts.delivery import VersionLineage
    from avactl.contracts.document import DocumentError, load
    from avactl.daemons.delivery import publish
    from avactl.datasets.stores.opening import open_store
    from avactl.datasets.text import size_text

    try:
        lineage = load(VersionLineage, os.environ.get("AVACTL_LINEAGE", "") or "{}")
    except DocumentError as error:
        exit_with(f"AVACTL_LINEAGE: {error}", USAGE, 'write e.g. {"commit": "…", "metrics": {}}')
    numbers = [part.strip() for part in keep_versions.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in numbers):
        exit_with(f"--keep-versions {keep_versions[:80]} is not a list of numbers", USAGE, "write e.g. `3,7`")
    target = open_store(to, endpoint)
    done = publish.seal_version(target, lineage)
    size = size_text(done.bytes or 0)
    print(f"{to}: published, {count_text(done.files or 0, 'file')}, {size}")
    if keep:
        directory, version = to.rstrip("/").rpartition("/")[0], publish.version_of(target)
        removed = publish.prune_versions(directory, version, keep, frozenset(map(int, numbers)), endpoint)
        if removed:
            print(f"removed: {', '.join(map(str, removed))}")


@delivery.command()
def run(
    repo: Annotated[str, typer.Option(metavar="URL", help="Repository of the specs.")],
    branch: Annotated[str, typer.Option(help="Its branch.")] = "main",
    path: Annotated[str, typer.Option(help="Directory of the specs in it.")] = "",
    cache: Annotated[Path, typer.Option(help="Directory for the clone.")] = Path("/tmp/avactl-delivery"),  # noqa: S108
    credentials: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory with the files `username` and `password`.")
    ] = None,
    author: Annotated[str, typer.Option(help="Author of the commits.")] = "avactl",
    email: Annotated[str, typer.Option(help="E-mail address of the author.")] = "avactl@localhost",
    forge: Annotated[
        str, typer.Option(help=f"Forge for pull requests: {join_words(forge_names(), 'or')}; empty: none.")
    ] = "",
    api: Annotated[str, typer.Option(metavar="URL", help="Root of the forge's REST API.")] = "",
    project: Annotated[str, typer.Option(help="OWNER/NAME on the forge.")] = "",
    environment: EnvironmentOption = "",
    lease: Annotated[str, typer.Option(help="Lease for leader election; empty: single replica.")] = "",
    listen: Annotated[
        str, typer.Option(help="HOST:PORT for /metrics, /livez, /healthz and /readyz; empty: disabled.")
    ] = "",
    namespace: Annotated[
        str, typer.Option(help="Namespace of plans and the Lease. Default: the pod's own, else avactl-system.")
    ] = "",
    interval: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds between passes over the pipelines.")] = 5.0,
    git_interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between reads of the branch.")] = 30.0,
    kubeconfig: DaemonKubeconfig = None,
) -> None:
    """Run the daemon: begin runs of pipelines, publish what passes validation, deploy it by commits."""
    with guard_imports():
        from avactl.daemons.delivery import daemon
        from avactl.daemons.delivery.commits.repository import CommitAuthor, Repository
        from avactl.daemons.delivery.proposals import TokenFileProposals
    from avactl.spec.repository.git import use_credentials

    # A container's user has no home; compiling keeps a cache there.
    os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = str(cache)
    if credentials is not None:
        use_credentials(credentials, repo)
    if forge and find_forge(forge).no_proposals:
        exit_with(find_forge(forge).no_proposals, USAGE, "omit --forge")
    specs = Repository(repo, branch, path, cache, CommitAuthor(author, email))
    proposals = TokenFileProposals(find_forge(forge), api, project, credentials or Path()) if forge else None
    own = namespace or os.environ.get("POD_NAMESPACE", "") or SYSTEM_NAMESPACE
    options = daemon.DeliveryOptions(own, lease, listen, interval, git_interval)
    with check_listen(listen):
        asyncio.run(daemon.run(connect(kubeconfig), specs, proposals, options))


@delivery.command()
def status(
    format: OutputFormat = Output.text,
    once: Once = False,
    namespace: Annotated[str, typer.Option(help="System namespace.")] = SYSTEM_NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Show pipelines, with their runs, and promotions, with what they wait for, live until Ctrl-C. Read-only."""
    with guard_imports():
        from avactl.daemons.delivery import status as pipelines

    async def read(client: Client) -> dict[str, list[dict[str, Any]]]:
        maps = await pipelines.read(client, namespace)
        return {
            "pipelines": pipelines.pipeline_entries(maps),
            "promotions": pipelines.promotion_entries(maps),
        }

    access = connect(kubeconfig, context, cluster)
    show_status(access, cluster, read, _lay_out_page, lambda found: found, format, once, namespace)


def _lay_out_page(found: dict[str, list[dict[str, Any]]]) -> RenderableType:
    from rich.console import Group

    tables = [
        lay_out(found[key])
        for key, lay_out in (("pipelines", _lay_out_pipelines), ("promotions", _lay_out_promotions))
        if found[key]
    ]
    separated = [part for table in tables for part in ("", table)]
    return Group(*separated[1:]) if tables else "no pipelines and no promotions"


def _lay_out_promotions(found: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    now = time.time()
    table = Table(
        "promotion", "runs", "from", "tries", "phase", "for", "waits for", "problem", box=None, pad_edge=False
    )
    for each in found:
        since = duration_text(max(0.0, now - each["since"])) if each["since"] else ""
        if each["phase"] == "soaking":
            since += f" of {duration_text(each['window'])}"
        source = f"{each['from']} on {each['cluster']}" if each["cluster"] else each["from"]
        cells = (each["service"], each["runs"], source, each["tries"], each["phase"], since)
        table.add_row(*map(plain_text, (*cells, each["url"] or each["message"], each["problem"])))
    return table


def _lay_out_pipelines(found: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    now = time.time()
    table = Table("pipeline", "phase", "for", "run", "last result", "metrics", "problem", box=None, pad_edge=False)
    for each in found:
        since = duration_text(max(0.0, now - each["since"])) if each["since"] else ""
        numbers = ", ".join(f"{name} {value:.6g}" for name, value in each["metrics"].items())
        run = str(each["run"]) if each["run"] else ""
        phase = f"{each['phase']} on {each['cluster']}" if each["cluster"] else each["phase"]
        cells = (each["pipeline"], phase, since, run, f"{each['reason']} {each['message']}", numbers)
        table.add_row(*map(plain_text, (*cells, each["problem"])))
    return table
