"""Notes and merge requests on GitLab, gitlab.com or self-managed.

Sources: docs.gitlab.com/api (notes, merge requests, "CI/CD job token").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

from avactl.forges.comments import Comment, Comments
from avactl.forges.connection import Connection
from avactl.forges.forge import PipelineRun
from avactl.forges.gitlab.hints import ACCESS_HINT
from avactl.forges.proposals import Proposals, same_repository

_HINTS = {
    401: f"GITLAB_TOKEN is invalid or expired: {ACCESS_HINT}",
    403: f"the token lacks permission: {ACCESS_HINT}",
}
"""Remedies by HTTP status."""


class GitLabComments(Comments):
    """The notes of a merge request. A project's token has its own user."""

    GONE = f"does it exist, and can the token read it? If not: {ACCESS_HINT}"
    LIST: Mapping[str, Any] = {"per_page": 100, "sort": "asc", "order_by": "created_at"}
    EDIT, AUTHOR, LOGIN = "PUT", "author", "username"

    def __init__(self, connection: Connection, run: PipelineRun) -> None:
        path = f"/projects/{quote(run.project, safe='')}/merge_requests/{run.number}/notes"
        super().__init__(connection, path, f"merge request !{run.number} of project {run.project}", _HINTS)

    def _path_of(self, comment: Comment) -> str:
        return f"{self._list}/{comment.id}"

    def _explain_read_only(self) -> tuple[str, str]:
        return "the token is read-only", ACCESS_HINT


class GitLabProposals(Proposals):
    """Merge requests of GitLab."""

    URL, NUMBER, TEXT = "web_url", "iid", "description"
    CLOSE = ("PUT", {"state_event": "close"})

    def __init__(self, connection: Connection) -> None:
        needed = "create a project access token with the role Developer and the scope `api`"
        path = f"/projects/{quote(connection.project, safe='')}/merge_requests"
        super().__init__(connection, path, {401: needed, 403: needed})

    def _list_parameters(self, branch: str) -> dict[str, str]:
        return {"source_branch": branch, "state": "all", "order_by": "created_at", "sort": "desc", "per_page": "20"}

    def _is_own(self, entry: Mapping[str, Any], branch: str) -> bool:
        return same_repository(entry.get("source_project_id"), entry.get("target_project_id"))

    def _parse_state(self, entry: Mapping[str, Any]) -> Literal["open", "closed", "merged"]:
        state = entry.get("state")
        return "open" if state in ("opened", "locked") else "merged" if state == "merged" else "closed"

    def _new(self, branch: str, base: str, title: str, text: str) -> dict[str, Any]:
        return {
            "title": title,
            "description": text,
            "source_branch": branch,
            "target_branch": base,
            "remove_source_branch": True,
        }
