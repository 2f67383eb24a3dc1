"""Files that decide what specs may do, or what runs in CI with its credentials: a review has to see their changes.

Both are found by what the files mention, not by what they do: a helper counts as imported if the names of its path are
words of a policy, a script as run if its path stands in a workflow. That is more than is imported and run, and the
files are not evaluated.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from avactl.compiler.config import load_config
from avactl.compiler.selection import CONFIG_FILE, POLICIES, spec_files
from avactl.forges import pipeline_paths
from avactl.spec.repository.checkout import CommitTree
from avactl.spec.repository.git import GitError, locate_repository
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree import DirTree, Tree

OF_SPECS = "decides what specs may do"
OF_CI = "decides what CI runs"
OF_PYTHON = "computes specs"
"""Python spec files, and the modules that they mention. What they compute here, they need not compute elsewhere."""

_PIPELINES = tuple(pipeline_paths())
"""Files and directories that define pipelines on any forge."""
_REQUIREMENTS_FILE = re.compile(
    r"(requirements|constraints)[\w.-]*\.(txt|in|lock)|pyproject\.toml|setup\.(py|cfg)|(poetry|uv|pdm)\.lock"
    r"|Pipfile(\.lock)?"
).fullmatch
"""Names of files that say which Python packages are installed."""
_FIND_WORDS = re.compile(r"\w+").findall
_FIND_PATHS = re.compile(r"[\w.*?@+-]+(?:/[\w.*?@+-]+)*").findall
_LOADS_BY_NAME = re.compile(r"\b(__import__|importlib|exec|eval|runpy|pkgutil|builtins|__builtins__)\b").search
"""Code that may import any module: all Python files of the repository count as imported."""


class DecidingFiles(NamedTuple):
    """The files of a tree that decide, by path from the specs' directory, with what they decide."""

    files: dict[str, str]
    read: Callable[[str], bytes | None]
    """Content of any file of the tree; None if there is none, or it cannot be read."""


def deciding_files(tree: Tree) -> DecidingFiles:
    """Find the settings, policies with their helpers, Pulumi projects, workflows and requirements of a tree."""
    paths = tree.paths()
    whole, prefix = _repository_of(tree)

    def read(path: str) -> bytes | None:
        with suppress(OSError, ValueError):
            return whole.read(posixpath.normpath(prefix + path))
        return None

    config, _ = load_config(tree)
    environments = config.environments.values()
    include = [*config.include, *(path for each in environments for path in (*each.include, *each.overlays))]
    specs = {prefix + path for path in (*spec_files(include, config.exclude, paths), CONFIG_FILE)}
    of_ci = _of_ci(set(whole.paths()) - specs, prefix, whole)
    found = {posixpath.relpath(path, prefix or "."): why for path, why in of_ci.items()}
    rules = [path for path in paths if path.startswith(POLICIES)]
    evaluated = spec_files(include, config.exclude, paths) if config.python.allow else ()
    programs = [path for path in evaluated if path.endswith(".py")]
    modules = (path for path in _imported_files(programs, paths, read) if path.endswith(".py"))
    found |= dict.fromkeys((*programs, *modules), OF_PYTHON)
    found |= dict.fromkeys((CONFIG_FILE, *rules, *_imported_files(rules, paths, read)), OF_SPECS)
    return DecidingFiles(found, read)


def _repository_of(tree: Tree) -> tuple[Tree, str]:
    """Return the whole repository with its hidden files, and the path of the tree in it."""
    with suppress(GitError):
        if isinstance(tree, GitTree):
            return tree.whole(), tree.prefix
        if isinstance(tree, CommitTree):
            commit = GitTree(tree.root, tree.commit)
            return commit.whole(), commit.prefix
        if isinstance(tree, DirTree):
            place = locate_repository(tree.root)
            # Other hidden directories of a work tree may be large: virtual environments, caches.
            shown = [path.name for path in place.top.iterdir() if not path.name.startswith(".")]
            return DirTree(place.top, [*_PIPELINES, *shown], environment="", hidden=True), place.prefix
    return tree, ""


def _of_ci(paths: Collection[str], prefix: str, whole: Tree) -> dict[str, str]:
    """Return workflows, Pulumi projects, requirements, and what they mention, transitively, with what they decide."""
    projects = tuple(path.removesuffix("Pulumi.yaml") for path in paths if path.endswith("/Pulumi.yaml"))
    ahead = [
        path
        for path in paths
        if path.startswith((*_PIPELINES, *projects))
        or (path.rpartition("/")[0] in ("", prefix.rstrip("/")) and _REQUIREMENTS_FILE(path.rpartition("/")[2]))
    ]
    found = dict.fromkeys(ahead, OF_CI)
    while ahead:
        text = ""
        with suppress(OSError):
            text = whole.read(ahead.pop()).decode("utf-8", "replace")
        new = {path for path in _mentioned_files(text, paths, prefix) if path not in found}
        found |= dict.fromkeys(new, OF_CI)
        ahead += new
    return found | {path: OF_SPECS for path in paths if path.rpartition("/")[2] == "CODEOWNERS"}


def _mentioned_files(text: str, paths: Collection[str], prefix: str) -> Iterator[str]:
    """Yield the files whose path stands in a text: from the top, or from the specs' directory; also by a pattern."""
    for word in dict.fromkeys(_FIND_PATHS(text)):
        for path in {posixpath.normpath(word), posixpath.normpath(prefix + word)}:
            if path in paths:
                yield path
            elif "/" in word and any(char in path for char in "*?"):
                yield from fnmatch.filter(paths, path)
            elif word.startswith("./"):  # a directory, such as that of a local action
                yield from (each for each in paths if each.startswith(f"{path}/"))


def _imported_files(rules: Iterable[str], paths: Collection[str], read: Callable[[str], bytes | None]) -> set[str]:
    """Return the modules and data files of the repository that policies mention, transitively."""
    modules = {path: _module_parts(path) for path in paths if path.endswith(".py")}
    found: set[str] = set()
    ahead = [path for path in rules if path.endswith(".py")]
    while ahead:
        path = ahead.pop()
        text = (read(path) or b"").decode("utf-8", "replace")
        # Modules are found from the top of the repository, and from the file's own directory.
        words, folder = {*_FIND_WORDS(text)}, _module_parts(path)[:-1]
        anything = _LOADS_BY_NAME(text) is not None
        new = {
            each
            for each, parts in modules.items()
            if anything or words.issuperset(parts) or (folder and parts[: len(folder)] == folder and parts[-1] in words)
        }
        new |= {each for each in paths if each not in modules and each in text}
        new -= {path, *found}
        found |= new
        ahead += (each for each in new if each in modules)
    return found


def _module_parts(path: str) -> list[str]:
    """Return the parts of a module's name."""
    parts = path.removesuffix(".py").split("/")
    return parts[:-1] if parts[-1] == "__init__" else parts
