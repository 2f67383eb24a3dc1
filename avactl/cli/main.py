"""Entry point of the `avactl` script."""

from __future__ import annotations

import errno
import os
import sys

from avactl.base import parallel
from avactl.base.exit_codes import MISSING
from avactl.cli.app import app
from avactl.cli.common import exit_at_once, exit_with
from avactl.cli.short_run import prepare_short_run

_SHORT_RUNS = ("validate", "render")
"""Commands that people and hooks wait for; they use all cores, and leave without freeing what they compiled."""


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
    exit_with(what, MISSING)


def main() -> None:
    """Run the command line. Every failure ends with one clear line and an exit code."""
    _same_everywhere()
    is_short = len(sys.argv) > 1 and sys.argv[1] in _SHORT_RUNS
    if is_short:
        parallel.allow_processes()
        prepare_short_run()
    try:
        try:
            app(prog_name="avactl")
        except SystemExit as stop:
            if not is_short:
                raise
            exit_at_once(stop.code if isinstance(stop.code, int) else MISSING)  # typer exits with a number
        finally:
            sys.stdout.flush()
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
        exit_with(message, MISSING, "this is a bug in avactl; AVACTL_DEBUG=1 shows the traceback")


if __name__ == "__main__":
    main()
