"""`avactl validate`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from avactl.base.exit_codes import PROBLEMS
from avactl.base.terminal import count_text, use_colour, visible_text
from avactl.cli.common import (
    SOURCE,
    TEXT,
    Format,
    choose_environment,
    choose_source,
    covers_file,
    exit_on_hinted_error,
    open_repository,
    render_diagnostics,
    replace_file,
    select,
)
from avactl.spec.repository.checkout import WORK_TREE
from avactl.spec.repository.tree import DirTree, Tree

if TYPE_CHECKING:
    from avactl.compiler.incremental.compile import CompileOutcome
    from avactl.diagnostics import Diagnostic


def validate(
    paths: Annotated[list[Path] | None, typer.Argument(help="Repository, or files in one.", show_default=".")] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="Output format of the problems.")] = TEXT,
    cache: Annotated[bool, typer.Option(help="Cache results between runs.")] = True,
    fix: Annotated[
        bool, typer.Option("--fix", help="First correct what has one remedy, such as misspelt keys.")
    ] = False,
    environment: Annotated[
        str,
        typer.Option("--environment", metavar="NAME", help="Only this environment of avactl.yaml.", show_default="all"),
    ] = "",
    source: Annotated[str, typer.Option("--source", metavar="SOURCE", help=SOURCE, show_default=False)] = "",
    code: Annotated[bool, typer.Option("--code", help="Also ask git servers for the revisions of `code.git`.")] = False,
) -> None:
    """Check specs and report every problem with file, line, caret and remedy."""
    from avactl.apply.files.paths import object_path
    from avactl.compiler.incremental.compile import compile_cached
    from avactl.compiler.layers.environments import environments_of
    from avactl.compiler.lint.unread import unread_files

    choose_environment(environment)
    choose_source(WORK_TREE if fix else source)
    tree, asked = open_repository(paths or [Path()])
    names = environments_of(tree) or [tree.environment]
    if fix and isinstance(tree, DirTree):
        for tree.environment in names:
            _fix(tree, asked, sys.stdout if format == TEXT else sys.stderr)
    found: dict[str, CompileOutcome] = {}
    for name in names:
        tree.environment = name
        compiled = compile_cached(tree, object_path, use_cache=cache)
        found[name] = _with_revisions(tree, compiled) if code else compiled
    compiled = _together(found)
    selected = select(compiled, asked)
    problems = [*selected, *unread_files(tree, asked)]
    if format == TEXT and not problems:
        for name, each in found.items():
            where = f" in environment {name}" if name else ""
            specs, kinds = count_text(sum(each.kinds.values()), "spec"), count_text(len(each.kinds), "kind")
            print(f"ok: {specs} of {kinds}{where}")
    else:
        sys.stdout.write(render_diagnostics(problems, tree, format, use_colour()))
    elsewhere = len(set(compiled.diagnostics).difference(selected))
    if elsewhere and format == TEXT:
        print(f"{elsewhere} more in other files of the repository: `avactl validate {tree.root}`")
    if any(d.severity == "error" for d in problems):
        sys.exit(PROBLEMS)


def _together(found: dict[str, CompileOutcome]) -> CompileOutcome:
    """Return the problems of all environments; those that not all have name theirs."""
    from avactl.diagnostics import sort_diagnostics

    first = next(iter(found.values()))
    if len(found) == 1:
        return first

    def joined(lists: dict[str, tuple[Diagnostic, ...]]) -> tuple[Diagnostic, ...]:
        every = set.intersection(*map(set, lists.values()))
        return tuple(
            sort_diagnostics(
                problem if problem in every else replace(problem, message=f"{problem.message} (environment {name})")
                for name, problems in lists.items()
                for problem in problems
            )
        )

    return replace(
        first,
        diagnostics=joined({name: each.diagnostics for name, each in found.items()}),
        untraced=joined({name: each.untraced for name, each in found.items()}),
    )


def _fix(tree: DirTree, asked: list[str], told: TextIO) -> None:
    """Correct the requested files, or all, and report each replacement."""
    from avactl.compiler.driver import compile_tree
    from avactl.compiler.lint.fixes import apply_fixes

    texts, made = apply_fixes(
        tree, lambda changed: compile_tree(changed).diagnostics, lambda file: covers_file(asked, file)
    )
    for file, text in texts.items():
        replace_file(tree.root / file, text.encode())
    for each in made:
        print(visible_text(f"fixed {each.file}:{each.line}:{each.column} {each.old} → {each.new}"), file=told)


def _with_revisions(tree: Tree, compiled: CompileOutcome) -> CompileOutcome:
    """Add the problems of revisions that git servers do not have."""
    from avactl.change.review.revisions import revision_problems
    from avactl.compiler.driver import compile_tree

    with exit_on_hinted_error():
        found = revision_problems(compile_tree(tree).program)
        return replace(compiled, diagnostics=(*compiled.diagnostics, *found), untraced=(*compiled.untraced, *found))
