"""Shared parts of the commands: repositories, output, failures."""

from __future__ import annotations

import atexit
import errno
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from avactl.base.directories import write_file
from avactl.base.errors import HintedError
from avactl.base.exit_codes import MISSING, PROBLEMS, USAGE
from avactl.base.terminal import inert_text, use_colour, visible_text
from avactl.forges import FORGES
from avactl.hardware import library
from avactl.spec.repository.checkout import COMMIT, SOURCE_VARIABLE, WORK_TREE, CommitTree, open_tree
from avactl.spec.repository.tree import ENVIRONMENT_VARIABLE, DirTree, find_root

if TYPE_CHECKING:
    from avactl.diagnostics import Diagnostic, Span
    from avactl.spec.repository.tree import Tree


class CompileResult(Protocol):
    """Result of a compile that every output format needs."""

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]: ...

    @property
    def untraced(self) -> tuple[Diagnostic, ...]: ...

    @property
    def ok(self) -> bool: ...


EXIT_CODES = (
    "Exit codes: 0 ok · 1 the specs have errors · 2 usage error · 3 a required tool or service is missing or failed · "
    "4 changes (--exit-code) · 5 not everything is applied or healthy."
)


ENVIRONMENT = "Environment of avactl.yaml to compile for. Default: $AVACTL_ENVIRONMENT."
"""Help of the option `--environment`."""


def choose_environment(name: str) -> str:
    """Compile for an environment from here on, also in processes that this one starts; "" keeps the choice."""
    if name:
        os.environ[ENVIRONMENT_VARIABLE] = name
    return name


TEXT = "text"
"""The format of problems for people."""
_REPORTS = {forge.name: forge.report for forge in FORGES if forge.report}
"""Formats of problems that forges show on lines."""

if TYPE_CHECKING:
    Format = str
else:
    Format = StrEnum("Format", [TEXT, "json", "sarif", *_REPORTS])


def exit_with(message: str, code: int, hint: str = "") -> NoReturn:
    """Print one line to standard error and exit with the code."""
    from avactl.diagnostics.redaction import redact_text  # mistyped input may contain a credential, and logs are kept

    message, hint = ("\n        ".join(map(visible_text, redact_text(text).split("\n"))) for text in (message, hint))
    red, off = ("\x1b[1;31m", "\x1b[0m") if use_colour(sys.stderr) else ("", "")
    print(inert_text(f"{red}avactl:{off} {message}" + (f"\n        {hint}" if hint else "")), file=sys.stderr)
    sys.exit(code)


def exit_at_once(code: int) -> NoReturn:
    """Exit without freeing all objects, which takes longer than many commands. Temporary directories are removed."""
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(code)


@contextmanager
def exit_on_hinted_error() -> Iterator[None]:
    """End the command if an error with a remedy is raised: print it, and exit with its code."""
    try:
        yield
    except HintedError as error:
        exit_with(str(error), error.exit_code, error.hint)


@contextmanager
def exit_on_os_error(path: object, code: int, hint: str = "") -> Iterator[None]:
    """End the command if the operating system denies access to a path."""
    try:
        yield
    except OSError as error:
        exit_with(f"{path}: {(error.strerror or str(error)).lower()}", code, hint)


def want_path(path: Path, revision: str | None = None) -> None:
    """Exit with USAGE if a path is not in the work tree, unless a revision is read instead."""
    if revision is None and not path.exists():
        exit_with(f"{path}: no such file or directory", USAGE)


def write_text(out: str, text: str, told: str) -> None:
    """Write a text to a file and report it; `-` prints it. Exits with MISSING on failure."""
    if out == "-":
        sys.stdout.write(text)
        return
    with exit_on_os_error(out, MISSING):
        write_file(Path(out), text)
    print(f"{out}: {told}")


def replace_file(file: Path, data: bytes) -> None:
    """Write to a temporary file, then rename: a crash leaves the old file or the new one."""
    target = file.resolve()
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        aside.write_bytes(data)
        aside.chmod(target.stat().st_mode & 0o7777)
        aside.replace(target)
    except OSError as error:
        aside.unlink(missing_ok=True)
        exit_with(f"{file}: {error.strerror}", MISSING)


SOURCE = "Compile `commit`, the commit checked out, or `work-tree`. Default: in CI the commit."


def choose_source(name: str) -> str:
    """Compile the commit or the work tree from here on; "" keeps the choice. Exits with USAGE for another name."""
    if name not in ("", COMMIT, WORK_TREE):
        exit_with(f"--source {name}: unknown", USAGE, f"`{COMMIT}` or `{WORK_TREE}`")
    if name:
        os.environ[SOURCE_VARIABLE] = name
    return name


