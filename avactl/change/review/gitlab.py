"""Notes of a merge request on GitLab, gitlab.com or self-managed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from urllib.parse import quote

from avactl.change.review.environment import Pipeline
from avactl.change.review.forge import Api, Comment, Forge, body_of, comment_of, text_at

NEEDED = (
    "create a project access token with the role Reporter and the scope `api`, and give it to the job as the masked "
    "variable GITLAB_TOKEN"
)
_HINTS = {401: f"GITLAB_TOKEN is invalid or expired: {NEEDED}", 403: f"the token lacks permission: {NEEDED}"}
"""Remedies by HTTP status."""


class GitLab(Forge):
    """The notes of a merge request."""

    def __init__(self, pipeline: Pipeline, sleep: Callable[[float], None] = time.sleep) -> None:
        path = f"/projects/{quote(pipeline.project, safe='')}/merge_requests/{pipeline.number}/notes"
        noun = f"merge request !{pipeline.number} of project {pipeline.project}"
        super().__init__(Api(pipeline.api, {"PRIVATE-TOKEN": pipeline.token}, sleep), path, noun, _HINTS)

    def comments(self) -> Iterator[Comment]:
        """Yield all notes except system notes."""
        gone = f"does it exist, and can the token read it? If not: {NEEDED}"
        for entry in self._pages(f"reading the notes of {self.noun}", gone, sort="asc", order_by="created_at"):
            if not entry.get("system"):
                yield comment_of(entry, "author", "username")

    def edit(self, comment: Comment, body: str) -> None:
        self._write("PUT", f"{self._list}/{comment.id}", body, f"editing the note on {self.noun}")

    def _read_only(self) -> tuple[str, str]:
        return "the token is read-only", NEEDED

    def _login(self) -> str:
        """A project's token has its own user."""
        asked = "identifying the token's user"
        answer = self._api.send("GET", "/user", asked=asked)
        self._want(answer, asked)
        return text_at(body_of(answer, asked), "username")
