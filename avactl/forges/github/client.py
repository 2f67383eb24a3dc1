"""Comments and pull requests on GitHub, also on GitHub Enterprise.

Sources: docs.github.com/rest (issue comments, pulls).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from avactl.forges.comments import Comment, Comments, parse_comment
from avactl.forges.forge import PipelineRun, Sleep
from avactl.forges.proposals import Proposals, same_repository
from avactl.forges.rest import Api, parse_json, text_at

_JOBS = "github-actions[bot]"
"""User of a job's own token."""
_HINTS = {
    401: "GITHUB_TOKEN is not valid: `env: {GITHUB_TOKEN: ${{ github.token }}}` passes the job's own token",
    403: "the token lacks permission: a fine-grained token needs `Pull requests: read and write`",
}
"""Remedies by HTTP status."""


def _headers(token: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {token}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }


class GitHubComments(Comments):
    """A pull request's comments are those of the issue with its number."""

    def __init__(self, run: PipelineRun, sleep: Sleep) -> None:
        path = f"/repos/{run.project}/issues/{run.number}/comments"
        noun = f"pull request #{run.number} of {run.project}"
        super().__init__(Api(run.api, _headers(run.token), sleep), path, noun, _HINTS)
        self._graphql = f"{run.api.removesuffix('/v3')}/graphql"  # GitHub Enterprise: /api/v3 and /api/graphql
        self._project, self._fork = run.project, run.fork

    def comments(self) -> Iterator[Comment]:
        gone = "does the pull request exist, and can the token read the repository (`contents: read`)?"
        for entry in self._pages(f"reading the comments of {self.noun}", gone, per_page=100):
            yield parse_comment(entry, "user", "login")

    def edit(self, comment: Comment, body: str) -> None:
        path = f"/repos/{self._project}/issues/comments/{comment.id}"
        self._write("PATCH", path, body, f"editing the comment on {self.noun}")

    def _explain_read_only(self) -> tuple[str, str]:
        if self._fork:
            return "the token of a pull request from a fork is read-only", ""
        return "the token is read-only", "give the job `permissions: {contents: read, pull-requests: write}`"

    def _find_login(self) -> str:
        """An app's token, such as a job's, is told by GraphQL only: `NAME[bot]`."""
        action = "identifying the token's user"
        response = self._api.send("GET", "/user", action=action)
        if response.status_code == 401:
            self._raise_for_status(response, action)
        if response.is_success:
            return text_at(parse_json(response, action), "login")
        response = self._api.send("POST", self._graphql, action=action, json={"query": "query{viewer{login}}"})
        data = parse_json(response, action) if response.is_success else None
        viewer = (data.get("data") or {}) if isinstance(data, dict) else {}
        return (text_at(viewer.get("viewer"), "login") if isinstance(viewer, dict) else "") or _JOBS


class GitHubProposals(Proposals):
    """Pull requests of GitHub."""

    EXISTS = 422

    def __init__(self, api: str, project: str, token: str, sleep: Sleep) -> None:
        needed = "the token needs `Pull requests: read and write` and `Contents: read and write`"
        hints = {401: "the token is not valid", 403: needed}
        super().__init__(Api(api, _headers(token), sleep), f"/repos/{project}/pulls", hints)
        self._owner = project.partition("/")[0]

    def _list_parameters(self, branch: str) -> dict[str, str]:
        head = f"{self._owner}:{branch}"
        return {"head": head, "state": "all", "sort": "created", "direction": "desc", "per_page": "20"}

    def _is_own(self, entry: Mapping[str, Any], branch: str) -> bool:
        sides = [side.get("repo") if isinstance(side := entry.get(key), dict) else None for key in ("head", "base")]
        head, base = (side.get("id") if isinstance(side, dict) else None for side in sides)
        return same_repository(head, base)

    def _parse_state(self, entry: Mapping[str, Any]) -> str:
        return "open" if entry.get("state") == "open" else "merged" if entry.get("merged_at") else "closed"

    def _new(self, branch: str, base: str, title: str, text: str) -> dict[str, Any]:
        return {"title": title, "body": text, "head": branch, "base": base}
