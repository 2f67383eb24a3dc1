"""What `validate` and `render` do, and their usual calls without typer, whose import takes as long as they do."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from avactl import parallel
from avactl.cli.common import Format, fail, open_repository, render_diagnostics, report, select
from avactl.exit_codes import MISSING, OK, PROBLEMS, USAGE
from avactl.terminal import colour

_SWITCHES = {"--cache": ("cache", True), "--no-cache": ("cache", False), "--force": ("force", True)}
_VALUES = {"-o": "out", "--out": "out", "-f": "format", "--format": "format"}
_OPTIONS = {"validate": {"cache", "format"}, "render": {"cache", "force", "out"}}


def parse(arguments: list[str]) -> dict[str, Any] | None:
    """The arguments of a plain call; None of all others, with help, mistakes or completion, which are typer's."""
    if not arguments or arguments[0] not in _OPTIONS or "_AVACTL_COMPLETE" in os.environ:
        return None
    command, *rest = arguments
    found: dict[str, Any] = {"command": command, "paths": []}
    left = iter(rest)
    for word in left:
        if not word.startswith("-"):
            found["paths"].append(Path(word))
            continue
        value: str | bool | None
        name, value = _SWITCHES.get(word, ("", None))
        if word in _VALUES:
            name, value = _VALUES[word], next(left, None)
        if name not in _OPTIONS[command] or value is None:
            return None
        found[name] = value
    if found.get("format", "text") not in Format.__members__ or (command == "render" and len(found["paths"]) > 1):
        return None
    return found


def start_quickly() -> None:
    """For a process with a short life, before it imports what compiles."""
    gc.disable()  # the collector would only walk what is imported
    # pydantic looks for plug-ins in the metadata of every installed package: none has to do with specs, and the import
    # of what reads metadata takes longer than a compile. Where this module has another name, nothing is lost but time.
    no_plugins = ModuleType("pydantic.plugin._loader")
    no_plugins.get_plugins = tuple  # type: ignore[attr-defined]
    sys.modules.setdefault(no_plugins.__name__, no_plugins)


def run(arguments: dict[str, Any]) -> int:
    """Run what `parse` understood; the exit code."""
    parallel.allow()
    start_quickly()
    paths, cache = arguments["paths"], arguments.get("cache", True)
    try:
        if arguments["command"] == "validate":
            return validate(paths, Format[arguments.get("format", "text")], cache)
        path = paths[0] if paths else Path()
        return render(path, arguments.get("out", ""), arguments.get("force", False), cache)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else MISSING


def validate(paths: list[Path], format: Format, cache: bool) -> int:
    """Check specs and print what is wrong; the exit code."""
    from avactl.compiler.incremental.compile import compile_cached
    from avactl.emit.paths import object_path

    tree, asked = open_repository(paths or [Path()])
    compiled = compile_cached(tree, object_path, use_cache=cache)
    problems = select(compiled, asked)
    if format is Format.text and not problems:
        print(f"ok: {sum(compiled.kinds.values())} specs of {len(compiled.kinds)} kinds")
    else:
        sys.stdout.write(render_diagnostics(problems, tree, format, colour()))
    elsewhere = len(compiled.diagnostics) - len(problems)
    if elsewhere and format is Format.text:
        print(f"{elsewhere} more in other files of the repository: `avactl validate {tree.root}`")
    return PROBLEMS if any(d.severity == "error" for d in problems) else OK


def render(path: Path, out: str, force: bool, cache: bool) -> int:
    """Compile specs and write their objects; the exit code."""
    from avactl.emit.output import OutputError
    from avactl.emit.render import print_objects, write_objects

    if not out:
        fail("`render` needs to know where to", USAGE, "`-o DIR` writes files, `-o -` prints")
    tree, _ = open_repository([path])
    if out == "-":
        report(print_objects(tree, sys.stdout.buffer), tree)
        return OK
    try:
        compiled, written = write_objects(tree, out, use_cache=cache, force=force)
    except OutputError as error:
        fail(str(error), MISSING, error.hint)
    report(compiled, tree)
    if written is not None:
        total = written.written + written.kept
        print(f"{out}: {total} objects ({written.written} written, {written.kept} kept, {written.deleted} deleted)")
    return OK
