"""Determine which of two spec commits is newer, even in a shallow clone."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from avactl.apply.publish.store import FailedError, PublishError, PublishStore
from avactl.compiler import Compilation, compile_tree
from avactl.compiler.config import base_in_environment
from avactl.forges import join_hints
from avactl.spec.repository.git import GitAccess
from avactl.spec.repository.git_tree import GitTree

_MAX_COMPILED_COMMITS = 8
"""Maximum number of commits between two that are compiled to check for differences."""


class Order(Enum):
    """Relation of a commit to the published one."""

    SAME = "same"
    NEWER = "newer"
    OLDER = "older"
    UNRELATED = "unrelated"


def find_relation(store: PublishStore, published: str, source: str, remote: str | None) -> Order:
    """Return the relation of `source` to the published commit. Missing history is fetched from the remote, if given.

    Raises PublishError if a shallow clone makes it undecidable.
    """
    if published == source:
        return Order.SAME
    found = _local_relation(store, published, source)
    if found is None and remote is not None and remote in store.run("remote").split():
        _fetch_history(store, remote)
        found = _local_relation(store, published, source)
    if found is None and store.shallow:
        raise PublishError(
            f"the clone is shallow: it cannot tell whether {source[:10]} is newer than {published[:10]}",
            f"`git fetch --unshallow` (in pipelines {join_hints(lambda forge: forge.full_clone)})",
        )
    return found or Order.UNRELATED


def _local_relation(store: PublishStore, published: str, source: str) -> Order | None:
    """Return the relation if the local commits determine it."""
    if store.resolve(published) is None:
        return None
    if store.succeeds("merge-base", "--is-ancestor", published, source):
        return Order.NEWER
    return Order.OLDER if store.succeeds("merge-base", "--is-ancestor", source, published) else None


def _fetch_history(store: PublishStore, remote: str) -> None:
    """Fetch all branches of the remote with their history: the published commit may be on none of ours."""
    depth = ["--unshallow"] if store.shallow else []
    try:
        store.run(
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--recurse-submodules=no",
            *depth,
            "--",
            remote,
            f"+refs/heads/*:refs/remotes/{remote}/*",
            access=GitAccess.REMOTE,
        )
    except FailedError:
        return  # the caller reports that the relation is unknown


def quiet_between(store: PublishStore, published: str, source: str, same: Callable[[Compilation], bool]) -> bool:
    """Return whether no commit between the two would publish different objects.

    Otherwise a publisher of such a commit may still be running, e.g. for a change that was reverted at once, and the
    branch must record its newer position.
    """
    listed = store.run("rev-list", f"{published}..{source}", "--", store.pathspec).split()
    between = [commit for commit in listed if commit != source]
    trees = (GitTree(store.directory, commit) for commit in between)
    return len(between) <= _MAX_COMPILED_COMMITS and all(
        same(compile_tree(base_in_environment(tree))) for tree in trees
    )
