"""Entry point of the `avactl` script."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from avactl.cli import plain
from avactl.cli.common import MISSING, fail

if TYPE_CHECKING:
    from avactl.cli.app import COMMANDS as COMMANDS
    from avactl.cli.app import app as app


def __getattr__(name: str) -> Any:
    # typer, and pydantic with it, take longer to import than a compile with kept results takes in all.
    if name in ("app", "COMMANDS"):
        from avactl.cli import app as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Run the command line. Whatever goes wrong ends in one clear line and an exit code."""
    try:
        arguments = plain.parse(sys.argv[1:])
        if arguments is None:
            from avactl.cli.app import app

            app(prog_name="avactl")
        else:
            code = plain.run(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # taking ten thousand objects apart first helps nobody
    except BrokenPipeError:
        # The reader (`head`) has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(MISSING)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("AVACTL_DEBUG"):
            raise
        fail(
            f"internal error: {type(error).__name__}: {error}",
            MISSING,
            "this is a defect of avactl; AVACTL_DEBUG=1 shows where",
        )


if __name__ == "__main__":
    main()
