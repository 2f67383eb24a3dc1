"""`avactl import`."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import CHANGES, INCOMPLETE, MISSING, USAGE
from avactl.cli.cluster.cluster_session import Context, Kubeconfig, connect, guard_imports, tell_target, with_client
from avactl.cli.common import exit_on_os_error, exit_with

if TYPE_CHECKING:
    from avactl.kube.access import ClusterAccess
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget
    from avactl.workbench.importer.adopt import Adopted
    from avactl.workbench.importer.model import GivenValue
    from avactl.workbench.importer.session import Imported
    from avactl.workbench.importer.sources.context import ImportOptions


class ImportFormat(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    text = "text"
    json = "json"
    markdown = "markdown"


def import_(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH…", help="Manifests: files, directories, or `-`. `slurm FILE…`: batch scripts."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Directory of the specs. Default: nothing is written."),
    ] = None,
    cluster: Annotated[str, typer.Option(help="Cluster of the specs. Default: the repository's only one.")] = "",
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace of manifests that name none; with --live, only these. Repeatable.",
            show_default="default",
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Import what a cluster runs; it is only read.")] = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="With --live: keep all objects as manifests, and own those that need no restart for it."
        ),
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    team: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE=TEAM", help="Team of a namespace. Default: one named after it. Repeatable."),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=IMAGE",
            help="Image of a Cluster that is written (`kubectl` for MPI), or `job=IMAGE` of Slurm jobs.",
        ),
    ] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Keep all objects as manifests (KubernetesObjects).")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 4 if a value is listed, an object is left out, or the result differs."
        ),
    ] = False,
    format: Annotated[ImportFormat, typer.Option("--format", "-f", help="Output format.")] = ImportFormat.text,
) -> None:
    """Import what a cluster runs: manifests to specs that compile, and a list of what they do not say.

    Each object becomes a spec of the kind that fits, or stays a manifest. Nothing is written without `-o`, and no
    existing file is replaced without `--force`. Values of Secrets are neither read nor written.

    Exit codes: 0 imported · 2 usage error, or the input cannot be imported · 3 the cluster is unreachable · 4 something
    is listed, left out or different, with --strict · 5 not all objects are adopted, with --adopt.
    """
    from avactl.workbench.importer import reading
    from avactl.workbench.importer.session import import_objects, write

    if live == bool(paths):
        exit_with("import either PATHs or the cluster, with --live", USAGE)
    if adopt and (not live or out is None):
        exit_with("--adopt needs --live, and -o for the specs that the objects then belong to", USAGE)
    spaces = namespace or []
    options = _make_options(cluster, (spaces or ["default"])[0], team or [], image or [], as_is or adopt)
    version, access = "", None
    if live:
        # Without --adopt, the specs may be those of another cluster than the source.
        target = cluster if adopt else ""
        access = connect(kubeconfig, context, target)
        objects, version = _read(access, target, spaces)
    else:
        slurm = paths is not None and str(paths[0]) == "slurm"
        given = (paths or [])[slurm:]
        objects = reading.read_scripts(given, sys.stdin.buffer) if slurm else reading.read(given, sys.stdin.buffer)
    made, root = import_objects(objects, options, out or Path("specs"), force=force, version=version)
    if out is not None:
        with exit_on_os_error(out, MISSING):
            write(made, root)
    adopted = _adopt_objects(access, made) if adopt and access is not None else None
    if format is ImportFormat.json:
        from avactl.workbench.importer.report import as_json

        print(as_json(made, adopted), end="")
    elif format is ImportFormat.markdown:
        from avactl.base.terminal import inert_text
        from avactl.workbench.importer.report_markdown import render_markdown

        print(inert_text(render_markdown(made)), end="")
    else:
        _print(made, out, adopted)
    if adopted is not None and any(each.reason for each in adopted.objects):
        raise typer.Exit(INCOMPLETE)
    if strict:
        from avactl.workbench.importer.report import is_exact

        if not is_exact(made):
            raise typer.Exit(CHANGES)


def _read(access: ClusterAccess, cluster: str, namespaces: list[str]) -> tuple[list[GivenValue], str]:
    with guard_imports():
        from avactl.workbench.importer.live import read

    async def work(client: Client, target: IdentityTarget) -> tuple[list[GivenValue], str]:
        tell_target(target)
        return await read(client, namespaces)

    return with_client(access, work, cluster, agent="avactl-import")


def _adopt_objects(access: ClusterAccess, made: Imported) -> Adopted:
    from avactl.contracts.names import RECONCILER
    from avactl.workbench.importer.adopt import adopt_objects

    namespace = made.compilation.program.cluster_spec(made.cluster).system_namespace
    return with_client(access, lambda client, _: adopt_objects(client, made), made.cluster, namespace, agent=RECONCILER)


def _make_options(cluster: str, namespace: str, team: list[str], image: list[str], as_is: bool) -> ImportOptions:
    from avactl.workbench.importer.sources.context import ImportOptions

    return ImportOptions(cluster, namespace, _pairs(team, "--team"), as_is, _pairs(image, "--image"))


def _pairs(given: list[str], option: str) -> dict[str, str]:
    found = dict(each.partition("=")[::2] for each in given)
    for name, value in found.items():
        if not name or not value:
            exit_with(f"`{option} {name}` is not NAME=VALUE", USAGE)
    return found


def _print(made: Imported, out: Path | None, adopted: Adopted | None) -> None:
    from avactl.base.terminal import inert_text, visible_text
    from avactl.cli.cluster.cluster_session import write
    from avactl.cli.cluster.tables import make_cell, make_table
    from avactl.workbench.importer import report

    shown = make_table(
        *((name, False) for name in ("source", "object", "became", "how", "listed", "file")), gives=("file",)
    )
    for row in report.table_rows(made):
        shown.add_row(*map(make_cell, row))
    write(shown)
    lines: list[str] = []
    for reason, outcomes in report.group_by_reason(made):
        names = ", ".join(str(each.given) for each in outcomes[:3])
        more = f" and {len(outcomes) - 3} more" if len(outcomes) > 3 else ""
        lines += ["", reason, f"  {names}{more}"]
    if made.losses:
        lines += ["", f"{report.loss_title(made.losses)}:", *report.loss_lines(made.losses)]
    differences = report.difference_lines(made)
    if differences:
        lines += ["", "semantic difference:", *differences]
    lines += ["", report.import_summary(made)]
    if out is None:
        lines.append("nothing was written: `-o DIR` writes the specs")
    else:
        lines.append(f"{out}: {len(made.files)} files, which compile" if made.files else "nothing was written")
    if adopted is not None:
        lines += ["", *report.adopted_lines(adopted)]
    if out is not None and made.files:
        lines += ["", f"Next: avactl secrets {out}; avactl diff, or avactl render {out}"]
    # Names and values are those of other people.
    print(inert_text("\n".join(map(visible_text, lines))))
