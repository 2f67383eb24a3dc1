"""Comments and pull requests on GitHub, also on GitHub Enterprise.

Sources: docs.github.com/rest (issue comments, pulls).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from avactl.forges.comments import IssueComments
from avactl.forges.connection import Connection
from avactl.forges.forge import PipelineRun
from avactl.forges.github.hints import TOKEN_HINT
from avactl.forges.proposals import Proposals, same_repository
from avactl.forges.rest import parse_json, text_at

_JOBS = "github-actions[bot]"
"""User of a job's own token."""
_HINTS = {
    401: f"GITHUB_TOKEN is not valid: {TOKEN_HINT}",
    403: "the token lacks permission: a fine-grained token needs `Pull requests: read and write`",
}
"""Remedies by HTTP status."""


class GitHubComments(IssueComments):
    """The comments of a pull request."""

    GONE = "does the pull request exist, and can the token read the repository (`contents: read`)?"
    LIST: Mapping[str, Any] = {"per_page": 100}
    WRITE_HINT = "give the job `permissions: {contents: read, pull-requests: write}`"

    def __init__(self, connection: Connection, run: PipelineRun) -> None:
        super().__init__(connection, run.number, run.fork, _HINTS)
        self._graphql = f"{run.api.removesuffix('/v3')}/graphql"  # GitHub Enterprise: /api/v3 and /api/graphql

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

    def __init__(self, connection: Connection) -> None:
        needed = "the token needs `Pull requests: read and write` and `Contents: read and write`"
        hints = {401: "the token is not valid", 403: needed}
        super().__init__(connection, f"/repos/{connection.project}/pulls", hints)
        self._owner = connection.project.partition("/")[0]

    def _list_parameters(self, branch: str) -> dict[str, str]:
        head = f"{self._owner}:{branch}"
        return {"head": head, "state": "all", "sort": "created", "direction": "desc", "per_page": "20"}

    def _is_own(self, entry: Mapping[str, Any], branch: str) -> bool:
        sides = [side.get("repo") if isinstance(side := entry.get(key), dict) else None for key in ("head", "base")]
        head, base = (side.get("id") if isinstance(side, dict) else None for side in sides)
        return same_repository(head, base)

    def _parse_state(self, entry: Mapping[str, Any]) -> Literal["open", "closed", "merged"]:
        return "open" if entry.get("state") == "open" else "merged" if entry.get("merged_at") else "closed"