def open_repository(paths: Sequence[Path]) -> tuple[DirTree | CommitTree, list[str]]:
    """Return the repository of all paths, and the requested paths from its root ([]: all of it).

    In CI it is the commit that is checked out.

    A path without an avactl.yaml above it is its own repository: a directory, or a single file.
    """
    for path in paths:
        _want_readable(path)
    roots = [find_root(path) for path in paths]
    if len({root.resolve() for root in roots}) > 1:
        names = ", ".join(str(root) for root in roots)
        exit_with(f"the paths belong to several repositories ({names})", USAGE, "run the command once for each")
    root = roots[0]
    inside = [_absolute_path(path).relative_to(root.resolve()).as_posix() for path in paths]
    with exit_on_hinted_error():
        if (root / "avactl.yaml").is_file():
            return open_tree(root), [path for path in inside if path != "."]
        return open_tree(root, None if "." in inside else inside), []


def _want_readable(path: Path) -> None:
    """Exit with USAGE if a path of the command line is neither a file nor a directory."""
    try:
        about = path.stat()
    except OSError as error:
        if error.errno == errno.ENOENT and path.is_symlink():
            exit_with(f"{path}: broken symbolic link", USAGE)
        exit_with(f"{path}: {(error.strerror or str(error)).lower()}", USAGE)
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        exit_with(
            f"{path}: neither a file nor a directory", USAGE, "name a spec file, or the directory of a repository"
        )


def _absolute_path(path: Path) -> Path:
    """Return the absolute path; a file that is a symbolic link keeps the location of the link."""
    return path.resolve() if path.is_dir() else path.parent.resolve() / path.name


def _path_prefix(root: Path) -> str:
    """Prefix that turns a path from the root into one from the current directory."""
    relative = os.path.relpath(root)
    return "" if relative == "." else f"{relative}/"


def select(compilation: CompileResult, asked: Iterable[str]) -> list[Diagnostic]:
    """Return the problems of the requested paths, or all if none were requested.

    A file whose errors all follow from others has these errors, unless a problem names the file.
    """
    from avactl.diagnostics import sort_diagnostics

    wanted = list(asked)
    if not wanted:
        return list(compilation.diagnostics)
    found = [d for d in compilation.diagnostics if any(covers_file(wanted, file) for file in _files(d))]
    told = {file for d in found if d.severity == "error" for file in _files(d)}
    hidden = [d for d in compilation.untraced if d.severity == "error" and told.isdisjoint(_files(d))]
    return sort_diagnostics([*found, *(d for d in hidden if any(covers_file(wanted, file) for file in _files(d)))])


def _files(problem: Diagnostic) -> list[str]:
    return [problem.span.file, *(note.span.file for note in problem.notes)]


def covers_file(paths: Collection[str], file: str) -> bool:
    """Return True if a file is one of the paths or below one; without any paths, always."""
    return not paths or any(file == path or file.startswith(f"{path}/") for path in paths)


def render_machine(diagnostics: Sequence[Diagnostic], format: Format) -> str:
    """Format problems for programs: any format but `text`."""
    from avactl.diagnostics import machine

    return {"json": machine.render_json, "sarif": machine.render_sarif, **_REPORTS}[format](diagnostics)


def render_diagnostics(
    diagnostics: Sequence[Diagnostic],
    tree: DirTree | CommitTree,
    format: Format,
    coloured: bool,
    content: Tree | None = None,
) -> str:
    """Format the problems, with paths from the current directory. `content`: the files' text, if not on disk."""
    files = content or tree
    prefix = _path_prefix(tree.root)

    def placed(span: Span) -> Span:
        if not prefix or library.is_place(span.file):
            return span
        return span._replace(file=prefix.rstrip("/") if span.file == "." else prefix + span.file)

    shown = [
        replace(d, span=placed(d.span), notes=tuple(n._replace(span=placed(n.span)) for n in d.notes))
        for d in diagnostics
    ]
    if format != TEXT:
        return render_machine(shown, format)
    from functools import lru_cache

    from avactl.diagnostics.text import render_text
    from avactl.spec.documents.yaml import MAX_BYTES

    @lru_cache(maxsize=1)  # problems are grouped by file
    def source(file: str) -> str | None:
        try:
            path = file.removeprefix(prefix)
            # The file is too large to be a spec, so no line of it is relevant.
            return files.read(path).decode("utf-8", "replace") if files.size(path) <= MAX_BYTES else None
        except OSError:
            return None

    return render_text(shown, source, coloured)


def report_problems(compilation: CompileResult, tree: DirTree | CommitTree) -> None:
    """Print the problems to standard error; exit with PROBLEMS if there are errors."""
    if compilation.diagnostics:
        text = render_diagnostics(compilation.diagnostics, tree, TEXT, use_colour(sys.stderr))
        sys.stderr.write(text + ("\n" if compilation.ok else ""))
    if not compilation.ok:
        sys.exit(PROBLEMS)
