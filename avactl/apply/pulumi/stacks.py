"""Find the Pulumi stacks that a change affects: those whose objects differ between two revisions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from avactl.apply.pulumi.engine import StackName, stack_names
from avactl.compiler import Compilation, compile_tree
from avactl.compiler.config import base_in_environment
from avactl.compiler.selection import PROJECT_DIRECTORY
from avactl.spec.repository.git import GitCommandError, git_work_tree, locate_repository
from avactl.spec.repository.git_tree import GitTree, find_commit


@dataclass(frozen=True, slots=True)
class Touched:
    """The affected stacks, in apply order."""

    stacks: tuple[StackName, ...]
    why_all: str = ""
    """Reason, if all stacks are affected."""
    orphans: tuple[StackName, ...] = ()
    """Stacks whose cluster was removed, or is now applied by another engine."""


def touched_stacks(root: Path, head: Compilation, head_revision: str | None, base: str | None) -> Touched:
    """Return the stacks that differ between the revision `base` and the compilation.

    Returns all of them without a base, if the base has errors, or if the `stacks` directory differs, because it
    contains the stacks' settings and the version of avactl. Raises GitError.
    """
    now = _of_pulumi(head)
    if base is None or not base.strip("0"):  # a forge's null commit
        return Touched(tuple(now), "no base revision to compare with")
    commit = find_commit(root, base)
    if _path_differs(root, commit, head_revision, PROJECT_DIRECTORY):
        return Touched(tuple(now), f"`{PROJECT_DIRECTORY}` changed")
    before = compile_tree(base_in_environment(GitTree(root, commit)))
    if not before.ok:
        return Touched(tuple(now), f"{commit[:10]} has errors, so the applied objects are unknown")
    old, new = _stack_contents(before), _stack_contents(head)
    clusters = {stack.cluster for stack in now}
    gone = [stack for stack in _of_pulumi(before) if stack not in now]
    changed = {stack for stack in now if old.get(stack) != new.get(stack)}
    changed |= {stack for stack in gone if stack.cluster in clusters}
    return Touched(
        tuple(sorted(changed, key=lambda stack: (stack.cluster, stack.team or ""))),
        orphans=tuple(stack for stack in gone if stack.cluster not in clusters),
    )


def _of_pulumi(compilation: Compilation) -> list[StackName]:
    """Return the stacks that `avactl up` applies."""
    program = compilation.program
    return [
        stack for stack in stack_names(compilation) if program.cluster_spec(stack.cluster).reconcile.mode == "pulumi"
    ]


def _stack_contents(compilation: Compilation) -> dict[StackName, list[object]]:
    """Return the contents of each stack in order."""
    found: dict[StackName, list[object]] = {}
    for m in compilation.manifests:
        content = (m.item.key, m.body, m.holds_data, m.patch, m.owned)
        found.setdefault(StackName(m.cluster, m.item.team), []).append(content)
    return found


def _path_differs(root: Path, base: str, head: str | None, path: str) -> bool:
    """Return whether anything below a path of `root` differs. Raises GitError."""
    path = locate_repository(root).prefix + path
    compared = ("diff", "--quiet", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
    try:
        git_work_tree(root, *compared, base, *([find_commit(root, head)] if head else []), "--", path)
    except GitCommandError as error:
        if error.code == 1:
            return True
        raise
    return False
