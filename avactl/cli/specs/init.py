"""`avactl init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import MISSING, USAGE
from avactl.base.terminal import join_words
from avactl.cli.common import exit_with
from avactl.forges import FORGES

if TYPE_CHECKING:
    from avactl.workbench.scaffold.choice import ScaffoldChoice


_BOTH = join_words([forge.title for forge in FORGES if forge.by_default])
_FORGES = f"{', '.join(forge.name for forge in FORGES if not forge.no_pipelines)}, both ({_BOTH}) or none"


def init(
    directory: Annotated[Path, typer.Argument(help="Directory; created if missing.")],
    engine: Annotated[
        str,
        typer.Option(help="What applies the objects: pulumi, flux, argocd, builtin or none.", show_default="pulumi"),
    ] = "",
    forge: Annotated[str, typer.Option(help=f"Pipelines to write: {_FORGES}.", show_default="both")] = "",
    clusters: Annotated[str, typer.Option(metavar="NAME,…", help="Names of the clusters.", show_default="lab")] = "",
    environments: Annotated[
        str,
        typer.Option(metavar="NAME,…", help="Environments, each with all clusters: staging,prod.", show_default="none"),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL",
            help="Where pipelines get avactl: https://…#sha256=HASH, git+https://…@COMMIT, or a wheel, for its hash.",
            show_default="where this avactl came from",
        ),
    ] = "",
    example: Annotated[
        str, typer.Option(metavar="NAME", help="Write an example instead, to try avactl: `ava`, with every kind.")
    ] = "",
) -> None:
    """Create a new spec repository that compiles, with editor settings and CI files for one engine and forge.

    In a terminal, it asks for the engine, forge and clusters that no option names.
    """
    from avactl.workbench import scaffold

    if example and (engine or forge or clusters or environments or source):
        exit_with("--example excludes all other options", USAGE)
    choice = None if example else _choice(engine, forge, clusters, environments, source)
    try:
        files = scaffold.example_files(example) if example else scaffold.template_files(choice)
        paths = scaffold.create(directory, files)
    except scaffold.ScaffoldError as error:
        exit_with(
            str(error), USAGE, "choose an empty directory" if not example or example in scaffold.example_names() else ""
        )
    except OSError as error:
        exit_with(f"{directory}: {error.strerror}", MISSING)
    for path in paths:
        if not path.startswith(".avactl/"):
            print(f"  {directory / path}")
    if choice is not None and b"REPLACE." in files.get("requirements.txt", files.get(scaffold.REQUIREMENTS, b"")):
        place = next(path for path in paths if path.endswith("requirements.txt"))
        print(f"\nBefore CI runs: replace the URL in {place} by one that your pipelines can download avactl from")
    print(f"\nNext: cd {directory} && avactl validate")


def _choice(engine: str, forge: str, clusters: str, environments: str, source: str) -> ScaffoldChoice:
    from avactl.workbench.scaffold.choice import ENGINES, FORGE_CHOICES, ChoiceError, ScaffoldChoice, source_of

    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        about = ", ".join(f"{name} ({words})" for name, words in ENGINES.items())
        engine = engine or typer.prompt(f"What applies the objects? {about}", default="pulumi")
        forge = forge or typer.prompt(f"Which pipelines? {', '.join(FORGE_CHOICES)}", default="both")
        clusters = clusters or typer.prompt("Names of the clusters, separated by commas", default="lab")
    names = tuple(name.strip() for name in (clusters or "lab").split(","))
    several = tuple(name.strip() for name in environments.split(",")) if environments else ()
    try:
        return ScaffoldChoice(engine or "pulumi", forge or "both", names, several, source_of(source))
    except ChoiceError as error:
        exit_with(str(error), USAGE)
