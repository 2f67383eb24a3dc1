"""Publish one comment: find it by its marker, and edit it in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from avactl.forges import find_forge
from avactl.forges.comments import Comment, Comments
from avactl.forges.forge import PipelineRun
from avactl.forges.rest import ForgeError, GoneError, UnsureError

Done = Literal["created", "edited", "unchanged", "nothing"]


def connect(run: PipelineRun, sleep: Callable[[float], None] = time.sleep) -> Comments:
    """Return the client for the comments on the pull request of a pipeline run."""
    return find_forge(run.forge).connect_comments(run, sleep)


def find_own(comments: Comments, marker: str) -> Comment | None:
    """Return our comment: the oldest with the marker on a line of its own that was written with our token.

    Anybody can write the marker, so it proves nothing; the author is checked only for comments that have it.
    """
    return next(
        (c for c in comments.comments() if marker in map(str.strip, c.body.splitlines()) and comments.own(c)), None
    )


def publish(
    comments: Comments, marker: str, body: str, *, quiet: bool = False, sleep: Callable[[float], None] = time.sleep
) -> Done:
    """Write the comment; if `quiet`, only update an existing one. Raises ForgeError."""
    mine = find_own(comments, marker)
    if mine is not None:
        if _same(mine.body, body):
            return "unchanged"
        try:
            comments.edit(mine, body)
            return "edited"
        except GoneError:
            pass  # deleted since it was read
    if quiet:
        return "nothing"
    return _create(comments, marker, body, sleep)


def _create(comments: Comments, marker: str, body: str, sleep: Callable[[float], None]) -> Done:
    for attempt in range(3):
        try:
            comments.create(body)
            return "created"
        except UnsureError as error:
            failed = error
        except GoneError as error:
            raise ForgeError(str(error), "does the token have permission to write comments?") from None
        sleep(2.0**attempt)
        # The server may have failed after writing: retrying could create a second comment.
        if find_own(comments, marker) is not None:
            return "created"
    raise ForgeError(str(failed), "the forge failed to store the comment; run the job again later")


def _same(one: str, other: str) -> bool:
    """Return whether two texts are equal to a reader: forges change line endings and strip trailing spaces."""
    return one.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()
