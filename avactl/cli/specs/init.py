"""`avactl init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import fail
from avactl.exit_codes import MISSING, USAGE


def init(directory: Annotated[Path, typer.Argument(help="Directory; created if missing.")]) -> None:
    """Create a new spec repository that compiles, with editor settings and CI files."""
    from avactl.scaffold import ScaffoldError, create

    try:
        files = create(directory)
    except ScaffoldError as error:
        fail(str(error), USAGE, "choose an empty directory")
    except OSError as error:
        fail(f"{directory}: {error.strerror}", MISSING)
    for path in files:
        if not path.startswith(".avactl/"):
            print(f"  {directory / path}")
    print(f"\nNext: cd {directory} && avactl validate")
