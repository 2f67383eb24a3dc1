"""Pass 1: files to documents with spans."""

from __future__ import annotations

from dataclasses import replace

from avactl.compiler.config import load_config, spec_files
from avactl.compiler.state import State
from avactl.diagnostics import Diagnostic, Span
from avactl.kinds.values import seconds
from avactl.source.document import Document
from avactl.source.yaml import MAX_BYTES, load_yaml, too_large


def load(state: State) -> State:
    """The documents of all spec files of the tree."""
    tree = state.tree
    config, problems = load_config(tree)
    files = spec_files(config, tree.paths())
    documents: list[Document] = list(state.documents)
    for path in files:
        if path.endswith(".py"):
            if not config.python.allow:
                hint = "set `python: {allow: true}` in avactl.yaml, or list the file under `exclude`"
                message = "Python spec files are not allowed here"
                problems.append(Diagnostic("python-not-allowed", message, Span(path), hint=hint))
                continue
            from avactl.source.python import load_python  # only where a repository uses it

            found, new = load_python(tree, path, float(seconds(config.python.timeout)))
        else:
            try:
                size = tree.size(path)
                found, new = load_yaml(path, tree.read(path)) if size <= MAX_BYTES else ([], [too_large(path, size)])
            except OSError as error:
                message = f"cannot be read: {error.strerror or error}"
                found, new = [], [Diagnostic("file-unreadable", message, Span(path), hint="look at its permissions")]
        documents += found
        problems += new
    if not documents and not problems:
        hint = "`avactl init DIR` makes a repository that compiles"
        problems.append(Diagnostic("no-specs", "no spec file (*.yaml, *.yml) was found", Span("."), hint=hint))
    return replace(state, documents=tuple(documents), diagnostics=state.diagnostics + tuple(problems))
