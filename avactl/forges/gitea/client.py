"""Comments and pull requests on Gitea, and on forges with its API.

Sources: docs.gitea.com/api (issue, repository), docs.gitea.com "API Usage"; Gitea's `routers/api/v1` for what the lists
contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from avactl.forges.comments import IssueComments
from avactl.forges.connection import Connection
from avactl.forges.forge import PipelineRun
from avactl.forges.proposals import Proposals, same_repository

_SCOPES = "a token needs the scopes `read:user`, `write:issue` and `write:repository`"
_PAGE = "50"
"""Entries of a page: the most that the forge returns with its default settings."""


def _hints(token: str) -> dict[int, str]:
    """Return remedies by HTTP status."""
    return {401: f"{token} is invalid or expired: {_SCOPES}", 403: f"{token} lacks permission: {_SCOPES}"}


class GiteaComments(IssueComments):
    """The comments of a pull request. The list has no pages. The token of a job has a user of its own, too; without
    `read:user` nothing tells whose comments are ours.
    """

    GONE = "does the pull request exist, and can the token read the repository?"
    WRITE_HINT = f"give the job `permissions: {{pull-requests: write}}`; {_SCOPES}"

    def __init__(self, connection: Connection, run: PipelineRun) -> None:
        super().__init__(connection, run.number, run.fork, _hints(connection.token_name))


class GiteaProposals(Proposals):
    """Pull requests of Gitea. Its list cannot be filtered by branch."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, f"/repos/{connection.project}/pulls", _hints(connection.token_name))

    def _list_parameters(self, branch: str) -> dict[str, str]:
        return {"state": "all", "limit": _PAGE}

    def _is_own(self, entry: Mapping[str, Any], branch: str) -> bool:
        head, base = ({} if not isinstance(side := entry.get(key), dict) else side for key in ("head", "base"))
        # Once the branch is deleted, `ref` is that of the pull request, and `label` is still the branch.
        return head.get("label") == branch and same_repository(head.get("repo_id"), base.get("repo_id"))

    def _parse_state(self, entry: Mapping[str, Any]) -> Literal["open", "closed", "merged"]:
        return "open" if entry.get("state") == "open" else "merged" if entry.get("merged") else "closed"
