"""Pass 1: parse files into documents with spans."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from avactl.compiler.config import (
    RepositoryConfig,
    environment_paths,
    load_config,
    rules_of,
    unknown_environment,
    unmatched_paths,
    unreadable_problem,
)
from avactl.compiler.pass_state import PassState
from avactl.compiler.selection import Paths, is_selected, overlay_files, spec_files
from avactl.diagnostics import Diagnostic, Span
from avactl.spec.documents.credentials import credentials_in
from avactl.spec.documents.document import Document
from avactl.spec.documents.yaml import MAX_BYTES, load_yaml, too_large
from avactl.spec.repository.tree import Tree
from avactl.spec.repository.tree_files import NOWHERE, ODD_NAME, OWN_REPOSITORY
from avactl.spec.schema.values import duration_seconds


def load(state: PassState) -> PassState:
    """Return the documents of all spec files in the tree."""
    tree = state.tree
    config, problems = load_config(tree)
    unknown = unknown_environment(tree, config)
    if unknown is not None:
        return replace(state, documents=(), diagnostics=(*state.diagnostics, *problems, unknown))
    paths = tree.paths()
    wanted = environment_paths(config, tree.environment)
    files = spec_files(wanted.include, wanted.exclude, paths)
    if any(problem.severity == "error" for problem in problems):
        files = [path for path in files if not path.endswith(".py")]  # it is unknown whether they are allowed
    problems += unmatched_paths(tree, config, paths)
    documents: list[Document] = list(state.documents)
    problems += _skipped_problems(tree, wanted, config.exclude)
    for path in files:
        found, new = _load_python(tree, path, config) if path.endswith(".py") else load_file(tree, path)
        documents += found
        problems += new
    overlays: list[Document] = []
    for path in overlay_files(wanted.overlays, config.exclude, paths):
        found, new = load_overlay(tree, path)
        overlays += found
        problems += new
    if not documents and not problems:
        hint = "`avactl init DIR` creates a repository that compiles"
        problems.append(Diagnostic("no-specs", "no spec file (*.yaml, *.yml) was found", Span("."), hint=hint))
    return replace(
        state,
        documents=tuple(documents),
        overlays=tuple(overlays),
        diagnostics=state.diagnostics + tuple(problems),
        rules=rules_of(config, paths),
        owners=(tuple(config.owners or ()), *state.owners) if config.owners or state.owners else (),
    )


def _skipped_problems(tree: Tree, wanted: Paths, exclude: Collection[str]) -> list[Diagnostic]:
    """Return the problems of paths that may contain specs, overlays or policies but were not read."""
    found = []
    for path, why in sorted(tree.skipped.items()):
        if why in (NOWHERE, ODD_NAME):
            if is_selected(wanted, exclude, path):
                remedy = "replace the link with the file" if why == NOWHERE else "rename it"
                hint = f"{remedy}, or list it under `exclude` in avactl.yaml"
                text = f"this {why}" if why == NOWHERE else f"it is not read: {why}"
                found.append(Diagnostic("unsafe-path", text, Span(path), hint=hint))
        elif not is_selected(wanted, exclude, f"{path}/.yaml") and path != ".":
            continue
        elif why == OWN_REPOSITORY:
            hint = "list it under `exclude` in avactl.yaml; specs belong in the repository itself"
            found.append(Diagnostic("file-not-read", f"this {why}", Span(path), "warning", hint=hint))
        else:
            hint = "check its permissions, or list it under `exclude` in avactl.yaml"
            found.append(Diagnostic("file-unreadable", f"the directory {why}", Span(path), hint=hint))
    return found


def load_overlay(tree: Tree, path: str) -> tuple[list[Document], list[Diagnostic]]:
    """Return the documents of one file with overlays, and its problems."""
    if path.endswith(".py"):
        hint = "write it as YAML; it can change specs that Python files declare"
        return [], [Diagnostic("python-not-allowed", "an overlay cannot be a Python file", Span(path), hint=hint)]
    return load_file(tree, path)


def load_file(tree: Tree, path: str) -> tuple[list[Document], list[Diagnostic]]:
    """Return the documents of one YAML file, and its problems."""
    try:
        size = tree.size(path)
        return load_yaml(path, tree.read(path)) if size <= MAX_BYTES else ([], [too_large(path, size)])
    except OSError as error:
        return [], [unreadable_problem(path, error)]


def _load_python(tree: Tree, path: str, config: RepositoryConfig) -> tuple[list[Document], list[Diagnostic]]:
    if not config.python.allow:
        hint = "set `python: {allow: true}` in avactl.yaml, or list the file under `exclude`"
        message = "Python spec files are not allowed here"
        return [], [Diagnostic("python-not-allowed", message, Span(path), hint=hint)]
    from avactl.spec.python_files.load import load_python  # only for repositories that use it

    documents, problems = load_python(tree, path, float(duration_seconds(config.python.timeout)))
    return documents, [*problems, *credentials_in(documents)]
