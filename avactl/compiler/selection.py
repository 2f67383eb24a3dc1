"""Selection of a repository's spec and policy files."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

CONFIG_FILE = "avactl.yaml"
POLICIES = "policies/"
"""Directory of a repository's own policies."""
PROJECT_DIRECTORY = "stacks"
"""Directory of a repository with `Pulumi.yaml` and the settings of stacks."""


class _Patterns:
    """Compile directories, files and patterns with `*`, `?`, `[` into one predicate."""

    def __init__(self, patterns: Iterable[str]) -> None:
        clean = [pattern.removeprefix("./").rstrip("/") for pattern in patterns]
        self._all = not {".", ""}.isdisjoint(clean)
        self._paths = frozenset(clean)
        self._folders = tuple(f"{pattern}/" for pattern in clean)
        globs = [fnmatch.translate(pattern) for pattern in clean if any(char in pattern for char in "*?[")]
        self._glob = re.compile("|".join(globs)).match if globs else None

    def cover(self, path: str) -> bool:
        if self._all or path.startswith(self._folders) or path in self._paths:
            return True
        return self._glob is not None and self._glob(path) is not None


class Paths(NamedTuple):
    """Patterns of the files of one environment, or of a repository without environments."""

    include: list[str]
    exclude: list[str]
    overlays: list[str]


def covered_paths(patterns: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Return the paths that one of the patterns of `include` or `exclude` covers."""
    return list(filter(_Patterns(patterns).cover, paths))


def spec_files(include: Iterable[str], exclude: Iterable[str], paths: Collection[str]) -> list[str]:
    """Return the spec paths: YAML files, and Python files so that disallowed ones are reported.

    A directory with a `Pulumi.yaml` is a Pulumi project and contains no specs.
    """
    projects = tuple(path.removesuffix("Pulumi.yaml") for path in paths if path.endswith("/Pulumi.yaml"))
    wanted, unwanted = _Patterns(include), _Patterns(exclude)
    return [
        path
        for path in paths
        if path.endswith((".yaml", ".yml", ".py"))
        and path != CONFIG_FILE
        and not path.startswith(POLICIES)
        and not path.startswith(projects)
        and wanted.cover(path)
        and not unwanted.cover(path)
    ]


def overlay_files(overlays: Iterable[str], exclude: Iterable[str], paths: Collection[str]) -> list[str]:
    """Return the paths of overlays: those of later patterns come later, and win."""
    found: dict[str, None] = {}
    for pattern in overlays:
        files = spec_files([pattern], exclude, paths)
        found = {path: None for path in found if path not in files} | dict.fromkeys(files)
    return list(found)


def policy_files(exclude: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Return the paths of a repository's own policies."""
    found = [path for path in paths if path.startswith(POLICIES) and path.endswith((".py", ".yaml", ".yml", ".json"))]
    unwanted = _Patterns(exclude) if found else None
    return [path for path in found if unwanted is not None and not unwanted.cover(path)]


def is_selected(wanted: Paths, exclude: Collection[str], path: str) -> bool:
    """Return True if a file of this path would be a spec, an overlay or a policy."""
    return bool(
        spec_files(wanted.include, wanted.exclude, [path])
        or spec_files(wanted.overlays, exclude, [path])
        or policy_files(exclude, [path])
    )


is_policy = re.compile(rb"\bpolicy\s*\(|^\s*@\s*(?:\w+\.)*policy\b", re.MULTILINE).search
"""Return True if a Python file declares policies; otherwise it is a helper module."""


def unmatched_includes(include: Sequence[str], paths: Collection[str]) -> list[int]:
    """Return the indexes of `include` entries that match nothing."""
    plain = [pattern not in (".", "./", "") and not any(char in pattern for char in "*?[") for pattern in include]
    return [
        index
        for index, pattern in enumerate(include)
        if plain[index] and not any(map(_Patterns([pattern]).cover, paths))
    ]
