"""Pass 1: parse files into documents with spans."""

from __future__ import annotations

from dataclasses import replace

from avactl.compiler.config import Config, load_config, rules_of, unmatched, unreadable
from avactl.compiler.pass_state import State
from avactl.compiler.selection import spec_files
from avactl.diagnostics import Diagnostic, Span
from avactl.kinds.fields.values import seconds
from avactl.source.credentials import credentials_in
from avactl.source.document import Document
from avactl.source.tree import NOWHERE, Tree
from avactl.source.yaml import MAX_BYTES, load_yaml, too_large


def load(state: State) -> State:
    """Return the documents of all spec files in the tree."""
    tree = state.tree
    config, problems = load_config(tree)
    paths = tree.paths()
    files = spec_files(config.include, config.exclude, paths)
    if any(problem.severity == "error" for problem in problems):
        files = [path for path in files if not path.endswith(".py")]  # it is unknown whether they are allowed
    problems += unmatched(tree, config, paths)
    documents: list[Document] = list(state.documents)
    problems += _skipped(tree, config)
    for path in files:
        found, new = _load_python(tree, path, config) if path.endswith(".py") else load_file(tree, path)
        documents += found
        problems += new
    if not documents and not problems:
        hint = "`avactl init DIR` creates a repository that compiles"
        problems.append(Diagnostic("no-specs", "no spec file (*.yaml, *.yml) was found", Span("."), hint=hint))
    return replace(
        state,
        documents=tuple(documents),
        diagnostics=state.diagnostics + tuple(problems),
        rules=rules_of(config, paths),
        owners=(tuple(config.owners or ()), *state.owners) if config.owners or state.owners else (),
    )


def _skipped(tree: Tree, config: Config) -> list[Diagnostic]:
    """Return the problems of paths that may contain specs but were not read."""
    found = []
    for path, why in sorted(tree.skipped.items()):
        if why == NOWHERE:
            if spec_files(config.include, config.exclude, [path]):
                hint = "replace the link with the file, or list it under `exclude` in avactl.yaml"
                found.append(Diagnostic("unsafe-path", f"this {why}", Span(path), hint=hint))
        elif spec_files(config.include, config.exclude, [f"{path}/.yaml"]) or path == ".":
            hint = "check its permissions, or list it under `exclude` in avactl.yaml"
            found.append(Diagnostic("file-unreadable", f"the directory {why}", Span(path), hint=hint))
    return found


def load_file(tree: Tree, path: str) -> tuple[list[Document], list[Diagnostic]]:
    """Return the documents of one YAML file, and its problems."""
    try:
        size = tree.size(path)
        return load_yaml(path, tree.read(path)) if size <= MAX_BYTES else ([], [too_large(path, size)])
    except OSError as error:
        return [], [unreadable(path, error)]


def _load_python(tree: Tree, path: str, config: Config) -> tuple[list[Document], list[Diagnostic]]:
    if not config.python.allow:
        hint = "set `python: {allow: true}` in avactl.yaml, or list the file under `exclude`"
        message = "Python spec files are not allowed here"
        return [], [Diagnostic("python-not-allowed", message, Span(path), hint=hint)]
    from avactl.source.python import load_python  # only for repositories that use it

    documents, problems = load_python(tree, path, float(seconds(config.python.timeout)))
    return documents, [*problems, *credentials_in(documents)]
