"""Notes of a merge request on GitLab, on gitlab.com or elsewhere."""

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
    "make a project access token with the role Reporter and the scope `api`, and give it to the job as the masked "
    "variable GITLAB_TOKEN"
)
_HINTS = {401: f"GITLAB_TOKEN is not valid, or ended: {NEEDED}", 403: f"the token may not do this: {NEEDED}"}
"""Remedies by HTTP status."""


class GitLab:
    """A merge request's comments are its notes."""

    def __init__(self, pipeline: Pipeline, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api = Api(pipeline.api, {"PRIVATE-TOKEN": pipeline.token}, sleep)
        self._fork = pipeline.fork
        project = quote(pipeline.project, safe="")
        self._list = f"/projects/{project}/merge_requests/{pipeline.number}/notes"
        self.noun = f"merge request !{pipeline.number} of project {pipeline.project}"

    def comments(self) -> Iterator[Comment]:
        """All notes that people or programs wrote, the oldest first. Raises ForgeError."""
        asked = f"reading the notes of {self.noun}"
        try:
            for page in self._api.pages(self._list, asked=asked, per_page=100, sort="asc", order_by="created_at"):
                yield from (_comment(entry) for entry in page if not entry.get("system"))
        except GoneError as error:
            raise ForgeError(str(error), f"does it exist, and may the token see it? If not: {NEEDED}") from None
        except ForgeError as error:
            raise error.explained(_HINTS) from None

    def create(self, body: str) -> None:
        """Write a new note. Raises ForgeError."""
        asked = f"commenting on {self.noun}"
        self._written(self._api.send("POST", self._list, asked=asked, repeat=False, json={"body": body}), asked)

    def edit(self, comment: Comment, body: str) -> None:
        """Write over a note. Raises ForgeError; GoneError where it was deleted meanwhile."""
        asked = f"editing the note on {self.noun}"
        self._written(self._api.send("PUT", f"{self._list}/{comment.id}", asked=asked, json={"body": body}), asked)

    def _written(self, answer: httpx.Response, asked: str) -> None:
        if answer.status_code == 403:
            raise ReadOnlyError(f"{asked}: the token may only read", NEEDED)
        try:
            want(answer, asked)
        except GoneError:
            raise
        except ForgeError as error:
            raise error.explained(_HINTS) from None

    def own(self, comment: Comment) -> bool:
        """Whether a note was written with this token: a project's token has a user of its own."""
        return bool(comment.author) and comment.author == self._me

    @cached_property
    def _me(self) -> str:
        asked = "asking whose token it is"
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
