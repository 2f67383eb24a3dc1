"""`avactl import`."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.cli.common import accessing, fail
from avactl.exit_codes import MISSING, USAGE

if TYPE_CHECKING:
    from avactl.importer.session import Imported
    from avactl.importer.sources.context import Options


class Format(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    text = "text"
    json = "json"


def import_(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH…", help="Manifests: files, directories, or `-` for standard input."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Directory of the specs. Default: nothing is written."),
    ] = None,
    cluster: Annotated[str, typer.Option(help="Cluster of the specs. Default: the repository's only one.")] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of objects that name none.")
    ] = "default",
    team: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE=TEAM", help="Team of a namespace. Default: one named after it. Repeatable."),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=IMAGE@sha256:…", help="Image of the Cluster that is written: `kubectl` for MPI."),
    ] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Keep all objects as manifests (KubernetesObjects).")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    format: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.text,
) -> None:
    """Import what a cluster runs: manifests to specs that compile, and a list of what they do not say.

    Each object becomes a spec of the kind that fits, or stays a manifest. Nothing is written without `-o`, and no
    existing file is replaced without `--force`. Values of Secrets are neither read nor written.
    """
    from avactl.importer import reading
    from avactl.importer.session import import_objects, write

    options = _options(cluster, namespace, team or [], image or [], as_is)
    objects = reading.read(paths or [], sys.stdin.buffer)
    made, root = import_objects(objects, options, out or Path("specs"), force=force)
    if out is not None:
        with accessing(out, MISSING):
            write(made, root)
    if format is Format.json:
        from avactl.importer.report import as_json

        print(as_json(made), end="")
        return
    _print(made, out)


def _options(cluster: str, namespace: str, team: list[str], image: list[str], as_is: bool) -> Options:
    from avactl.importer.sources.context import Options

    return Options(cluster, namespace, _pairs(team, "--team"), as_is, _pairs(image, "--image"))


def _pairs(given: list[str], option: str) -> dict[str, str]:
    found = dict(each.partition("=")[::2] for each in given)
    for name, value in found.items():
        if not name or not value:
            fail(f"`{option} {name}` is not NAME=VALUE", USAGE)
    return found


def _print(made: Imported, out: Path | None) -> None:
    from avactl.cli.cluster.cluster_session import write
    from avactl.cli.cluster.tables import cell, table
    from avactl.importer import report

    shown = table(*((name, False) for name in ("source", "object", "became", "how", "file")), gives=("file",))
    for row in report.rows(made):
        shown.add_row(*map(cell, row))
    write(shown)
    for reason, outcomes in report.reasons(made):
        names = ", ".join(str(each.given) for each in outcomes[:3])
        more = f" and {len(outcomes) - 3} more" if len(outcomes) > 3 else ""
        print(f"\n{reason}\n  {names}{more}")
    if made.losses:
        print(f"\n{len(made.losses)} values not carried over as they are:")
        print("\n".join(report.loss_lines(made.losses)))
    lines = report.difference_lines(made)
    if lines:
        print("\nsemantic difference:")
        print("\n".join(lines))
    print(f"\n{report.summary(made)}")
    if out is None:
        print("nothing was written: `-o DIR` writes the specs")
    else:
        print(f"{out}: {len(made.files)} files, which compile")
        print(f"\nNext: avactl secrets {out}; avactl diff, or avactl render {out}")
