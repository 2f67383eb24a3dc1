"""Comments of a pull request on GitHub, also of GitHub Enterprise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import httpx

from avactl.review.environment import Pipeline
from avactl.review.forge import Api, Comment, ForgeError, GoneError, ReadOnlyError, body_of, number_of, want

_JOBS = "github-actions[bot]"
"""User of a job's own token."""
_HINTS = {
    401: "GITHUB_TOKEN is not valid: `env: {GITHUB_TOKEN: ${{ github.token }}}` passes the job's own token",
    403: "the token lacks permission: a fine-grained token needs `Pull requests: read and write`",
}
"""Remedies by HTTP status."""


class GitHub:
    """A pull request's comments are those of the issue with its number."""

    def __init__(self, pipeline: Pipeline, sleep: Callable[[float], None] = time.sleep) -> None:
        headers = {
            "Authorization": f"Bearer {pipeline.token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        self._api = Api(pipeline.api, headers, sleep)
        self._graphql = f"{pipeline.api.removesuffix('/v3')}/graphql"  # GitHub Enterprise: /api/v3 and /api/graphql
        self._project = pipeline.project
        self._fork = pipeline.fork
        self._list = f"/repos/{pipeline.project}/issues/{pipeline.number}/comments"
        self.noun = f"pull request #{pipeline.number} of {pipeline.project}"

    def comments(self) -> Iterator[Comment]:
        """Yield all comments, oldest first. Raises ForgeError."""
        asked = f"reading the comments of {self.noun}"
        try:
            for page in self._api.pages(self._list, asked=asked, per_page=100):
                yield from map(_comment, page)
        except GoneError as error:
            hint = "does the pull request exist, and can the token read the repository (`contents: read`)?"
            raise ForgeError(str(error), hint) from None
        except ForgeError as error:
            raise error.explained(_HINTS) from None

    def create(self, body: str) -> None:
        """Create a comment. Raises ForgeError."""
        asked = f"commenting on {self.noun}"
        self._written(self._api.send("POST", self._list, asked=asked, repeat=False, json={"body": body}), asked)

    def edit(self, comment: Comment, body: str) -> None:
        """Replace the text of a comment. Raises ForgeError; GoneError if it was deleted."""
        asked = f"editing the comment on {self.noun}"
        path = f"/repos/{self._project}/issues/comments/{comment.id}"
        self._written(self._api.send("PATCH", path, asked=asked, json={"body": body}), asked)

    def _written(self, answer: httpx.Response, asked: str) -> None:
        if answer.status_code == 403:
            why = "the token of a pull request from a fork is read-only" if self._fork else "the token is read-only"
            hint = "give the job `permissions: {contents: read, pull-requests: write}`"
            raise ReadOnlyError(f"{asked}: {why}", "" if self._fork else hint)
        try:
            want(answer, asked)
        except GoneError:
            raise
        except ForgeError as error:
            raise error.explained(_HINTS) from None

    def own(self, comment: Comment) -> bool:
        """Return True if this token's user wrote the comment: another bot may quote the marker."""
        return bool(comment.author) and comment.author == self._me

    @cached_property
    def _me(self) -> str:
        """Login of the token's user. An app's token, such as a job's, is told by GraphQL only: `NAME[bot]`."""
        asked = "identifying the token's user"
        answer = self._api.send("GET", "/user", asked=asked)
        if answer.status_code == 401:
            want_and_explain(answer)
        if answer.is_success:
            return _login(body_of(answer, asked))
        answer = self._api.send("POST", self._graphql, asked=asked, json={"query": "query{viewer{login}}"})
        data = body_of(answer, asked) if answer.is_success else None
        viewer = (data.get("data") or {}) if isinstance(data, dict) else {}
        return (_login(viewer.get("viewer")) if isinstance(viewer, dict) else "") or _JOBS


def want_and_explain(answer: httpx.Response) -> None:
    """Check a response like `want`, and add the remedy. Raises ForgeError."""
    try:
        want(answer, "identifying the token's user")
    except ForgeError as error:
        raise error.explained(_HINTS) from None


def _comment(entry: dict[str, Any]) -> Comment:
    return Comment(number_of(entry), str(entry.get("body") or ""), _login(entry.get("user")))


def _login(user: Any) -> str:
    """Name of a user; "" of a deleted account, of which there is none."""
    return str(user.get("login") or "") if isinstance(user, dict) else ""
