"""Fast path: parse ordinary calls of frequent commands without typer, whose import takes as long as these commands.

The commands declare their parameters with `Option` and `Argument` of this module. Two parsers use the declarations:
`parse` here, and typer for help, completion, errors and rare notations such as `--out=DIR`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar, get_type_hints

from avactl.base import parallel
from avactl.base.exit_codes import MISSING, OK
from avactl.cli.common import hinted

F = TypeVar("F", bound=Callable[..., Any])

_METADATA = "importlib.metadata"
_COMMANDS = ("validate", "render")
"""Functions of modules of the same name in `avactl.cli.specs`, which import typer neither directly nor indirectly."""


class Option:
    """An option of type bool, str or Enum, in an annotation like typer.Option."""

    def __init__(self, *flags: str, **settings: Any) -> None:
        self.flags, self.settings = flags, settings


class Argument(Option):
    """One or several paths, in an annotation like typer.Argument."""


def _parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Option]]:
    hints = get_type_hints(function, include_extras=True)
    return {
        name: (hint.__origin__, mark)
        for name, hint in hints.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Option)
    }


def for_typer(function: F) -> F:
    """Add typer's declarations to this module's in a function's annotations."""
    import typer

    for name, (kind, mark) in _parameters(function).items():
        declare = typer.Argument if isinstance(mark, Argument) else typer.Option
        function.__annotations__[name] = Annotated[kind, declare(*mark.flags, **mark.settings), mark]
    return function


def parse(function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any] | None:
    """Return the arguments of an ordinary call of a command; None if typer must parse it."""
    options: dict[str, tuple[str, Any]] = {}
    argument, single = "", True
    for name, (kind, mark) in _parameters(function).items():
        dashed = name.replace("_", "-")
        if isinstance(mark, Argument):
            argument, single = name, kind is Path
        elif kind is bool:
            yes, *no = mark.flags or (f"--{dashed}", f"--no-{dashed}")
            options |= {yes: (name, True), **dict.fromkeys(no, (name, False))}
        else:
            options |= dict.fromkeys(mark.flags or (f"--{dashed}",), (name, kind))
    found: dict[str, Any] = {}
    paths: list[Path] = []
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            paths.append(Path(word))
            continue
        name, value = options.get(word, ("", None))
        if isinstance(value, type):
            try:
                value = value(next(left))
            except (StopIteration, ValueError):
                return None
        if value is None:
            return None
        found[name] = value
    if single and len(paths) > 1:
        return None
    return found | ({argument: paths[0] if single else paths} if paths else {})


class _LazyMetadata(ModuleType):
    """`importlib.metadata`, imported on first use: with it come email, socket and zipfile.

    pydantic imports `entry_points` from it, which it never calls without plug-ins. (An `import` of a module behind
    importlib's LazyLoader loads it.)
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system looks for `__path__`
            raise AttributeError(name)
        if sys.modules.get(_METADATA) is self:
            del sys.modules[_METADATA]
        return getattr(import_module(_METADATA), name)

    def entry_points(self, **selection: Any) -> Any:
        return self.__getattr__("entry_points")(**selection)


def prepare_short_run() -> None:
    """Configure a short-lived process for speed, before the compiler is imported."""
    gc.disable()  # the collector would only walk what is imported
    # pydantic would look for plug-ins in the metadata of every installed package.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    sys.modules.setdefault(_METADATA, _LazyMetadata(_METADATA))


def run(words: Sequence[str]) -> int | None:
    """Run an ordinary call of a frequent command and return its exit code; None if typer must handle it."""
    if not words or words[0] not in _COMMANDS or "_AVACTL_COMPLETE" in os.environ:
        return None
    function = getattr(import_module(f"avactl.cli.specs.{words[0]}"), words[0])
    arguments = parse(function, words[1:])
    if arguments is None:
        return None
    parallel.allow()
    prepare_short_run()
    try:
        with hinted():
            function(**arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else MISSING
    return OK
