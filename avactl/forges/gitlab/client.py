"""Notes and merge requests on GitLab, gitlab.com or self-managed.

Sources: docs.gitlab.com/api (notes, merge requests, "CI/CD job token").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from avactl.forges.comments import Comment, Comments, parse_comment
from avactl.forges.forge import PipelineRun, Sleep
from avactl.forges.gitlab.hints import ACCESS_HINT
from avactl.forges.proposals import Proposals, same_repository
from avactl.forges.rest import Api, parse_json, text_at

_HINTS = {
    401: f"GITLAB_TOKEN is invalid or expired: {ACCESS_HINT}",
    403: f"the token lacks permission: {ACCESS_HINT}",
}
"""Remedies by HTTP status."""


class GitLabComments(Comments):
    """The notes of a merge request."""

    def __init__(self, run: PipelineRun, sleep: Sleep) -> None:
        path = f"/projects/{quote(run.project, safe='')}/merge_requests/{run.number}/notes"
        noun = f"merge request !{run.number} of project {run.project}"
        super().__init__(Api(run.api, {"PRIVATE-TOKEN": run.token}, sleep), path, noun, _HINTS)

    def comments(self) -> Iterator[Comment]:
        """Yield all notes except system notes."""
        gone = f"does it exist, and can the token read it? If not: {ACCESS_HINT}"
        action, order = f"reading the notes of {self.noun}", {"sort": "asc", "order_by": "created_at"}
        for entry in self._pages(action, gone, per_page=100, **order):
            if not entry.get("system"):
                yield parse_comment(entry, "author", "username")

    def edit(self, comment: Comment, body: str) -> None:
        self._write("PUT", f"{self._list}/{comment.id}", body, f"editing the note on {self.noun}")

    def _explain_read_only(self) -> tuple[str, str]:
        return "the token is read-only", ACCESS_HINT

    def _find_login(self) -> str:
        """A project's token has its own user."""
        action = "identifying the token's user"
        response = self._api.send("GET", "/user", action=action)
        self._raise_for_status(response, action)
        return text_at(parse_json(response, action), "username")


class GitLabProposals(Proposals):
    """Merge requests of GitLab."""

    URL = "web_url"

    def __init__(self, api: str, project: str, token: str, sleep: Sleep) -> None:
        needed = "create a project access token with the role Developer and the scope `api`"
        path = f"/projects/{quote(project, safe='')}/merge_requests"
        super().__init__(Api(api, {"PRIVATE-TOKEN": token}, sleep), path, {401: needed, 403: needed})

    def _list_parameters(self, branch: str) -> dict[str, str]:
        return {"source_branch": branch, "state": "all", "order_by": "created_at", "sort": "desc", "per_page": "20"}

    def _is_own(self, entry: Mapping[str, Any], branch: str) -> bool:
        return same_repository(entry.get("source_project_id"), entry.get("target_project_id"))

    def _parse_state(self, entry: Mapping[str, Any]) -> str:
        state = str(entry.get("state", ""))
        return "open" if state in ("opened", "locked") else state

    def _new(self, branch: str, base: str, title: str, text: str) -> dict[str, Any]:
        return {
            "title": title,
            "description": text,
            "source_branch": branch,
            "target_branch": base,
            "remove_source_branch": True,
        }
