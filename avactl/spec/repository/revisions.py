"""Revisions of repositories on git servers."""

from __future__ import annotations

import re
from pathlib import Path

_IS_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}").fullmatch
_IS_MISSING_REF = re.compile(r"not our ref|could(n't| not) find remote ref|no such remote ref|bad object")
"""Messages of git for a revision that the server does not have. Source: fetch-pack.c and upload-pack.c of git."""


def is_commit(revision: str) -> bool:
    """Return True if a revision is the full name of a commit, which always has the same content."""
    return _IS_COMMIT(revision) is not None


def has_revision(url: str, revision: str) -> bool:
    """Ask a git server for a commit, tag or branch. Raises GitError if it does not answer.

    A commit by its full name must be given out by the server, as GitHub, GitLab and Gitea do for all of them. Nothing
    of the repository is kept.
    """
    # Here, because kinds import this module, and a spec file in Python, which imports kinds, may not import subprocess.
    from tempfile import TemporaryDirectory

    from avactl.spec.repository.git import GitAccess, GitCommandError, init_bare, run_git

    with TemporaryDirectory(prefix="avactl-") as folder:
        init_bare(Path(folder))
        # One commit without its files.
        options = ("--quiet", "--depth=1", "--filter=tree:0", "--no-tags", "--no-write-fetch-head")
        try:
            run_git(folder, "fetch", *options, "--", url, revision, access=GitAccess.REMOTE)
        except GitCommandError as error:
            if _IS_MISSING_REF.search(error.said):
                return False
            raise
    return True
