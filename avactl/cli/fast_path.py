"""The fast path: ordinary calls of frequent commands without typer, whose import takes as long as what they do.

These commands declare their parameters with `Option` and `Argument` of this module. Both readers of a command line use
that declaration: `parse` here, and typer for help, completion, mistakes and rare notations such as `--out=DIR`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from avactl import parallel
from avactl.exit_codes import MISSING, OK

F = TypeVar("F", bound=Callable[..., Any])

_COMMANDS = ("validate", "render")
"""Functions of modules of the same name in `avactl.cli.specs`, which import typer neither directly nor indirectly."""


class Option:
    """An option, as typer.Option declares it in an annotation; of a type bool, str or Enum."""

    def __init__(self, *flags: str, **settings: Any) -> None:
        self.flags, self.settings = flags, settings


class Argument(Option):
    """A path, or any number of them, as typer.Argument declares it in an annotation."""


def _parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Option]]:
    hints = get_type_hints(function, include_extras=True)
    return {
        name: (hint.__origin__, mark)
        for name, hint in hints.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Option)
    }


def for_typer(function: F) -> F:
    """Put typer's marks beside those of this module in a function's annotations."""
    import typer

    for name, (kind, mark) in _parameters(function).items():
        declare = typer.Argument if isinstance(mark, Argument) else typer.Option
        function.__annotations__[name] = Annotated[kind, declare(*mark.flags, **mark.settings), mark]
    return function


def parse(function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any] | None:
    """Return the arguments of an ordinary call of a command; None for all that typer must read."""
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


def prepare_short_run() -> None:
    """Save time in a process that soon ends, before it imports what compiles."""
    gc.disable()  # the collector would only walk what is imported
    # pydantic would look for plug-ins in the metadata of every installed package.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"


def run(words: Sequence[str]) -> int | None:
    """Run an ordinary call of a frequent command and return its exit code; None: it is another call, for typer."""
    if not words or words[0] not in _COMMANDS or "_AVACTL_COMPLETE" in os.environ:
        return None
    function = getattr(import_module(f"avactl.cli.specs.{words[0]}"), words[0])
    arguments = parse(function, words[1:])
    if arguments is None:
        return None
    parallel.allow()
    prepare_short_run()
    try:
        function(**arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else MISSING
    return OK
