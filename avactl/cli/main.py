"""Entry point of the `avactl` script."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

from avactl.base.exit_codes import MISSING
from avactl.cli import fast_path
from avactl.cli.common import exit_at_once, fail

if TYPE_CHECKING:
    from avactl.cli.app import COMMANDS as COMMANDS
    from avactl.cli.app import app as app


def __getattr__(name: str) -> Any:
    # typer, and pydantic with it, take longer to import than a compile with kept results takes in all.
    if name in ("app", "COMMANDS"):
        from avactl.cli import app as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _same_everywhere() -> None:
    """The same bytes under every locale: names of files and what is written are UTF-8. A closed stream swallows."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the interpreter decides at start
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif hasattr(stream, "reconfigure"):
            # A file's name that is not UTF-8 must not stop a message about it.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _no_output(error: OSError) -> None:
    """The system said no where no command expected it: a full disk behind standard output, a directory that is gone."""
    gone = error.errno == errno.ENOENT and error.filename is None
    what = "the current directory was deleted" if gone else f"{error.filename or 'output'}: {error.strerror or error}"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer is not tried again
    fail(what, MISSING)


def main() -> None:
    """Run the command line. Every failure ends with one clear line and an exit code."""
    _same_everywhere()
    try:
        code = fast_path.run(sys.argv[1:])
        if code is None:
            from avactl.cli.app import app

            try:
                app(prog_name="avactl")
            finally:
                sys.stdout.flush()
        else:
            exit_at_once(code)
    except BrokenPipeError:
        # The reader (`head`) has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(MISSING)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("AVACTL_DEBUG"):
            raise
        if isinstance(error, OSError):
            _no_output(error)
        message = f"internal error: {type(error).__name__}: {error}"
        fail(message, MISSING, "this is a bug in avactl; AVACTL_DEBUG=1 shows the traceback")


if __name__ == "__main__":
    main()
