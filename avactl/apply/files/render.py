"""Compile a repository and write its objects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

from avactl.apply.files import contents as files
from avactl.apply.files import output
from avactl.apply.files.paths import object_path
from avactl.compiler.incremental.compile import CompileOutcome, compile_cached
from avactl.compiler.incremental.disk import ResultStore
from avactl.spec.repository.checkout import CommitTree
from avactl.spec.repository.tree import DirTree

if TYPE_CHECKING:
    from avactl.compiler import Compilation


def write_objects(
    tree: DirTree | CommitTree, directory: str, *, use_cache: bool = True, force: bool = False
) -> tuple[CompileOutcome, output.WrittenFiles | None]:
    """Compile a repository and make the directory contain its objects; None if the specs have errors.

    Raises OutputError.
    """
    compiled = compile_cached(tree, object_path, files.object_text, use_cache=use_cache)
    if not compiled.ok:
        return compiled, None
    store = ResultStore("render", os.path.realpath(directory)) if use_cache else None
    seen, *_ = (store.load() if store else None) or [{}]
    written = output.write(directory, compiled.files, compiled.texts, force=force, seen=seen)
    if store and written.seen != seen:
        store.save([written.seen])
    return compiled, written


def print_objects(tree: DirTree | CommitTree, stream: BinaryIO) -> Compilation:
    """Compile a repository and print its objects as one YAML stream in apply order; nothing if there are errors."""
    from avactl.compiler import compile_tree

    compilation = compile_tree(tree)
    if compilation.ok:
        # Bytes: the text is UTF-8 wherever the terminal's locale is something else.
        stream.writelines(text.encode() for text in files.stream(compilation.manifests))
    return compilation
