"""Files that a compile does not read: asked for by name, or with the look of a spec."""

from __future__ import annotations

from collections.abc import Collection

from avactl.compiler.config import Config, load_config
from avactl.compiler.selection import CONFIG_FILE, POLICIES, spec_files
from avactl.diagnostics import Diagnostic, Span
from avactl.kinds.base import GROUP
from avactl.source.tree import Tree
from avactl.source.yaml import MAX_BYTES

_MOST = 1000
"""Maximum number of files outside of `include` that are searched for specs."""
_SPEC = f"apiVersion: {GROUP}/".encode()


def unread(tree: Tree, asked: Collection[str]) -> list[Diagnostic]:
    """Return an error for each requested path that is not read, or warnings for all files that look like specs.

    `asked` are files and directories from the root; without any, the whole repository was requested.
    """
    config, _ = load_config(tree)
    paths = tree.paths()
    read = spec_files(config.include, config.exclude, paths)
    if asked:
        return [_of_asked(path, config, paths) for path in asked if not _has(path, read) and not _is_setting(path)]
    return [_of_spec(path) for path in _overlooked(tree, config, paths, read)]


def _has(path: str, files: Collection[str]) -> bool:
    return any(file == path or file.startswith(f"{path}/") for file in files)


def _is_setting(path: str) -> bool:
    return path == CONFIG_FILE or f"{path}/".startswith(POLICIES)


def _of_asked(path: str, config: Config, paths: Collection[str]) -> Diagnostic:
    if not _has(path, paths):
        why, hint = "it is hidden, or a symbolic link out of the repository", "move it to a visible path"
    elif not _has(path, spec_files(["."], [], paths)):
        why, hint = "specs are `*.yaml` and `*.yml` files outside of Pulumi projects", "rename or move it"
    elif _has(path, spec_files(config.include, [], paths)):
        why, hint = "`exclude` in avactl.yaml lists it", "remove it from `exclude`"
    else:
        why, hint = "`include` in avactl.yaml does not have it", f"add `{path.partition('/')[0]}` to `include`"
    return Diagnostic("file-not-read", f"this is not read as a spec: {why}", Span(path), hint=hint)


def _overlooked(tree: Tree, config: Config, paths: Collection[str], read: Collection[str]) -> list[str]:
    outside = set(spec_files(["."], config.exclude, paths)).difference(read)
    found = []
    for path in sorted(path for path in outside if not path.endswith(".py"))[:_MOST]:
        try:
            if tree.size(path) <= MAX_BYTES and _SPEC in tree.read(path):
                found.append(path)
        except OSError:
            continue  # what is not read need not be readable
    return found


def _of_spec(path: str) -> Diagnostic:
    hint = f"add `{path.partition('/')[0]}` to `include` in avactl.yaml, or the file to `exclude`"
    message = "this looks like a spec and is not read: `include` in avactl.yaml does not have it"
    return Diagnostic("file-not-read", message, Span(path), severity="warning", hint=hint)
