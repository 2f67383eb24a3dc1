"""Notes of a merge request on GitLab, gitlab.com or self-managed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any
from urllib.parse import quote

import httpx

from avactl.review.environment import Pipeline
from avactl.review.forge import Api, Comment, ForgeError, GoneError, ReadOnlyError, body_of, number_of, want

NEEDED = (
    "create a project access token with the role Reporter and the scope `api`, and give it to the job as the masked "
    "variable GITLAB_TOKEN"
)
_HINTS = {401: f"GITLAB_TOKEN is invalid or expired: {NEEDED}", 403: f"the token lacks permission: {NEEDED}"}
"""Remedies by HTTP status."""


class GitLab:
    """The notes of a merge request."""

    def __init__(self, pipeline: Pipeline, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api = Api(pipeline.api, {"PRIVATE-TOKEN": pipeline.token}, sleep)
        self._fork = pipeline.fork
        project = quote(pipeline.project, safe="")
        self._list = f"/projects/{project}/merge_requests/{pipeline.number}/notes"
        self.noun = f"merge request !{pipeline.number} of project {pipeline.project}"

    def comments(self) -> Iterator[Comment]:
        """Yield all notes except system notes, oldest first. Raises ForgeError."""
        asked = f"reading the notes of {self.noun}"
        try:
            for page in self._api.pages(self._list, asked=asked, per_page=100, sort="asc", order_by="created_at"):
                yield from (_comment(entry) for entry in page if not entry.get("system"))
        except GoneError as error:
            raise ForgeError(str(error), f"does it exist, and can the token read it? If not: {NEEDED}") from None
        except ForgeError as error:
            raise error.explained(_HINTS) from None

    def create(self, body: str) -> None:
        """Create a note. Raises ForgeError."""
        asked = f"commenting on {self.noun}"
        self._written(self._api.send("POST", self._list, asked=asked, repeat=False, json={"body": body}), asked)

    def edit(self, comment: Comment, body: str) -> None:
        """Replace the text of a note. Raises ForgeError; GoneError if it was deleted."""
        asked = f"editing the note on {self.noun}"
        self._written(self._api.send("PUT", f"{self._list}/{comment.id}", asked=asked, json={"body": body}), asked)

    def _written(self, answer: httpx.Response, asked: str) -> None:
        if answer.status_code == 403:
            raise ReadOnlyError(f"{asked}: the token is read-only", NEEDED)
        try:
            want(answer, asked)
        except GoneError:
            raise
        except ForgeError as error:
            raise error.explained(_HINTS) from None

    def own(self, comment: Comment) -> bool:
        """Return whether a note was written with this token; a project's token has its own user."""
        return bool(comment.author) and comment.author == self._me

    @cached_property
    def _me(self) -> str:
        asked = "identifying the token's user"
        answer = self._api.send("GET", "/user", asked=asked)
        try:
            want(answer, asked)
        except ForgeError as error:
            raise error.explained(_HINTS) from None
        data = body_of(answer, asked)
        return str(data.get("username", "")) if isinstance(data, dict) else ""


def _comment(entry: dict[str, Any]) -> Comment:
    author = entry.get("author")
    name = str(author.get("username") or "") if isinstance(author, dict) else ""
    return Comment(number_of(entry), str(entry.get("body") or ""), name)
