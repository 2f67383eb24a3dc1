"""`avactl init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import fail
from avactl.exit_codes import MISSING, USAGE


def init(
    directory: Annotated[Path, typer.Argument(help="Directory; created if missing.")],
    example: Annotated[
        str, typer.Option(metavar="NAME", help="Write an example instead, to try avactl: `ava`, with every kind.")
    ] = "",
) -> None:
    """Create a new spec repository that compiles, with editor settings and CI files."""
    from avactl import scaffold

    try:
        files = scaffold.example(example) if example else scaffold.template()
        paths = scaffold.create(directory, files)
    except scaffold.ScaffoldError as error:
        fail(str(error), USAGE, "choose an empty directory" if not example or example in scaffold.examples() else "")
    except OSError as error:
        fail(f"{directory}: {error.strerror}", MISSING)
    for path in paths:
        if not path.startswith(".avactl/"):
            print(f"  {directory / path}")
    print(f"\nNext: cd {directory} && avactl validate")
