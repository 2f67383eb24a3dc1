"""`avactl validate`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from avactl.cli.common import Format, hinted, open_repository, render_diagnostics, select
from avactl.cli.fast_path import Argument, Option
from avactl.exit_codes import PROBLEMS

if TYPE_CHECKING:
    from avactl.compiler.incremental.compile import Compiled
    from avactl.source.tree import DirTree
from avactl.terminal import colour


def validate(
    paths: Annotated[list[Path] | None, Argument(help="Repository, or files in one.", show_default=".")] = None,
    format: Annotated[Format, Option("--format", "-f", help="Output format of the problems.")] = Format.text,
    cache: Annotated[bool, Option(help="Cache results between runs.")] = True,
    code: Annotated[bool, Option("--code", help="Also ask git servers for the revisions of `code.git`.")] = False,
) -> None:
    """Check specs and report every problem with file, line, caret and remedy."""
    from avactl.compiler.incremental.compile import compile_cached
    from avactl.compiler.unread import unread
    from avactl.emit.paths import object_path

    tree, asked = open_repository(paths or [Path()])
    compiled = compile_cached(tree, object_path, use_cache=cache)
    if code:
        compiled = _with_revisions(tree, compiled)
    problems = [*select(compiled, asked), *unread(tree, asked)]
    if format is Format.text and not problems:
        print(f"ok: {sum(compiled.kinds.values())} specs of {len(compiled.kinds)} kinds")
    else:
        sys.stdout.write(render_diagnostics(problems, tree, format, colour()))
    elsewhere = len(compiled.diagnostics) - len(select(compiled, asked))
    if elsewhere and format is Format.text:
        print(f"{elsewhere} more in other files of the repository: `avactl validate {tree.root}`")
    if any(d.severity == "error" for d in problems):
        sys.exit(PROBLEMS)


def _with_revisions(tree: DirTree, compiled: Compiled) -> Compiled:
    """Add the problems of revisions that git servers do not have."""
    from avactl.compiler.driver import compile_tree
    from avactl.review.revisions import revision_problems

    with hinted():
        found = revision_problems(compile_tree(tree).program)
        return replace(compiled, diagnostics=(*compiled.diagnostics, *found))
