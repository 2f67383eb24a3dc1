"""One comment, found again by its marker, and edited in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from avactl.review.environment import Pipeline
from avactl.review.forge import Comment, Forge, ForgeError, GoneError, UnsureError
from avactl.review.github import GitHub
from avactl.review.gitlab import GitLab

Done = Literal["created", "edited", "unchanged", "nothing"]


def open_forge(pipeline: Pipeline, sleep: Callable[[float], None] = time.sleep) -> Forge:
    """Return the client for the pull request and token of a pipeline."""
    return GitHub(pipeline, sleep) if pipeline.forge == "github" else GitLab(pipeline, sleep)


def find(forge: Forge, marker: str) -> Comment | None:
    """Our comment: the oldest one with the marker as a line, which somebody may have written above, and by our token.

    Anybody can write the marker, so it alone proves nothing; who wrote a comment is asked only where one has it.
    """
    return next((c for c in forge.comments() if marker in map(str.strip, c.body.splitlines()) and forge.own(c)), None)


def publish(
    forge: Forge, marker: str, body: str, *, quiet: bool = False, sleep: Callable[[float], None] = time.sleep
) -> Done:
    """Write the comment. Where it is `quiet`, only over one that is there. Raises ForgeError."""
    mine = find(forge, marker)
    if mine is not None:
        if _same(mine.body, body):
            return "unchanged"
        try:
            forge.edit(mine, body)
            return "edited"
        except GoneError:
            pass  # somebody deleted it since it was read
    if quiet:
        return "nothing"
    return _create(forge, marker, body, sleep)


def _create(forge: Forge, marker: str, body: str, sleep: Callable[[float], None]) -> Done:
    for attempt in range(3):
        try:
            forge.create(body)
            return "created"
        except UnsureError as error:
            failed = error
        except GoneError as error:
            raise ForgeError(str(error), "may the token write comments there?") from None
        sleep(2.0**attempt)
        # An error of the server may come after it has written: a second comment helps nobody.
        if find(forge, marker) is not None:
            return "created"
    raise ForgeError(str(failed), "the forge does not take it now: run the job again later")


def _same(one: str, other: str) -> bool:
    """Whether two texts are the same to a reader: forges change line ends, and cut blanks at the end."""
    return one.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()
