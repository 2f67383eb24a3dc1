"""Locate exceptions in the files of a repository. Used by the child processes that run them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Sequence
from types import ModuleType, TracebackType
from typing import Any

from avactl.spec.python_files.calls import CallPlace, instruction_place
from avactl.spec.python_files.sandbox import NotAllowedError

_LONGEST_MESSAGE = 500


def describe(root: str, error: BaseException, path: str) -> dict[str, Any]:
    """Return an exception as plain data: message, innermost place in the repository, and cause, where it is known.

    Without a place in the repository, the place is the first line of the file at `path`.
    """
    place = CallPlace(path, 1, 0, 1, 0)
    for frame in _trace_frames(error.__traceback__):
        if frame.tb_frame.f_code.co_filename.startswith(root):
            place = instruction_place(root, frame.tb_frame.f_code, frame.tb_lasti)
    if isinstance(error, SyntaxError) and (error.filename or "").startswith(root):
        line = error.lineno or 1
        name = str(error.filename).removeprefix(root)
        column = len((error.text or "")[: max(0, (error.offset or 1) - 1)].encode())
        place = CallPlace(name, line, column, line, 0)
    said = traceback.format_exception_only(error)  # a SyntaxError's source lines come first; notes come last
    text = next((line for line in said[-1 if isinstance(error, SyntaxError) else 0].splitlines() if line.strip()), "")
    chain: BaseException | None = error
    while chain is not None and not isinstance(chain, NotAllowedError):
        chain = chain.__cause__ or chain.__context__
    if chain is not None:
        text = str(chain)
    text = text.replace(root, "")[:_LONGEST_MESSAGE]
    cause = "refused" if chain is not None else "import" if isinstance(error, ImportError) else ""
    cause = cause or ("memory" if isinstance(error, MemoryError) else "")
    return {"message": text, "place": list(place), "cause": cause}


def execute_file(root: str, path: str, packages: Sequence[str], name: str) -> ModuleType:
    """Run a file of the repository at `root` (ending with `/`) as the module `name`.

    Imports resolve to the standard library first, then to the file's directory and the root, then to `packages`: a
    repository file named like a Python module cannot shadow a module that avactl uses.
    """
    module, file = ModuleType(name), f"{root}{path}"
    module.__file__ = file
    sys.modules[name] = module
    library = [entry for entry in sys.path if entry not in packages]
    sys.path[:] = dict.fromkeys([*library, file.rpartition("/")[0], root, *packages])
    with open(file, "rb") as source:  # noqa: PTH123 - pathlib is not loaded yet
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - what the child process is for
    return module


def _trace_frames(trace: TracebackType | None) -> Iterable[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
