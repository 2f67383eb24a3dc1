"""Comments of a pull request on GitHub, also of GitHub Enterprise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from avactl.change.review.environment import Pipeline
from avactl.change.review.forge import Api, Comment, Forge, body_of, comment_of, text_at

_JOBS = "github-actions[bot]"
"""User of a job's own token."""
_HINTS = {
    401: "GITHUB_TOKEN is not valid: `env: {GITHUB_TOKEN: ${{ github.token }}}` passes the job's own token",
    403: "the token lacks permission: a fine-grained token needs `Pull requests: read and write`",
}
"""Remedies by HTTP status."""


class GitHub(Forge):
    """A pull request's comments are those of the issue with its number."""

    def __init__(self, pipeline: Pipeline, sleep: Callable[[float], None] = time.sleep) -> None:
        headers = {
            "Authorization": f"Bearer {pipeline.token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        path = f"/repos/{pipeline.project}/issues/{pipeline.number}/comments"
        noun = f"pull request #{pipeline.number} of {pipeline.project}"
        super().__init__(Api(pipeline.api, headers, sleep), path, noun, _HINTS)
        self._graphql = f"{pipeline.api.removesuffix('/v3')}/graphql"  # GitHub Enterprise: /api/v3 and /api/graphql
        self._project, self._fork = pipeline.project, pipeline.fork

    def comments(self) -> Iterator[Comment]:
        gone = "does the pull request exist, and can the token read the repository (`contents: read`)?"
        for entry in self._pages(f"reading the comments of {self.noun}", gone):
            yield comment_of(entry, "user", "login")

    def edit(self, comment: Comment, body: str) -> None:
        path = f"/repos/{self._project}/issues/comments/{comment.id}"
        self._write("PATCH", path, body, f"editing the comment on {self.noun}")

    def _read_only(self) -> tuple[str, str]:
        if self._fork:
            return "the token of a pull request from a fork is read-only", ""
        return "the token is read-only", "give the job `permissions: {contents: read, pull-requests: write}`"

    def _login(self) -> str:
        """An app's token, such as a job's, is told by GraphQL only: `NAME[bot]`."""
        asked = "identifying the token's user"
        answer = self._api.send("GET", "/user", asked=asked)
        if answer.status_code == 401:
            self._want(answer, asked)
        if answer.is_success:
            return text_at(body_of(answer, asked), "login")
        answer = self._api.send("POST", self._graphql, asked=asked, json={"query": "query{viewer{login}}"})
        data = body_of(answer, asked) if answer.is_success else None
        viewer = (data.get("data") or {}) if isinstance(data, dict) else {}
        return (text_at(viewer.get("viewer"), "login") if isinstance(viewer, dict) else "") or _JOBS
