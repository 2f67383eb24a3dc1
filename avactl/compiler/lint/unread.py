"""Files that a compile does not read: asked for by name, or with the look of a spec; and `owners` of no file.

The settings are read as plain data, because the models that check them take longer to import than a cached run takes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from avactl.compiler.selection import CONFIG_FILE, POLICIES, covered_paths, spec_files
from avactl.contracts import names
from avactl.diagnostics import Diagnostic, Span
from avactl.policy.path_patterns import matches_pattern
from avactl.spec.documents.document import Document
from avactl.spec.repository.tree import Tree

_MAX_FILES = 1000
"""Maximum number of files outside of `include` that are searched for specs."""
_MAX_FILE_BYTES = 4 * 1024 * 1024
"""Largest file that is searched, and largest avactl.yaml, in bytes."""
_SPEC_MARK = f"apiVersion: {names.GROUP}/".encode()
_JSON_MARK = re.compile(rb'"apiVersion"\s*:\s*"' + re.escape(f"{names.GROUP}/".encode())).search


_has_odd_suffix = re.compile(r"\.ya?ml(?:\.txt)?$", re.IGNORECASE).search


def _is_misnamed(path: str) -> bool:
    """Return True for `job.YAML` and `job.yaml.txt`, as some editors and systems name a file."""
    return _has_odd_suffix(path) is not None and not path.endswith((".yaml", ".yml"))


class _Settings(NamedTuple):
    include: list[str]
    exclude: list[str]
    document: Document | None
    """avactl.yaml, if it has more than defaults here."""


def unread_files(tree: Tree, asked: Collection[str]) -> list[Diagnostic]:
    """Return an error for each requested path that is not read, or warnings for all files that look like specs.

    `asked` are files and directories from the root; without any, the whole repository was requested.
    """
    wanted = _read_settings(tree)
    paths = tree.paths()
    read = spec_files(wanted.include, wanted.exclude, paths)
    if asked:
        return [_of_asked(path, wanted, paths) for path in asked if not _has_path(path, read) and not _is_setting(path)]
    found = [_of_json(path) for path in _json_specs(tree, wanted, paths)]
    found += [_of_suffix(path) for path in _misnamed_specs(tree, wanted, paths)]
    if {".", "./"}.isdisjoint(wanted.include):
        found += [_of_spec(path) for path in _overlooked_files(tree, wanted, paths, read)]
    return [*found, *_owners_of_nothing(wanted.document, read)]


def _read_settings(tree: Tree) -> _Settings:
    """Return what avactl.yaml includes and excludes; all of its environments read their own files."""
    try:
        data = tree.read(CONFIG_FILE) if tree.size(CONFIG_FILE) <= _MAX_FILE_BYTES else b""
    except OSError:
        data = b""
    if b"clude" not in data and b"owners" not in data:
        return _Settings(["."], [], None)
    from avactl.spec.documents.yaml import load_yaml

    documents, _ = load_yaml(CONFIG_FILE, data)
    value = documents[0].value if documents else None
    settings = value if isinstance(value, dict) else {}
    include = _list_texts(settings.get("include")) or ["."]
    environments = settings.get("environments")
    for each in environments.values() if isinstance(environments, dict) else ():
        if isinstance(each, dict):
            include += [*_list_texts(each.get("include")), *_list_texts(each.get("overlays"))]
    return _Settings(include, _list_texts(settings.get("exclude")), documents[0] if documents else None)


def _list_texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _has_path(path: str, files: Collection[str]) -> bool:
    return any(file == path or file.startswith(f"{path}/") for file in files)


def _is_setting(path: str) -> bool:
    return path == CONFIG_FILE or f"{path}/".startswith(POLICIES)


def _of_asked(path: str, wanted: _Settings, paths: Collection[str]) -> Diagnostic:
    if not _has_path(path, paths):
        why, hint = "it is hidden, or a symbolic link out of the repository", "move it to a visible path"
    elif not _has_path(path, spec_files(["."], [], paths)):
        why, hint = "specs are `*.yaml` and `*.yml` files outside of Pulumi projects", "rename or move it"
    elif _has_path(path, spec_files(wanted.include, [], paths)):
        why, hint = "`exclude` in avactl.yaml lists it", "remove it from `exclude`"
    else:
        why, hint = "`include` in avactl.yaml does not have it", f"add `{path.partition('/')[0]}` to `include`"
    return Diagnostic("file-not-read", f"this is not read as a spec: {why}", Span(path), hint=hint)


def _overlooked_files(tree: Tree, wanted: _Settings, paths: Collection[str], read: Collection[str]) -> Iterator[str]:
    outside = set(spec_files(["."], wanted.exclude, paths)).difference(read)
    for path in sorted(path for path in outside if not path.endswith(".py"))[:_MAX_FILES]:
        if _SPEC_MARK in _read_content(tree, path):
            yield path


def _json_specs(tree: Tree, wanted: _Settings, paths: Collection[str]) -> Iterator[str]:
    files = {path for path in paths if path.endswith(".json")}
    for path in sorted(files.difference(covered_paths(wanted.exclude, files)))[:_MAX_FILES]:
        if _JSON_MARK(_read_content(tree, path)):
            yield path


def _misnamed_specs(tree: Tree, wanted: _Settings, paths: Collection[str]) -> Iterator[str]:
    files = {path for path in paths if _is_misnamed(path)}
    for path in sorted(files.difference(covered_paths(wanted.exclude, files)))[:_MAX_FILES]:
        if _SPEC_MARK in _read_content(tree, path):
            yield path


def _read_content(tree: Tree, path: str) -> bytes:
    try:
        return tree.read(path) if tree.size(path) <= _MAX_FILE_BYTES else b""
    except OSError:
        return b""  # what is not read need not be readable


def _of_json(path: str) -> Diagnostic:
    hint = f"rename it to `{path.rpartition('/')[2][:-5]}.yaml`, which may have JSON, or add it to `exclude`"
    message = "this looks like a spec and is not read: specs are `*.yaml` and `*.yml` files"
    return Diagnostic("file-not-read", message, Span(path), severity="warning", hint=hint)


def _of_suffix(path: str) -> Diagnostic:
    name = path.rpartition("/")[2].partition(".")[0]
    hint = f"rename it to `{name}.yaml`, or add it to `exclude`"
    message = "this looks like a spec and is not read: specs are `*.yaml` and `*.yml` files"
    return Diagnostic("file-not-read", message, Span(path), severity="warning", hint=hint)


def _owners_of_nothing(document: Document | None, read: Collection[str]) -> Iterator[Diagnostic]:
    owners = document.get("owners") if document is not None else None
    for index, entry in enumerate(owners if isinstance(owners, list) else ()):
        pattern = entry.get("path") if isinstance(entry, dict) else None
        if (
            document is not None
            and isinstance(pattern, str)
            and not any(matches_pattern(pattern, path) for path in read)
        ):
            yield Diagnostic(
                "without-effect",
                f"`owners`: no file of specs matches `{pattern[:80]}`",
                document.span("owners", index, "path"),
                severity="warning",
                hint="correct the pattern, which is relative to avactl.yaml; `/teams/vision/` is a directory",
            )


def _of_spec(path: str) -> Diagnostic:
    hint = f"add `{path.partition('/')[0]}` to `include` in avactl.yaml, or the file to `exclude`"
    message = "this looks like a spec and is not read: `include` in avactl.yaml does not have it"
    return Diagnostic("file-not-read", message, Span(path), severity="warning", hint=hint)
