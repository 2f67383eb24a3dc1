"""Load Python spec files. Each file is evaluated in a sandboxed child process.

A file defines `specs`: a list of typed specs, or a function that returns or yields them; a file without it is a helper
module. The child has an empty environment, no network and no other programs, and reads only the repository's files and
Python's own (see `avactl.spec.python_files.sandbox`); its output is discarded.
"""

from __future__ import annotations

import os
import re
import tempfile
import weakref
from pathlib import Path
from typing import Any

from avactl.diagnostics import Diagnostic, Span
from avactl.spec.documents.document import Document
from avactl.spec.documents.yaml import MAX_BYTES, decode, too_large
from avactl.spec.python_files import answers, sandbox_runner
from avactl.spec.python_files.calls import CallPlace, PythonLocator, span_in
from avactl.spec.repository.tree import DirTree, Tree

MAX_TREE = 256 * 1024 * 1024
"""Maximum bytes copied from a repository for its Python files."""

MAX_SPECS = 50_000
"""Maximum number of specs per file."""

_MENTIONS_SPECS = re.compile(r"\bspecs\b").search
_MISSPELT_SPECS = re.compile(r"^(?:def[ \t]+)?(spec|Spec|Specs|SPECS|SPEC)\b[ \t]*[=:(]", re.MULTILINE).search


def load_python(tree: Tree, path: str, timeout: float) -> tuple[list[Document], list[Diagnostic]]:
    """Evaluate a Python file within `timeout` seconds; return its documents and the problems."""
    if tree.size(path) > MAX_BYTES:
        return [], [too_large(path, tree.size(path))]
    source, problems = decode(path, tree.read(path))
    problems = [problem for problem in problems if problem.code != "crlf"]
    if problems:
        return [], problems
    if not _MENTIONS_SPECS(source):
        return [], _misspelt_problems(path, source)
    try:
        root = laid_out(tree)
        answer = _evaluate_file(root.path, path, timeout)
    except OSError as error:
        return [], [_no_answer(path, str(error), "it needs a writable temporary directory and its own interpreter")]
    if isinstance(answer, Diagnostic):
        return [], [answer]
    try:
        return _parse_answer(root, path, answer)
    except answers.FORGED:
        return [], [_no_answer(path, "its output is malformed", "remove code that writes to open file descriptors")]


def _parse_answer(root: Root, path: str, answer: bytes) -> tuple[list[Document], list[Diagnostic]]:
    """Convert the child's answer, which the file may have forged: everything is validated."""
    said = answers.parse(answer)
    entries = said["documents"]
    if not isinstance(entries, list) or len(entries) > MAX_SPECS:
        raise ValueError("not a list of specs, or too long")
    documents = []
    for index, entry in enumerate(entries):
        places = {tuple(step): root.place(path, *place) for step, *place in entry["places"]}
        documents.append(Document(path, index, entry["value"], PythonLocator(root.text, path, places)))
    if said["error"] is None:
        return documents, []
    place = root.place(path, *said["error"]["place"])
    span = span_in(place.file, root.text(place.file), place.line, place.column, place.end_line, place.end_column)
    message = answers.bounded_text(said["error"]["message"])
    hint = _FAILURE_HINTS.get(answers.bounded_text(said["error"]["cause"]), "fix this line, or its caller")
    return documents, [Diagnostic("python-error", message, span, hint=hint)]


_FAILURE_HINTS = {
    "refused": "a spec file has no system access: use only files of the repository",
    "import": "a spec file may import the standard library, avactl.kinds, and modules of the repository",
    "specs": "write `specs = [Team(…), …]`, or a function `specs()` that returns or yields them",
    "memory": "split the file; it has 1 GiB of memory",
}
"""Remedies by the cause of a failure."""


def _misspelt_problems(path: str, source: str) -> list[Diagnostic]:
    found = _MISSPELT_SPECS(source)
    if found is None:
        return []
    line = source.count("\n", 0, found.start(1)) + 1
    column = found.start(1) - (source.rfind("\n", 0, found.start(1)) + 1) + 1
    span = Span(path, line, column, column + len(found[1]))
    message = f"the file defines `{found[1]}`, but a Python spec file must define `specs`"
    return [Diagnostic("python-error", message, span, hint="rename it to `specs`")]


class Root:
    """A temporary directory with a repository's files, removed together with the tree.

    A git revision has no directory, and a work tree's directory contains more than the tree: `.git`, ignored files.
    """

    def __init__(self, tree: Tree) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="avactl-")
        self.path = os.path.realpath(self._directory.name)
        self._texts: dict[str, str] = {}
        left = MAX_TREE
        # Python files first, because they are required.
        for path in sorted(tree.paths(), key=lambda path: (not path.endswith(".py"), path)):
            size = tree.size(path)
            left -= size
            if size > MAX_BYTES or left < 0:
                continue
            data = tree.read(path)
            file = Path(self.path, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            if path.endswith(".py"):
                self._texts[path] = decode(path, data)[0]

    def text(self, path: str) -> str:
        """Return the text of a Python file of the repository."""
        return self._texts.get(path, "")

    def place(self, fallback: str, file: str, line: int, column: int, end_line: int, end_column: int) -> CallPlace:
        """Return a validated place in a file of the repository."""
        known = file if file in self._texts else fallback
        return CallPlace(known, *map(answers.bounded_coordinate, (line, column, end_line, end_column)))


_ROOTS: weakref.WeakKeyDictionary[Any, Root] = weakref.WeakKeyDictionary()


def laid_out(tree: Tree) -> Root:
    """Return the directory of a tree's files, created once per tree."""
    root = _ROOTS.get(tree)
    if root is None:
        # A part that is compiled alone may still import from the rest.
        root = _ROOTS[tree] = Root(DirTree(tree.root) if isinstance(tree, DirTree) else tree)
    return root


def _evaluate_file(root: str, path: str, timeout: float) -> bytes | Diagnostic:
    """Evaluate a file in a child; return its answer or the problem."""
    answer = sandbox_runner.run("avactl.program.python_capture", root, timeout, {"path": path})
    if answer.missing:
        return answers.not_confined(path, answer.missing)
    if not answer.in_time:
        hint = "look for an infinite loop, or raise `python: {timeout: …}` in avactl.yaml"
        return Diagnostic("python-timeout", f"the file was not evaluated within {timeout:g} s", Span(path), hint=hint)
    if answer.too_long:
        return _no_answer(path, f"more than {sandbox_runner.MAX_ANSWER >> 20} MiB of specs")
    if not answer.data:
        return _no_answer(path, "the file ended its process or exceeded the memory limit")
    return answer.data


def _no_answer(path: str, why: str, hint: str = "split the file; it has 1 GiB of memory") -> Diagnostic:
    return Diagnostic("python-error", f"the evaluation returned no specs: {why}", Span(path), hint=hint)
