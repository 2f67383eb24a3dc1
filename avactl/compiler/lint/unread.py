"""Files that a compile does not read: asked for by name, or with the look of a spec.

The settings are read as plain data, because the models that check them take longer to import than a cached run takes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from avactl import names
from avactl.compiler.selection import CONFIG_FILE, POLICIES, spec_files
from avactl.diagnostics import Diagnostic, Span
from avactl.source.tree import Tree

_MOST = 1000
"""Maximum number of files outside of `include` that are searched for specs."""
_LARGEST = 4 * 1024 * 1024
"""Largest file that is searched, and largest avactl.yaml, in bytes."""
_SPEC = f"apiVersion: {names.GROUP}/".encode()


class _Paths(NamedTuple):
    include: list[str]
    exclude: list[str]


def unread(tree: Tree, asked: Collection[str]) -> list[Diagnostic]:
    """Return an error for each requested path that is not read, or warnings for all files that look like specs.

    `asked` are files and directories from the root; without any, the whole repository was requested.
    """
    wanted = _paths(tree)
    if not asked and not {".", "./"}.isdisjoint(wanted.include):
        return []
    paths = tree.paths()
    read = spec_files(wanted.include, wanted.exclude, paths)
    if asked:
        return [_of_asked(path, wanted, paths) for path in asked if not _has(path, read) and not _is_setting(path)]
    return [_of_spec(path) for path in _overlooked(tree, wanted, paths, read)]


def _paths(tree: Tree) -> _Paths:
    """Return what avactl.yaml includes and excludes; all of its environments read their own files."""
    try:
        data = tree.read(CONFIG_FILE) if tree.size(CONFIG_FILE) <= _LARGEST else b""
    except OSError:
        data = b""
    if b"clude" not in data:
        return _Paths(["."], [])
    from avactl.source.yaml import load_yaml

    documents, _ = load_yaml(CONFIG_FILE, data)
    value = documents[0].value if documents else None
    settings = value if isinstance(value, dict) else {}
    include = _texts(settings.get("include")) or ["."]
    environments = settings.get("environments")
    for each in environments.values() if isinstance(environments, dict) else ():
        if isinstance(each, dict):
            include += [*_texts(each.get("include")), *_texts(each.get("overlays"))]
    return _Paths(include, _texts(settings.get("exclude")))


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _has(path: str, files: Collection[str]) -> bool:
    return any(file == path or file.startswith(f"{path}/") for file in files)


def _is_setting(path: str) -> bool:
    return path == CONFIG_FILE or f"{path}/".startswith(POLICIES)


def _of_asked(path: str, wanted: _Paths, paths: Collection[str]) -> Diagnostic:
    if not _has(path, paths):
        why, hint = "it is hidden, or a symbolic link out of the repository", "move it to a visible path"
    elif not _has(path, spec_files(["."], [], paths)):
        why, hint = "specs are `*.yaml` and `*.yml` files outside of Pulumi projects", "rename or move it"
    elif _has(path, spec_files(wanted.include, [], paths)):
        why, hint = "`exclude` in avactl.yaml lists it", "remove it from `exclude`"
    else:
        why, hint = "`include` in avactl.yaml does not have it", f"add `{path.partition('/')[0]}` to `include`"
    return Diagnostic("file-not-read", f"this is not read as a spec: {why}", Span(path), hint=hint)


def _overlooked(tree: Tree, wanted: _Paths, paths: Collection[str], read: Collection[str]) -> list[str]:
    outside = set(spec_files(["."], wanted.exclude, paths)).difference(read)
    found = []
    for path in sorted(path for path in outside if not path.endswith(".py"))[:_MOST]:
        try:
            if tree.size(path) <= _LARGEST and _SPEC in tree.read(path):
                found.append(path)
        except OSError:
            continue  # what is not read need not be readable
    return found


def _of_spec(path: str) -> Diagnostic:
    hint = f"add `{path.partition('/')[0]}` to `include` in avactl.yaml, or the file to `exclude`"
    message = "this looks like a spec and is not read: `include` in avactl.yaml does not have it"
    return Diagnostic("file-not-read", message, Span(path), severity="warning", hint=hint)
